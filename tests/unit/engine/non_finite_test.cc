// Steps whose targets do not all count, and steps that are not finite.

#include "executor/engine/non_finite.h"
#include "executor/plan/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "executor/data/dataset/dataset.h"
#include "executor/engine/evaluator.h"
#include "executor/engine/trainer.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A model on the CPU whose batches are made here.
class Bench {
 public:
  Bench(const v1::JobSpec& given, const plan::DataFacts& facts)
      : spec_(plan::ResolveSpec(given).value()),
        plan_(plan::BuildPlan(spec_, facts).value()),
        device_(kernels::OpenCpu(1).value()),
        session_(Session::Open(*device_, plan_).value()),
        trainer_(Trainer::Create(*session_, spec_).value()) {
    EXPECT_TRUE(trainer_->Initialize().ok());
  }

  const plan::Plan& plan() const { return plan_; }
  Session& session() { return *session_; }
  Trainer& trainer() { return *trainer_; }

  // The next step on `inputs` and `targets` of the whole batch.
  template <typename T>
  StepResult Step(const std::vector<T>& inputs, const std::vector<int32_t>& targets) {
    return trainer_->Step(Batches(inputs, targets)).value();
  }
  template <typename T>
  std::string Find(const std::vector<T>& inputs, const std::vector<int32_t>& targets) {
    return trainer_->FindNonFinite(Batches(inputs, targets)).value();
  }

  void Write(const std::string& parameter, const std::vector<float>& values) {
    for (const plan::TensorId id : plan_.parameters) {
      if (plan_.tensors[id].name != parameter) continue;
      session_->Write(id, values.data(), values.size() * sizeof(float));
      return;
    }
    ADD_FAILURE() << "no parameter " << parameter;
  }

