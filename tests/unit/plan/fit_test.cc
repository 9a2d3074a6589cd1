#include "executor/plan/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Recompute, OfASlotsBytesGoesAsFarAsItMustAndNoFurther) {
  v1::JobSpec spec = CharGptSpec();
  const DataFacts facts = TokenFacts(65);
  const Plan all = PlanOf(spec, facts);
  v1::Recompute& recompute = *spec.mutable_training()->mutable_recompute();
  recompute.set_slot_bytes(all.summary.bytes_per_slot());
  EXPECT_EQ(PlanOf(spec, facts).micro.size(), all.micro.size());
  const int64_t slot = all.summary.bytes_per_slot() - all.summary.activation_bytes() / 3;
  recompute.set_slot_bytes(slot);
  const Plan plan = PlanOf(spec, facts);
  EXPECT_LE(plan.summary.bytes_per_slot(), slot);
  EXPECT_GT(plan.summary.bytes_per_slot(), slot - all.summary.activation_bytes() / 10);
}

// Most stages of a deep model are alike: a few plans tell of all.
TEST(Fit, TheLargestOfManyStagesIsFoundByPlanningFew) {
  for (const auto& [frozen, recompute] : {std::pair(false, false), {true, false}, {false, true}}) {
    v1::JobSpec spec = CharGptSpec();
    spec.mutable_model()->mutable_gpt()->set_layers(23);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_resources()->set_min_slots(16);
    spec.mutable_training()->set_batch_size(32);
    spec.mutable_training()->set_micro_batch_size(1);
    spec.mutable_parallel()->set_logical_ranks(16);
    spec.mutable_parallel()->set_pipeline(16);
    spec.mutable_parallel()->mutable_layout()->set_pipeline(16);
    if (frozen) {
      v1::ParameterGroup& group = *spec.mutable_optimizer()->add_groups();
      group.set_pattern("transformer.h.1?.mlp.*");
      group.set_frozen(true);
    }
    if (recompute) spec.mutable_training()->mutable_recompute()->set_activation_share(0.5);
    const v1::JobSpec resolved = ResolveSpec(spec).value();
    const DataFacts facts = TokenFacts(65);
    int64_t bytes = 0, sent = 0, built = 0;
    for (int64_t rank = 0; rank < 16; ++rank) {
      const Plan plan = BuildPlan(resolved, facts, rank).value();
      bytes = std::max(bytes, plan.summary.bytes_per_slot());
      sent = std::max(sent, plan.summary.sent_bytes_per_step());
    }
    const Plan largest = LargestOfStages(MeshOf(resolved), recompute, [&](int64_t rank) {
                           ++built;
                           return BuildPlan(resolved, facts, rank);
                         }).value();
    const int64_t filled = recompute ? largest.summary.activation_bytes() / 100 : 0;
    EXPECT_LE(largest.summary.bytes_per_slot(), bytes);
    EXPECT_GE(largest.summary.bytes_per_slot(), bytes - filled);
    EXPECT_EQ(largest.summary.sent_bytes_per_step(), sent);
    EXPECT_LE(built, 10);
  }
}

// Of a GPU's slot, too, and what is advised for it fits.
TEST(Recompute, OfAGpusBytesIsPlannedForAndAdvised) {
  v1::JobSpec spec = CharGptSpec();
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  const DataFacts facts = TokenFacts(65);
  const v1::PlanSummary all = PlanOf(spec, facts).summary;
  const int64_t slot = all.bytes_per_slot() - all.activation_bytes() / 3;
  EXPECT_THAT(WhatFits(ResolveSpec(spec).value(), facts, slot),
              HasSubstr(absl::StrCat("set training.recompute.slot_bytes to ", slot)));
  spec.mutable_training()->mutable_recompute()->set_slot_bytes(slot);
  const v1::PlanSummary fits = PlanOf(spec, facts).summary;
  EXPECT_LE(fits.bytes_per_slot(), slot);
  EXPECT_LT(fits.activation_bytes(), all.activation_bytes());
  EXPECT_EQ(fits.workspace_bytes(), all.workspace_bytes());
}

// Every piece of advice is true.
TEST(Fit, ToldSizesFit) {
  v1::JobSpec spec = CharGptSpec();
  spec.mutable_training()->set_batch_size(32);
  const DataFacts facts = TokenFacts(65);
  const v1::JobSpec resolved = ResolveSpec(spec).value();
  const v1::PlanSummary s = PlanOf(spec, facts).summary;
  const int64_t all = s.bytes_per_slot(), activations = s.activation_bytes();

  const int64_t slot = all - activations / 3;
  EXPECT_THAT(WhatFits(resolved, facts, slot),
              HasSubstr(absl::StrCat("set training.recompute.slot_bytes to ", slot,
                                     ", or training.micro_batch_size to 16")));
  spec.mutable_training()->mutable_recompute()->set_slot_bytes(slot);
  EXPECT_LE(PlanOf(spec, facts).summary.bytes_per_slot(), slot);
  spec.mutable_training()->clear_recompute();
  spec.mutable_training()->set_micro_batch_size(16);
  EXPECT_LE(PlanOf(spec, facts).summary.bytes_per_slot(), slot);

  const int64_t tight = all - activations * 15 / 16;
  const std::string advice = WhatFits(resolved, facts, tight);
  EXPECT_THAT(advice, HasSubstr("set training.micro_batch_size to "));
  EXPECT_EQ(
      WhatFits(resolved, facts, all / 100),
      "no size of micro-batch would fit, even if activations are recomputed; a smaller model may");

  // Its share of the batch is the only micro-batch of a logical rank.
  for (const auto shard : {v1::Parallel::GRADIENTS, v1::Parallel::PARAMETERS}) {
    spec = CharGptSpec();
    spec.mutable_training()->set_micro_batch_size(6);
    spec.mutable_parallel()->set_logical_ranks(2);
    spec.mutable_parallel()->set_shard(shard);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_resources()->set_min_slots(2);
    spec.mutable_resources()->set_max_slots(2);
    EXPECT_THAT(WhatFits(ResolveSpec(spec).value(), facts, all / 8),
                Not(HasSubstr("micro_batch_size")));
  }

  spec = CharGptSpec();
  spec.mutable_training()->mutable_recompute()->set_slot_bytes(all / 100);
  const absl::Status refused = BuildPlan(ResolveSpec(spec).value(), facts).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("spec.training.recompute.slot_bytes: "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("; no size of micro-batch would fit"));
}

}  // namespace
}  // namespace trainyard::plan
