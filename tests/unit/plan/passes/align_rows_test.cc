// Which rows of logits lie apart, and that nothing but their place changes.

#include "executor/plan/passes/align_rows.h"
#include "executor/plan/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/interpreter.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::HasSubstr;

v1::JobSpec ForGpus(v1::JobSpec spec) {
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  return spec;
}

// Of the logits of training, of their gradient and of the logits of an evaluation, all alike.
int64_t StrideOf(const Plan& plan) {
  const CrossEntropy loss = OpsOf<CrossEntropy>(plan.micro)[0];
  const int64_t stride = plan.tensors[loss.logits].row_stride;
  EXPECT_EQ(plan.tensors[loss.dlogits].row_stride, stride);
  EXPECT_EQ(plan.tensors[plan.eval_logits].row_stride, stride);
  return stride;
}

v1::JobSpec Gpt2Of(int64_t vocabulary) {
  v1::JobSpec spec = ForGpus(Gpt2Spec());
  spec.mutable_model()->mutable_gpt()->set_vocab_size(static_cast<int32_t>(vocabulary));
  spec.mutable_model()->mutable_gpt()->set_layers(1);
  return spec;
}

TEST(AlignRows, LogitsOfAVocabularyThatIsNoMultipleOfEightLieApart) {
  for (const auto& [vocabulary, stride] : {std::pair{50257, 50304},
                                           {30522, 30528},
                                           {50304, 0},
                                           {32000, 0},
                                           {50264, 0},    // 16 bytes are enough
                                           {1001, 1024},  // mobilenet's classes
                                           {65, 0},       // nearly twice the memory
                                           {62, 64},
                                           {10, 0}}) {
    EXPECT_EQ(StrideOf(PlanOf(Gpt2Of(vocabulary), TokenFacts(10))), stride) << vocabulary;
  }
}

TEST(AlignRows, OfFamiliesThatMakeLogitsByAProduct) {
  EXPECT_EQ(StrideOf(PlanOf(ForGpus(BertSpec()), DocumentFacts(61))), 64);
  EXPECT_EQ(StrideOf(PlanOf(ForGpus(LlamaSpec()), TokenFacts(62))), 64);
  EXPECT_EQ(StrideOf(PlanOf(ForGpus(MlpSpec()), ImageFacts(3, 2, 1, 62))), 64);
  EXPECT_EQ(StrideOf(PlanOf(ForGpus(ResnetSpec()), ImageFacts(32, 32, 3, 1001))), 1024);
  EXPECT_EQ(StrideOf(PlanOf(ForGpus(ResnetSpec()), ImageFacts(32, 32, 3, 1000))), 0);
  EXPECT_EQ(StrideOf(PlanOf(ForGpus(ResnetSpec()), ImageFacts(32, 32, 3, 10))), 0);
  const Plan clicks = PlanOf(ForGpus(DlrmSpec()), ClickFacts(5, 3, 7));
  EXPECT_EQ(clicks.tensors[clicks.eval_logits].row_stride, 0);
}

// Where no product leaves them, or the gradient would be the operand that has no stride.
TEST(AlignRows, OtherLogitsStayDense) {
  const auto stride = [](const std::string& layers) {
    v1::JobSpec spec = ForGpus(TokenLayersSpec());
    *spec.mutable_model()->mutable_layers() =
        LayersOf(absl::StrCat("context: 5 layers { embedding { width: 8 } } ", layers));
    return StrideOf(PlanOf(spec, TokenFacts(62)));
  };
  EXPECT_EQ(stride("layers { linear {} }"), 64);
  EXPECT_EQ(stride("layers { linear { transposed: true } }"), 0);
  EXPECT_EQ(stride("layers { linear {} } layers { activation: GELU }"), 0);
}

TEST(AlignRows, APlanForAnyDeviceOrCpusIsAsItWas) {
  v1::JobSpec any = Gpt2Spec(), cpu = Gpt2Spec();
  cpu.mutable_resources()->set_device(v1::Resources::CPU);
  const Plan plan = PlanOf(any, TokenFacts(50257));
  for (const Plan& p : {PlanOf(cpu, TokenFacts(50257)), plan}) {
    for (const Tensor& tensor : p.tensors) ASSERT_EQ(tensor.row_stride, 0) << tensor.name;
    EXPECT_EQ(p.offsets, plan.offsets);
    EXPECT_EQ(p.summary.SerializeAsString(), plan.summary.SerializeAsString());
  }
}

