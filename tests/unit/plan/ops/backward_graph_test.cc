// The ops of the backward pass: which there are, where they write and what they are scaled by.

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "executor/plan/ops/gradient.h"
#include "executor/plan/ops/op.h"
#include "tests/unit/plan/random_model.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using reference::Vec;

TensorId GradientNamed(const Plan& plan, const std::string& parameter) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (plan.tensors[plan.parameters[i]].name == parameter) return plan.gradients[i];
  }
  return kNone;
}

TEST(Gradient, OfInputsIsNeverComputed) {
  const Plan plan = PlanOf(ConvnetSpec(), ImageFacts(6, 6, 1, 3));
  EXPECT_EQ(OpsOf<ConvolutionBackwardWeights>(plan.micro).size(), 1u);
  EXPECT_TRUE(OpsOf<ConvolutionBackwardData>(plan.micro).empty());
  for (const Tensor& tensor : plan.tensors) {
    EXPECT_FALSE(tensor.name == "d(images)" || tensor.name == "d(input)");
  }
}

TEST(Gradient, OfBatchNormKeepsAnOutputOnlyForReluAndBranchesOnlyThen) {
  const Plan plan = PlanOf(ResnetSpec(), ImageFacts(28, 28, 1, 10));
  int shortcuts = 0, branches = 0;
  for (const BatchNormBackward& o : OpsOf<BatchNormBackward>(plan.micro)) {
    shortcuts += o.y == kNone;
    branches += o.dresidual != kNone;
  }
  EXPECT_EQ(shortcuts, 3);  // no relu after them
  EXPECT_EQ(branches, 8);   // one per block
  // Where a block's input is read twice the two gradients are added, and nothing else is.
  EXPECT_EQ(OpsOf<Add>(plan.micro).size(), 8u);
}

TEST(Gradient, EvaluationTakesTheRunningStatistics) {
  Model model(ResnetSpec(), ImageFacts(6, 5, 1, 3));
  const auto evaluate = [&] {
    model.machine.Write(model.plan.eval_input, model.inputs);
    model.machine.Write(model.plan.eval_target, model.targets);
    model.machine.Run(model.plan.evaluate_begin);
    model.machine.Run(model.plan.evaluate);
    return model.machine.Read(model.plan.eval_losses);
  };
  const auto statistics = [&] {
    std::vector<Vec> all;
    for (const TensorId id : model.plan.buffers) all.push_back(model.machine.Read(id));
    return all;
  };
  for (const TensorId id : model.plan.buffers) {
    const Tensor& t = model.plan.tensors[id];
    model.machine.Write(id, Vec(t.elements(), t.init_value));
  }
  const Vec first = evaluate();
  const std::vector<Vec> untouched = statistics();
  const auto take = [&] {  // of the end of a step what moves buffers alone
    for (const Op& op : model.plan.end) {
      if (std::holds_alternative<CopyIfTaken>(op)) model.machine.Run({op});
    }
  };
  model.Step();
  EXPECT_EQ(statistics(), untouched) << "a step that is not taken moves nothing";
  take();
  EXPECT_NE(statistics(), untouched);
  EXPECT_NE(evaluate(), first);
  // Steps on one batch without learning: the running statistics become those of the batch. The
  // variance is the unbiased one, so that a little remains.
  double trained = 0;
  for (int i = 0; i < 200; ++i) {
    trained = model.Step();
    take();
  }
  const std::vector<Vec> moved = statistics();
  double evaluated = 0;
  for (const double loss : evaluate()) evaluated += loss / static_cast<double>(first.size());
  EXPECT_EQ(statistics(), moved);
  EXPECT_NEAR(evaluated, trained, 0.2 * trained);
}

TEST(Gradient, OfTiedEmbeddingsIsWrittenByTheHeadAndAddedToByTheEmbedding) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  const TensorId dwte = GradientNamed(plan, "transformer.wte.weight");
  std::vector<Access> accesses;
  for (const Op& op : plan.micro) {
    VisitOperands(op, [&](TensorId id, Access access) {
      if (id == dwte) accesses.push_back(access);
    });
  }
  EXPECT_EQ(accesses, (std::vector<Access>{Access::kWrite, Access::kUpdate}));
}

TEST(Gradient, OnlyWhatIsAddedToFirstIsZeroed) {
  v1::JobSpec spec = GptSpec();
  Plan plan = PlanOf(spec, TokenFacts(11));
  std::vector<Zero> zeroes = OpsOf<Zero>(plan.zero);
  ASSERT_EQ(zeroes.size(), 2u);
  EXPECT_EQ(zeroes[0].x, plan.loss_sum);
  EXPECT_EQ(zeroes[1].x, plan.target_count);
  // Activations lie there until then.
  zeroes = OpsOf<Zero>(plan.micro);
  ASSERT_EQ(zeroes.size(), 1u);
  EXPECT_EQ(zeroes[0].x, GradientNamed(plan, "transformer.wpe.weight"));
  EXPECT_EQ(zeroes[0].n, 40);

  // Several micro-batches: everything is added to, and zeroed in one go.
  spec.mutable_training()->set_micro_batch_size(2);
  plan = PlanOf(spec, TokenFacts(11));
  zeroes = OpsOf<Zero>(plan.zero);
  ASSERT_EQ(zeroes.size(), 3u);
  EXPECT_EQ(zeroes[2].x, plan.gradients[0]);
  EXPECT_EQ(zeroes[2].n * 4, plan.gradient_region.bytes);

  // A model without embeddings, in one go: nothing but the sums of the loss.
  EXPECT_EQ(PlanOf(MlpSpec(), ImageFacts(4, 4, 1, 3)).zero.size(), 2u);
}

