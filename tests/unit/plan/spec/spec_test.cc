#include "executor/plan/spec/spec.h"

#include <gtest/gtest.h>

#include "google/protobuf/util/message_differencer.h"
#include "tests/unit/plan/spec/bad_specs.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

TEST(ResolveSpec, AcceptsWhatTheTestsStartFrom) {
  for (const v1::JobSpec& spec :
       {MlpSpec(), ConvnetSpec(), GptSpec(), CharGptSpec(), Gpt2Spec(), ResnetSpec(), LlamaSpec(),
        TokenSpec(), DlrmSpec(), CsvSpec(), BertSpec(), VitSpec(), MobilenetSpec(),
        ImageLayersSpec(), TokenLayersSpec()}) {
    EXPECT_TRUE(ResolveSpec(spec).ok()) << ResolveSpec(spec).status();
  }
}

TEST(ResolveSpec, IsIdempotent) {
  for (const v1::JobSpec& spec :
       {MlpSpec(), ConvnetSpec(), GptSpec(), LlamaSpec(), ResnetSpec(), TokenSpec(), DlrmSpec(),
        CsvSpec(), BertSpec(), VitSpec(), MobilenetSpec(), ImageLayersSpec(), TokenLayersSpec()}) {
    const v1::JobSpec once = *ResolveSpec(spec);
    const absl::StatusOr<v1::JobSpec> twice = ResolveSpec(once);
    ASSERT_TRUE(twice.ok()) << twice.status();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(once, *twice));
  }
}

TEST(ResolveSpec, FillsTheDefaultsOfTheProto) {
  v1::JobSpec bare = MlpSpec();
  bare.mutable_data()->mutable_idx()->clear_mean();
  bare.mutable_data()->mutable_idx()->clear_std();
  const v1::JobSpec mlp = *ResolveSpec(bare);
  EXPECT_EQ(mlp.model().mlp().activation(), v1::RELU);
  EXPECT_EQ(mlp.data().prefetch(), 4);
  EXPECT_DOUBLE_EQ(mlp.data().idx().validation_fraction(), 0.1);
  EXPECT_DOUBLE_EQ(mlp.data().idx().mean(), 0);
  EXPECT_DOUBLE_EQ(mlp.data().idx().std(), 1);
  EXPECT_EQ(mlp.training().micro_batch_size(), 6);
  EXPECT_EQ(mlp.training().seed(), 1337u);
  EXPECT_EQ(mlp.training().log_every(), 1);
  EXPECT_EQ(mlp.training().on_non_finite(), v1::Training::HALT);
  EXPECT_FALSE(mlp.training().has_max_rollbacks());
  EXPECT_DOUBLE_EQ(mlp.optimizer().adamw().beta2(), 0.999);
  EXPECT_DOUBLE_EQ(mlp.optimizer().adamw().weight_decay(), 0.01);
  EXPECT_DOUBLE_EQ(mlp.schedule().learning_rate(), 1e-3);
  EXPECT_EQ(mlp.schedule().shape(), v1::Schedule::CONSTANT);
  EXPECT_EQ(mlp.precision().compute(), v1::Precision::FP32);
  EXPECT_FALSE(mlp.precision().has_loss_scale());
  EXPECT_EQ(mlp.resources().min_slots(), 1);
  EXPECT_EQ(mlp.resources().max_slots(), 1);
  EXPECT_EQ(mlp.parallel().logical_ranks(), 1);
  EXPECT_TRUE(mlp.evaluation().at_end());
  EXPECT_EQ(mlp.evaluation().batch_size(), 6);
  EXPECT_EQ(mlp.checkpoint().keep(), 2);
  EXPECT_EQ(mlp.retry().max_restarts(), 5);

  v1::JobSpec policies = GptSpec();
  policies.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
  StoppingOf(policies);
  BestOf(policies);
  policies = *ResolveSpec(policies);
  EXPECT_EQ(policies.training().max_rollbacks(), 5);
  EXPECT_EQ(policies.evaluation().early_stopping().metric(), "loss");
  EXPECT_EQ(policies.evaluation().early_stopping().patience(), 3);
  EXPECT_EQ(policies.checkpoint().best().metric(), "loss");
  EXPECT_EQ(policies.checkpoint().best().keep(), 1);

  const v1::JobSpec gpt = *ResolveSpec(GptSpec());
  EXPECT_EQ(gpt.model().gpt().activation(), v1::GELU_TANH);
  EXPECT_EQ(gpt.model().gpt().mlp_width(), 32);
  EXPECT_TRUE(gpt.model().gpt().bias());
  EXPECT_TRUE(gpt.model().gpt().tie_embeddings());
  EXPECT_EQ(gpt.data().text().tokenizer(), v1::TextData::CHARACTERS);

  v1::JobSpec llama = LlamaSpec();
  LlamaOf(llama).clear_kv_heads();
  LlamaOf(llama).clear_mlp_width();
  LlamaOf(llama).clear_rope_theta();
  llama = *ResolveSpec(llama);
  EXPECT_EQ(llama.model().llama().kv_heads(), 4);
  EXPECT_EQ(llama.model().llama().mlp_width(), 64);
  EXPECT_EQ(llama.model().llama().rope_theta(), 10000);
  EXPECT_FALSE(llama.model().llama().tie_embeddings());

  const v1::JobSpec convnet = *ResolveSpec(ConvnetSpec());
  EXPECT_EQ(convnet.model().convnet().stages(0).kernel(), 3);
  EXPECT_EQ(convnet.model().convnet().stages(0).pool(), 2);
  EXPECT_EQ(convnet.model().convnet().stages(0).convolutions(), 1);

  const v1::JobSpec dlrm = *ResolveSpec(DlrmSpec());
  EXPECT_EQ(dlrm.data().clicks().dense(), 13);
  EXPECT_EQ(dlrm.data().clicks().categorical(), 26);
  EXPECT_EQ(dlrm.data().clicks().categories(), 1000);
  EXPECT_EQ(dlrm.data().clicks().seed(), 1u);
  const v1::JobSpec csv = *ResolveSpec(CsvSpec());
  EXPECT_DOUBLE_EQ(csv.data().csv().validation_fraction(), 0.1);
  EXPECT_EQ(csv.data().csv().bad_records(), v1::REFUSE_BAD_RECORDS);
  v1::JobSpec resnet = ResnetSpec();
  resnet.mutable_model()->mutable_resnet()->clear_width();
  EXPECT_EQ(ResolveSpec(resnet)->model().resnet().width(), 64);

  EXPECT_FALSE(ResolveSpec(TokenSpec())->evaluation().at_end());  // nothing is held out
}

}  // namespace
}  // namespace trainyard::plan