// 47 elements a row: of the logits, whose gradient lies where they did.
TEST(AlignRows, CostsNoWorkAndOnlyThePaddingOfMemory) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    v1::JobSpec spec = Gpt2Spec();
    spec.mutable_precision()->set_compute(compute);
    // Copies of weights last from step to step on every device.
    spec.mutable_training()->set_micro_batch_size(spec.training().batch_size() / 2);
    const Plan dense = PlanOf(spec, TokenFacts(50257)),
               apart = PlanOf(ForGpus(spec), TokenFacts(50257));
    EXPECT_EQ(StrideOf(apart), 50304);
    EXPECT_EQ(apart.summary.flops_per_step(), dense.summary.flops_per_step());
    EXPECT_EQ(apart.summary.parameters(), dense.summary.parameters());
    EXPECT_EQ(apart.summary.parameter_bytes(), dense.summary.parameter_bytes());
    const CrossEntropy loss = OpsOf<CrossEntropy>(apart.micro)[0];
    const Tensor& logits = apart.tensors[loss.logits];
    EXPECT_EQ(apart.offsets[loss.logits], apart.offsets[loss.dlogits]);
    EXPECT_EQ(logits.dims, (std::vector<int64_t>{loss.rows, 50257}));
    EXPECT_EQ(logits.elements(), loss.rows * 50257);
    EXPECT_EQ(logits.bytes(), loss.rows * 50304 * SizeOf(logits.type));
    const int64_t more = apart.activation_bytes - dense.activation_bytes;
    EXPECT_GE(more, 0);
    EXPECT_LE(more, loss.rows * 47 * 4 + (1 << 20));
    ASSERT_EQ(apart.micro.size(), dense.micro.size());
    EXPECT_THAT(Describe(apart), HasSubstr(", 50257 of 50304]"));
    for (size_t i = 0; i < apart.parameters.size(); ++i) {
      EXPECT_EQ(apart.tensors[apart.parameters[i]].dims, dense.tensors[dense.parameters[i]].dims);
      EXPECT_EQ(apart.tensors[apart.parameters[i]].bytes(),
                dense.tensors[dense.parameters[i]].bytes());
    }
  }
}

// In double precision, on an arena whose bytes between the rows are no numbers: losses and every
// gradient of two steps, kept or recomputed.
TEST(AlignRows, ChangesNoGradient) {
  struct Case {
    v1::JobSpec spec;
    DataFacts facts;
  };
  v1::JobSpec micro = GptSpec(), smooth = LlamaSpec();
  micro.mutable_training()->set_micro_batch_size(2);
  smooth.mutable_training()->set_label_smoothing(0.1);
  smooth.mutable_training()->set_z_loss(0.01);
  for (const Case& c : {Case{GptSpec(), TokenFacts(62)}, Case{micro, TokenFacts(61)},
                        Case{smooth, TokenFacts(63)}, Case{BertSpec(), DocumentFacts(61)}}) {
    std::vector<reference::Vec> found[2];
    for (const bool apart : {false, true}) {
      const Plan plan = PlanOf(apart ? ForGpus(c.spec) : c.spec, c.facts);
      EXPECT_EQ(StrideOf(plan), apart ? 64 : 0);
      Interpreter machine(plan);
      machine.state = {.seed = 5, .step = 3};
      uint64_t draw = 1;
      const auto next = [&] {
        return (draw = draw * 6364136223846793005u + 1442695040888963407u) >> 33;
      };
      const auto fill = [&](TensorId id, auto&& value) {
        if (id == kNone) return;
        reference::Vec values(plan.tensors[id].elements());
        for (double& v : values) v = value();
        machine.Write(id, values);
      };
      for (const TensorId id : plan.parameters) {
        fill(id, [&] { return static_cast<double>(next() % 1000) / 1000 - 0.5; });
      }
      for (int step = 0; step < 2; ++step) {
        machine.Run(plan.copy);
        machine.Run(plan.begin);
        machine.Run(plan.zero);
        for (int64_t i = 0; i < plan.micro_batches; ++i) {
          fill(plan.input, [&] { return static_cast<double>(next() % 60); });
          fill(plan.ids, [&] { return static_cast<double>(1 + next() % plan.rows_per_sample); });
          fill(plan.target, [&] { return static_cast<double>(next() % 61) - 1; });
          machine.Run(plan.micro);
        }
        found[apart].push_back(machine.Read(plan.loss_sum));
        for (const TensorId id : plan.gradients) found[apart].push_back(machine.Read(id));
      }
      fill(plan.eval_input, [&] { return static_cast<double>(next() % 60); });
      fill(plan.eval_ids, [&] { return static_cast<double>(1 + next() % plan.rows_per_sample); });
      fill(plan.eval_target, [&] { return static_cast<double>(next() % 61) - 1; });
      machine.Run(plan.evaluate_begin);
      machine.Run(plan.evaluate);
      for (const TensorId id : {plan.eval_logits, plan.eval_losses, plan.eval_correct}) {
        found[apart].push_back(machine.Read(id));
      }
    }
    EXPECT_EQ(found[1], found[0]);
  }
}

}  // namespace
}  // namespace trainyard::plan