TEST(Gradient, ResidualBranchesAddIntoOneTensor) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  EXPECT_EQ(OpsOf<Add>(plan.micro).size(), 0u);  // the sums of two blocks are in the norms
  int added = 0;
  for (const LayerNormBackward& o : OpsOf<LayerNormBackward>(plan.micro)) added += o.accumulate_dx;
  EXPECT_EQ(added, 4);
}

TEST(Gradient, AnOpDoesNotAddIntoTheGradientThatItReads) {
  // y = x + W x, on y = x W0: the gradient of y serves x as it is while the matmul still reads it.
  Graph graph;
  const TensorId input = graph.Add({.name = "in", .dims = {2, 2}, .kind = TensorKind::kInput});
  const auto parameter = [&](const char* name) {
    return graph.Add({.name = name, .dims = {2, 2}, .kind = TensorKind::kParameter});
  };
  const auto activation = [&](const char* name) {
    return graph.Add({.name = name, .dims = {2, 2}});
  };
  const TensorId w0 = parameter("w0"), w = parameter("w");
  const TensorId x = activation("x"), wx = activation("wx"), y = activation("y");
  const TensorId dy = activation("dy");
  const TensorId dw0 = graph.Add({.name = "dw0", .dims = {2, 2}, .kind = TensorKind::kGradient});
  const TensorId dw = graph.Add({.name = "dw", .dims = {2, 2}, .kind = TensorKind::kGradient});
  graph.ops = {Matmul{.a = input, .b = w0, .c = x, .m = 2, .n = 2, .k = 2},
               Matmul{.a = x, .b = w, .c = wx, .m = 2, .n = 2, .k = 2},
               Add{.a = x, .b = wx, .y = y, .n = 4}};
  AppendBackward(graph, {{y, dy}}, {{w0, dw0}, {w, dw}}, false);
  for (const Matmul& o : OpsOf<Matmul>(graph.ops)) {
    EXPECT_NE(o.a, o.c);
    EXPECT_FALSE(o.accumulate);
  }
  EXPECT_EQ(OpsOf<Add>(graph.ops).size(), 2u);
}

TEST(Gradient, DropoutsHaveStreamsOfTheirOwnAndTheirGradientsTheSame) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_dropout(0.1);
  const Plan plan = PlanOf(spec, TokenFacts(11));
  std::vector<uint32_t> streams;
  for (const Dropout& o : OpsOf<Dropout>(plan.micro)) {
    EXPECT_EQ(o.state, plan.state);
    streams.push_back(o.stream);
  }
  ASSERT_EQ(streams.size(), 2u * (1 + 3 * 2));
  std::vector<uint32_t> forward(streams.begin(), streams.begin() + 7);
  std::vector<uint32_t> backward(streams.rbegin(), streams.rbegin() + 7);
  EXPECT_EQ(forward, backward);
  std::sort(forward.begin(), forward.end());
  EXPECT_EQ(std::unique(forward.begin(), forward.end()), forward.end());
  EXPECT_TRUE(OpsOf<Dropout>(plan.evaluate).empty());
}

TEST(Gradient, LossIsScaledByTheRowsOfTheGlobalBatch) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_resources()->set_min_slots(2);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_training()->set_batch_size(12);
  spec.mutable_training()->set_micro_batch_size(2);
  const Plan plan = PlanOf(spec, TokenFacts(11));
  EXPECT_EQ(plan.micro_batches, 3);
  EXPECT_FLOAT_EQ(OpsOf<CrossEntropy>(plan.micro)[0].scale, 1.0f / (12 * 5));
  EXPECT_EQ(OpsOf<CrossEntropy>(plan.evaluate)[0].dlogits, kNone);
}

// The divisor is the count over all micro-batches, whichever of them has the targets.
TEST(Gradient, ScaledByTheCountIsThatOfTheTargetsThatCount) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_training()->set_micro_batch_size(2);
  Model all(spec, ImageFacts(3, 2, 1, 4));
  all.targets = {3, -1, -1, -1, 1, -100};
  all.Step();
  all.machine.Run(all.plan.norm);
  EXPECT_EQ(all.machine.Read(all.plan.target_count)[0], 2);

  spec.mutable_training()->set_batch_size(2);
  Model few(spec, ImageFacts(3, 2, 1, 4));
  for (const TensorId id : few.plan.parameters) few.machine.Write(id, all.machine.Read(id));
  few.targets = {3, 1};
  few.inputs = Vec(all.inputs.begin(), all.inputs.begin() + 6);
  few.inputs.insert(few.inputs.end(), all.inputs.begin() + 4 * 6, all.inputs.begin() + 5 * 6);
  few.Step();
  few.machine.Run(few.plan.norm);
  EXPECT_NEAR(all.machine.Read(all.plan.grad_norm)[0], few.machine.Read(few.plan.grad_norm)[0],
              1e-7);
  EXPECT_NEAR(all.machine.Read(all.plan.loss_sum)[0], few.machine.Read(few.plan.loss_sum)[0], 1e-7);
}

}  // namespace
}  // namespace trainyard::plan