  std::vector<float> Weights() {
    std::vector<float> all;
    for (const plan::TensorId id : plan_.parameters) {
      std::vector<float> values(plan_.tensors[id].elements());
      session_->Read(id, values.data(), values.size() * sizeof(float));
      EXPECT_TRUE(session_->Synchronize().ok());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  template <typename T>
  BatchSource Batches(const std::vector<T>& inputs, const std::vector<int32_t>& targets) {
    return [this, &inputs, &targets, micro = int64_t{0}]() mutable {
      data::Loader::Batch batch{.step = trainer_->steps_done(),
                                .first_sample = micro * plan_.micro_batch,
                                .inputs = inputs.data() + micro * Part(inputs.size()),
                                .targets = targets.data() + micro * Part(targets.size())};
      ++micro;
      return absl::StatusOr<data::Loader::Batch>(batch);
    };
  }
  int64_t Part(size_t all) const { return static_cast<int64_t>(all) / plan_.micro_batches; }

  const v1::JobSpec spec_;
  const plan::Plan plan_;
  const std::unique_ptr<kernels::Device> device_;
  const std::unique_ptr<Session> session_;
  const std::unique_ptr<Trainer> trainer_;
};

const plan::DataFacts kText = {.kind = plan::DataFacts::Kind::kTokens,
                               .vocab = 20,
                               .train_size = 1000,
                               .validation_size = 100};
const plan::DataFacts kImages = {
    .height = 4, .width = 4, .channels = 1, .classes = 3, .train_size = 100};

v1::JobSpec PlainGpt(int micro) {
  v1::JobSpec spec = SmallGpt("/absent", 10);
  spec.mutable_model()->mutable_gpt()->set_dropout(0);
  spec.mutable_training()->set_micro_batch_size(micro);
  return spec;
}

// Two layers on 4x4 images; batches of 4 in micro-batches of 2. The largest byte becomes `white`,
// the smallest 0.
v1::JobSpec Images(double white = 1) {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_mlp()->add_hidden(5);
  v1::IdxData& idx = *spec.mutable_data()->mutable_idx();
  idx.set_train_images("/absent");
  idx.set_train_labels("/absent");
  idx.set_std(1 / white);
  spec.mutable_training()->set_steps(10);
  spec.mutable_training()->set_batch_size(4);
  spec.mutable_training()->set_micro_batch_size(2);
  spec.mutable_evaluation()->set_at_end(false);
  spec.mutable_optimizer()->mutable_sgd();
  return spec;
}

const plan::DataFacts kClicks = {.kind = plan::DataFacts::Kind::kClicks,
                                 .dense = 3,
                                 .categorical = 2,
                                 .buckets = 10,
                                 .train_size = 100,
                                 .validation_size = 10};
constexpr int64_t kClickWords = 2 * (3 + 2);  // of a micro-batch

// A small recommender whose batches are cut as those of Images.
v1::JobSpec Clicks() {
  v1::JobSpec spec = Images();
  v1::Dlrm& dlrm = *spec.mutable_model()->mutable_dlrm();
  dlrm.set_embedding_width(4);
  dlrm.add_bottom(6);
  dlrm.add_top(5);
  spec.mutable_data()->mutable_clicks()->set_train_samples(100);
  spec.mutable_data()->mutable_clicks()->set_validation_samples(10);
  return spec;
}

// Of each of two micro-batches of two samples the dense values, all alike, then the ids.
std::vector<int32_t> ClicksOf(float first, float second) {
  std::vector<int32_t> words;
  for (const float dense : {first, second}) {
    words.insert(words.end(), 2 * kClicks.dense, std::bit_cast<int32_t>(dense));
    // Rows of their own: those that are met twice are merged.
    const auto id = static_cast<int32_t>(words.size() / kClickWords * 4);
    words.insert(words.end(), {id, id + 1, id + 2, id + 3});
  }
  return words;
}

struct Ids {
  std::vector<int32_t> inputs, targets;
  Ids() {
    for (int i = 0; i < 64; ++i) {
      inputs.push_back(i * 7 % 20);
      targets.push_back(i * 11 % 20);
    }
  }
};

TEST(Targets, TheLossIsTheMeanOverThoseThatCountHoweverTheBatchIsCut) {
  Ids ids;
  // 30 of the first 32 do not count, 3 of the others: a mean of means would be another number.
  for (int i = 2; i < 35; ++i) ids.targets[i] = i % 2 == 0 ? -1 : -100;
  Bench whole(PlainGpt(8), kText);
  const StepResult expected = whole.Step(ids.inputs, ids.targets);
  EXPECT_GT(expected.loss, 2.5);  // about log 20
  for (const int micro : {4, 2, 1}) {
    Bench cut(PlainGpt(micro), kText);
    const StepResult found = cut.Step(ids.inputs, ids.targets);
    EXPECT_NEAR(found.loss, expected.loss, 1e-6) << micro;
    EXPECT_NEAR(found.grad_norm, expected.grad_norm, 1e-5 * expected.grad_norm) << micro;
    const std::vector<float> a = cut.Weights(), b = whole.Weights();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << micro << " " << i;
  }
}

TEST(Targets, ABatchWithoutAnyTeachesNothing) {
  v1::JobSpec spec = PlainGpt(4);
  spec.mutable_optimizer()->mutable_sgd();
  Bench bench(spec, kText);
  const std::vector<float> before = bench.Weights();
  Ids ids;
  const StepResult result = bench.Step(ids.inputs, std::vector<int32_t>(64, -1));
  EXPECT_TRUE(result.finite);
  EXPECT_EQ(result.loss, 0);
  EXPECT_EQ(result.grad_norm, 0);
  EXPECT_EQ(bench.Weights(), before);
}

TEST(Loss, SmoothingAndZLossAreInTrainingOnlyAndTheLatterIsReported) {
  Ids ids;
  Bench plain(PlainGpt(4), kText);
  const double loss = plain.Step(ids.inputs, ids.targets).loss;
  v1::JobSpec spec = PlainGpt(4);
  spec.mutable_training()->set_z_loss(0.01);
  Bench z(spec, kText);
  const StepResult with_z = z.Step(ids.inputs, ids.targets);
  EXPECT_NEAR(with_z.loss - with_z.z_loss, loss, 1e-6);
  EXPECT_NEAR(with_z.z_loss, 0.01 * std::pow(std::log(20.0), 2), 0.01);  // logits begin near 0
  spec.mutable_training()->set_label_smoothing(1 - 1e-9);  // nothing is left of the target
  Bench smooth(spec, kText);
  const StepResult flat = smooth.Step(ids.inputs, ids.targets);
  EXPECT_NEAR(flat.loss - flat.z_loss, std::log(20.0), 0.05);
  for (const plan::Op& op : smooth.plan().evaluate) {
    if (const auto* const o = std::get_if<plan::CrossEntropy>(&op)) {
      EXPECT_EQ(o->smoothing, 0);
      EXPECT_EQ(o->z_loss, 0);
    }
  }
}

TEST(NonFinite, AStepIsNotTakenAndItsFirstOpIsNamed) {
  Bench bench(Images(3e38), kImages);
  std::vector<uint8_t> pixels(4 * 16, 0);
  const std::vector<int32_t> labels = {0, 1, 2, 0};
  ASSERT_TRUE(bench.Step(pixels, labels).finite);
  const std::vector<float> before = bench.Weights();

  // The largest numbers there are: their products with the weights are not.
  std::fill_n(pixels.begin() + 3 * 16, 16, uint8_t{255});
  const StepResult bad = bench.Step(pixels, labels);
  EXPECT_FALSE(bad.finite);
  EXPECT_EQ(bench.trainer().steps_done(), 1);
  EXPECT_EQ(bench.Weights(), before);
  const std::string found = bench.Find(pixels, labels);
  EXPECT_THAT(found, StartsWith("op 1 matmul \"layers.0\" forward, micro-batch 2 of 2, element "));
  EXPECT_THAT(found, HasSubstr(" of [2, 5], value "));
  EXPECT_THAT(found, HasSubstr("its inputs are finite: \"images\" max |x| = 3e+38, "
                               "\"layers.0.weight\" max |x| = "));

  pixels.assign(4 * 16, 0);
  EXPECT_TRUE(bench.Step(pixels, labels).finite);
  EXPECT_EQ(bench.trainer().steps_done(), 2);
  for (const float w : bench.Weights()) ASSERT_TRUE(std::isfinite(w));
}

TEST(NonFinite, BadDataAndBadWeightsAreNamedBeforeAnyOp) {
  Bench bench(Clicks(), kClicks);
  std::vector<int32_t> words = ClicksOf(0.5f, 0.5f);
  words[kClickWords + 4] = std::bit_cast<int32_t>(NAN);
  const std::vector<int32_t> clicks = {0, 1, 1, 0};
  EXPECT_FALSE(bench.Step(words, clicks).finite);
  EXPECT_EQ(bench.Find(words, clicks),
            "the data of micro-batch 2 of 2: \"input\", element 4 of [2, 3], value nan");
  const float infinite = INFINITY;
  bench.session().Write(bench.plan().parameters[0], &infinite, sizeof(infinite), 4 * 4);
  EXPECT_EQ(bench.Find(words, clicks),
            "as the update of step 0 left it, parameter \"bot_l.0.weight\", element 4 of [6, 3], "
            "value inf");
}

// Normalised by next to nothing, whatever is not black is infinite.
TEST(NonFinite, ImagesThatOverflowAreNamed) {
  Bench bench(Images(1e39), kImages);
  std::vector<uint8_t> pixels(4 * 16, 0);
  const std::vector<int32_t> labels = {0, 1, 2, 0};
  ASSERT_TRUE(bench.Step(pixels, labels).finite);
  pixels[2 * 16 + 5] = 200;
  EXPECT_FALSE(bench.Step(pixels, labels).finite);
  EXPECT_EQ(bench.Find(pixels, labels),
            "op 0 normalize_images \"images\" forward, micro-batch 2 of 2, element 5 of "
            "[2, 4, 4, 1], value inf");
}

// Inputs of 1e30 meet weights of 1e-36; only the gradient of those weights overflows.
TEST(NonFinite, ABackwardOpIsToldFromAForwardOne) {
  Bench bench(Images(1e30), kImages);
  const std::vector<uint8_t> pixels(4 * 16, 255);
  const std::vector<int32_t> labels = {0, 1, 2, 0};
  const std::vector<float> first(5 * 16, 1e-36f);
  std::vector<float> second(3 * 5, -1e9f);
  std::fill_n(second.begin(), 5, 1e9f);
  bench.Write("layers.0.weight", first);
  bench.Write("layers.1.weight", second);
  EXPECT_FALSE(bench.Step(pixels, labels).finite);
  const std::string found = bench.Find(pixels, labels);
  EXPECT_THAT(found,
              AllOf(HasSubstr(" matmul \"layers.0.weight.grad\" backward, micro-batch 1 of 2"),
                    HasSubstr("its inputs are finite: ")));
}

// Both branches leave 3e38 in one element of the stream. The norms between make 0 of so much, and
// that behind makes a NaN of the infinite sum: one kernel writes both.
TEST(NonFinite, ASumInANormIsNamedBeforeTheNorm) {
  Bench bench(PlainGpt(8), kText);
  const Ids ids;
  std::vector<float> bias(16);
  bias[3] = 3e38f;
  bench.Write("transformer.h.0.attn.c_proj.bias", bias);
  bench.Write("transformer.h.0.mlp.c_proj.bias", bias);
  EXPECT_FALSE(bench.Step(ids.inputs, ids.targets).finite);
  EXPECT_THAT(bench.Find(ids.inputs, ids.targets),
              AllOf(HasSubstr(" add_layer_norm \"transformer.h.0.after_mlp\" forward, micro-batch "
                              "1 of 1, element 3 of ["),
                    HasSubstr("its inputs are finite: \"transformer.h.0.after_attn\" max |x| = "
                              "3e+38, \"transformer.h.0.mlp.c_proj\" max |x| = 3e+38")));
}

// 80 elements of 2e38. The search runs up to the norm, and the next step is taken all the same.
TEST(NonFinite, ANormPastFp32IsNamedAndHoldsUpNoLaterStep) {
  Bench bench(Images(1e30), kImages);
  std::vector<uint8_t> pixels(4 * 16, 255);
  const std::vector<int32_t> labels = {0, 1, 2, 0};
  std::vector<float> second(3 * 5, -2e8f);
  std::fill_n(second.begin(), 5, 2e8f);
  bench.Write("layers.0.weight", std::vector<float>(5 * 16, 1e-36f));
  bench.Write("layers.1.weight", second);
  EXPECT_FALSE(bench.Step(pixels, labels).finite);
  EXPECT_THAT(bench.Find(pixels, labels), HasSubstr(" clip_scale \"grad_norm\""));
  pixels.assign(4 * 16, 0);
  EXPECT_TRUE(bench.Step(pixels, labels).finite);
  EXPECT_EQ(bench.trainer().steps_done(), 1);
}

// The same in bf16, whose range is that of fp32, where that gradient is held in bf16.
TEST(NonFinite, AGradientInSixteenBitsIsNamedToo) {
  v1::JobSpec spec = Images(1e30);
  spec.mutable_training()->set_micro_batch_size(4);
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  Bench bench(spec, kImages);
  const std::vector<uint8_t> pixels(4 * 16, 255);
  const std::vector<int32_t> labels = {0, 1, 2, 0};
  std::vector<float> second(3 * 5, -1e9f);
  std::fill_n(second.begin(), 5, 1e9f);
  bench.Write("layers.0.weight", std::vector<float>(5 * 16, 1e-36f));
  bench.Write("layers.1.weight", second);
  const plan::TensorId gradient = bench.plan().gradients[0];
  ASSERT_EQ(bench.plan().tensors[gradient].name, "layers.0.weight.grad");
  ASSERT_EQ(bench.plan().tensors[gradient].type, plan::ElementType::kBF16);
  EXPECT_FALSE(bench.Step(pixels, labels).finite);
  const std::string found = bench.Find(pixels, labels);
  EXPECT_THAT(found,
              AllOf(HasSubstr(" matmul \"layers.0.weight.grad\" backward, micro-batch 1 of 1"),
                    HasSubstr("its inputs are finite: ")));
}

// Rows of tables keep what each micro-batch left there until the next step.
TEST(NonFinite, RowsOfAFailedPassAreNotBlamedOnTheMicroBatchBefore) {
  Bench bench(Clicks(), kClicks);
  ASSERT_NE(bench.plan().row_gradient, plan::kNone);
  const std::vector<int32_t> words = ClicksOf(0.5f, 3e38f);
  bench.Write("bot_l.0.weight", std::vector<float>(6 * kClicks.dense, 4));
  const std::vector<int32_t> clicks = {0, 1, 1, 0};
  EXPECT_FALSE(bench.Step(words, clicks).finite);
  for (int i = 0; i < 2; ++i) {  // and the search leaves no trace, either
    EXPECT_THAT(bench.Find(words, clicks), HasSubstr(" forward, micro-batch 2 of 2, element "));
  }
}

TEST(NonFinite, AStepThatIsFiniteThisTimeIsSaidToBe) {
  Bench bench(Images(1e39), kImages);
  std::vector<uint8_t> pixels(4 * 16, 255);
  const std::vector<int32_t> labels = {0, 1, 2, 0};
  EXPECT_FALSE(bench.Step(pixels, labels).finite);
  pixels.assign(4 * 16, 0);  // as if memory had been at fault
  EXPECT_EQ(bench.Find(pixels, labels), "");
}

}  // namespace
}  // namespace trainyard::engine
