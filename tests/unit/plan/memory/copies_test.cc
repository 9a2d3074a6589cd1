// Where copies of weights in 16 bits range.

#include <gtest/gtest.h>

#include <algorithm>

#include "executor/plan/memory/memory.h"
#include "executor/plan/ops/op.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

TEST(MemoryOfCopies, ForSeveralMicroBatchesLieAsTheirParametersDoAtHalfTheDistances) {
  v1::JobSpec spec = CharGptSpec();
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  spec.mutable_training()->set_micro_batch_size(spec.training().batch_size() / 2);
  const Plan plan = PlanOf(spec, TokenFacts(65));
  // The head, which is the embedding, and four a layer.
  EXPECT_EQ(
      std::count_if(plan.copies.begin(), plan.copies.end(), [](TensorId id) { return id >= 0; }),
      1 + 4 * 4);
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    if (plan.copies[i] == kNone) continue;
    const Tensor& copy = plan.tensors[plan.copies[i]];
    EXPECT_EQ(copy.type, ElementType::kBF16);
    EXPECT_EQ(copy.dims, plan.tensors[plan.parameters[i]].dims);
    EXPECT_EQ(2 * (plan.offsets[plan.copies[i]] - plan.copy_region.offset),
              plan.offsets[plan.parameters[i]] - plan.parameter_region.offset);
  }
  EXPECT_EQ(plan.summary.weight_copy_bytes(), plan.copy_region.bytes);
  EXPECT_EQ(PlanOf(CharGptSpec(), TokenFacts(65)).copy_region.bytes, 0);
}

// How often a micro-batch casts each weight.
std::map<TensorId, int> CastsOfWeights(const Plan& plan) {
  std::map<TensorId, int> casts;
  for (const Op& op : plan.micro) {
    const auto* cast = std::get_if<Cast>(&op);
    if (cast != nullptr && plan.tensors[cast->x].kind == TensorKind::kParameter) ++casts[cast->x];
  }
  return casts;
}

// LAMB's gradients are fp32 whatever products compute in.
v1::JobSpec Gpt2WithLamb() {
  v1::JobSpec spec = Gpt2Spec();
  spec.mutable_optimizer()->mutable_lamb();
  return spec;
}

// They wait for the backward pass where its gradients are to be, and are gone when these come.
TEST(MemoryOfCopies, ThatAStepCastsLieInTheMemoryOfGradients) {
  v1::JobSpec spec = Gpt2WithLamb();
  spec.mutable_model()->mutable_gpt()->set_context(64);
  const Plan wide = PlanOf(spec, TokenFacts(50257));
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  const Plan narrow = PlanOf(spec, TokenFacts(50257));
  EXPECT_EQ(narrow.copy_region.bytes, 0);
  EXPECT_GT(narrow.summary.weight_copy_bytes(), wide.parameter_region.bytes * 49 / 100);
  for (const auto& [id, count] : CastsOfWeights(narrow)) {
    EXPECT_EQ(count, 1) << narrow.tensors[id].name;
  }
  EXPECT_LT(narrow.arena_bytes, wide.arena_bytes + wide.gradient_region.bytes / 100);
}

// Where activations fill that memory, copies are cast once more rather than kept between.
TEST(MemoryOfCopies, AreCastTwiceWhereThatNeedsLess) {
  v1::JobSpec spec = Gpt2WithLamb();
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  const Plan plan = PlanOf(spec, TokenFacts(50257));
  const std::map<TensorId, int> casts = CastsOfWeights(plan);
  EXPECT_EQ(casts.size(), 1u + 4 * 12);
  for (const auto& [id, count] : casts) EXPECT_EQ(count, 2) << plan.tensors[id].name;
  EXPECT_LT(plan.activation_region.bytes, plan.activation_bytes - plan.gradient_region.bytes / 2);
}

// A cast is a launch: a model of which this is much leaves them to its optimizer, but not one whose
// copies take more than 256 MiB, nor one that computes twice to save memory.
TEST(MemoryOfCopies, OfASmallModelLastFromStepToStepOnAGpu) {
  v1::JobSpec spec = Gpt2Spec();
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  EXPECT_FALSE(CastsOfWeights(PlanOf(spec, TokenFacts(50257))).empty());
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  const Plan small = PlanOf(spec, TokenFacts(50257));
  EXPECT_TRUE(CastsOfWeights(small).empty());
  EXPECT_GT(small.copy_region.bytes, small.parameter_region.bytes * 49 / 100);
  spec.mutable_model()->mutable_gpt()->set_layers(36);  // GPT-2 large
  spec.mutable_model()->mutable_gpt()->set_heads(20);
  spec.mutable_model()->mutable_gpt()->set_width(1280);
  const Plan large = PlanOf(spec, TokenFacts(50257));
  EXPECT_EQ(CastsOfWeights(large).size(), 1u + 4 * 36);
  EXPECT_EQ(large.copy_region.bytes, 0);
  spec = Gpt2Spec();
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  spec.mutable_training()->mutable_recompute()->set_activation_bytes(small.activation_bytes * 3 /
                                                                     4);
  EXPECT_FALSE(CastsOfWeights(PlanOf(spec, TokenFacts(50257))).empty());
}

// What is frozen has copies from step to step in any case, however much it is.
TEST(MemoryOfCopies, OfAdaptersLastFromStepToStepOnAGpu) {
  v1::JobSpec spec = Gpt2Spec();
  spec.mutable_model()->mutable_gpt()->set_layers(36);
  spec.mutable_model()->mutable_gpt()->set_heads(20);
  spec.mutable_model()->mutable_gpt()->set_width(1280);
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  spec.mutable_fine_tune()->set_from("/weights");
  spec.mutable_fine_tune()->mutable_lora()->set_rank(8);
  const Plan plan = PlanOf(spec, TokenFacts(50257));
  EXPECT_GT(plan.copy_region.bytes, int64_t{512} << 20);
  EXPECT_TRUE(CastsOfWeights(plan).empty());
}

}  // namespace
}  // namespace trainyard::plan
