// What the stages of a pipeline keep of their micro-batches in flight, and how they keep less by
// computing it a second time.

#include "executor/plan/passes/flights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/fit.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"
#include "tests/unit/plan/step_in_bytes.h"

namespace trainyard::plan {
namespace {

using ::testing::HasSubstr;

// Eight layers of two shards, and eight micro-batches, so that every stage has several in flight.
v1::JobSpec InFlight(int stages, int sharing, int chunks = 1) {
  v1::JobSpec spec = LlamaSpec();
  v1::Llama& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(8);
  llama.set_width(64);
  llama.set_mlp_width(128);
  llama.set_context(32);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_resources()->set_min_slots(stages * sharing);
  spec.mutable_parallel()->set_pipeline(8);
  spec.mutable_parallel()->set_tensor(2);
  spec.mutable_parallel()->mutable_layout()->set_pipeline(stages);
  spec.mutable_parallel()->mutable_layout()->set_tensor(sharing);
  spec.mutable_parallel()->mutable_layout()->set_chunks(chunks);
  spec.mutable_parallel()->set_logical_ranks(1);
  spec.mutable_training()->set_batch_size(16);
  spec.mutable_training()->set_micro_batch_size(2);
  spec.mutable_evaluation()->set_batch_size(1);
  return spec;
}

std::vector<Plan> PlansOfAll(const v1::JobSpec& spec) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < spec.resources().min_slots(); ++rank) {
    plans.push_back(BuildPlan(ResolveSpec(spec).value(), TokenFacts(64), rank).value());
  }
  return plans;
}

int64_t ExchangedBytes(const Plan& plan, const std::vector<ShardExchange>& exchanges) {
  int64_t bytes = 0;
  for (const ShardExchange& exchange : exchanges) {
    for (const TensorId id : exchange.tensors) bytes += plan.tensors[id].bytes();
  }
  return bytes;
}

// Ops of `plan` from `begin` to `end` that compute something a second time.
int RepeatedIn(const Plan& plan, int64_t begin, int64_t end) {
  int count = 0;
  for (int64_t i = begin; i < end; ++i) {
    bool again = false;
    VisitOperands(plan.micro[i], [&](TensorId id, Access access) {
      again |= access == Access::kWrite && absl::EndsWith(plan.tensors[id].name, " again");
    });
    if (again) ++count;
  }
  return count;
}

// Of several chunks every place in flight is as large as that one needs which keeps most, so that
// all have to repeat something.
TEST(Flights, TakeLessOfWhatIsComputedASecondTime) {
  for (const auto& [stages, sharing, chunks] : {std::tuple(2, 1, 1),
                                                {3, 1, 1},
                                                {8, 1, 1},
                                                {2, 2, 1},
                                                {2, 1, 2},
                                                {2, 1, 4},
                                                {4, 1, 2},
                                                {2, 2, 2}}) {
    v1::JobSpec spec = InFlight(stages, sharing, chunks);
    const std::vector<Plan> kept = PlansOfAll(spec);
    for (const double share : {0.8, 0.6}) {
      spec.mutable_training()->mutable_recompute()->set_activation_share(share);
      const std::vector<Plan> less = PlansOfAll(spec);
      int64_t most = 0;
      for (const Plan& plan : kept) most = std::max(most, plan.summary.activation_bytes());
      const double budget = share * static_cast<double>(most);
      for (size_t rank = 0; rank < kept.size(); ++rank) {
        const Plan &all = kept[rank], &plan = less[rank];
        SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", kept.size(), " in ", stages, " stages of ",
                                  chunks, " chunks, ", share));
        EXPECT_LE(static_cast<double>(plan.summary.activation_bytes()), budget);
        EXPECT_EQ(plan.in_flight.flights, all.in_flight.flights);
        EXPECT_EQ(ExchangedBytes(plan, plan.micro_exchanges),
                  ExchangedBytes(all, all.micro_exchanges));
        const auto end = static_cast<int64_t>(plan.micro.size());
        const bool fits = static_cast<double>(all.summary.activation_bytes()) <= budget;
        EXPECT_EQ(RepeatedIn(plan, 0, end) == 0, fits) << "no more than is asked for";
        StepInBytes bytes(plan);
        bytes.Run(8);
        bytes.Evaluate();
        const bool at_once = chunks == 1 && plan.host.stage() + 1 == stages;
        EXPECT_EQ(plan.backward_from == end, at_once);
        if (at_once) continue;
        EXPECT_EQ(RepeatedIn(plan, 0, plan.backward_from), 0) << "would stay in flight";
        EXPECT_EQ(plan.backward_from, all.backward_from);
        EXPECT_GT(plan.in_flight.flights, 1);
        EXPECT_EQ(plan.flight_bytes == all.flight_bytes, fits);
      }
    }
  }
}

// What a stage with many micro-batches in flight repeats frees the bytes of all.
TEST(Flights, ABudgetCountsAllOfThem) {
  v1::JobSpec spec = InFlight(4, 1);
  const Plan kept = PlansOfAll(spec)[0];
  ASSERT_EQ(kept.in_flight.flights, 4);
  // More than one micro-batch has, less than all.
  const int64_t bytes = kept.summary.activation_bytes() - 2 * kept.flight_bytes;
  spec.mutable_training()->mutable_recompute()->set_activation_bytes(bytes);
  const Plan less = PlansOfAll(spec)[0];
  EXPECT_LE(less.summary.activation_bytes(), bytes);
  EXPECT_GT(less.summary.activation_bytes(), bytes * 9 / 10) << "more was repeated than asked";
  ASSERT_EQ(less.summary.passes_size(), kept.summary.passes_size() + 1);
  EXPECT_EQ(less.summary.passes(0).name(), "recompute");
  EXPECT_GT(less.summary.passes(0).bytes_before() - less.summary.passes(0).bytes_after(),
            kept.flight_bytes);
  spec.mutable_training()->mutable_recompute()->set_activation_bytes(1);
  EXPECT_THAT(std::string(BuildPlan(ResolveSpec(spec).value(), TokenFacts(64)).status().message()),
              HasSubstr("with a micro_batch_size of 2, 4 of them in flight in stage 1 of 4 and"));
}

// What a refusal says is the least can be held, by the rank that says so.
TEST(Flights, TheLeastThatIsToldCanBeHeld) {
  for (const auto& [stages, sharing, chunks] :
       {std::tuple(2, 1, 1), {2, 1, 2}, {2, 2, 2}, {4, 1, 2}}) {
    v1::JobSpec spec = InFlight(stages, sharing, chunks);
    v1::Recompute& recompute = *spec.mutable_training()->mutable_recompute();
    for (int rank = 0; rank < stages * sharing; ++rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " in ", stages, " stages of ", chunks, " chunks"));
      recompute.set_activation_bytes(1);
      const std::string refused(
          BuildPlan(ResolveSpec(spec).value(), TokenFacts(64), rank).status().message());
      const std::string before = "activations take at least ";
      const size_t at = refused.find(before);
      ASSERT_NE(at, std::string::npos) << refused;
      recompute.set_activation_bytes(std::stoll(refused.substr(at + before.size())));
      const auto least = BuildPlan(ResolveSpec(spec).value(), TokenFacts(64), rank);
      ASSERT_TRUE(least.ok()) << least.status();
      EXPECT_LE(least->summary.activation_bytes(), recompute.activation_bytes());
      StepInBytes(*least).Run(8);
    }
  }
}

TEST(Flights, WhatIsAdvisedFitsEveryRank) {
  v1::JobSpec spec = InFlight(4, 2);
  const v1::JobSpec resolved = ResolveSpec(spec).value();
  const Plan all = BuildLargestPlan(resolved, TokenFacts(64)).value();
  const int64_t slot = all.summary.bytes_per_slot() - all.summary.activation_bytes() / 3;
  EXPECT_THAT(WhatFits(resolved, TokenFacts(64), slot),
              HasSubstr(absl::StrCat("set training.recompute.slot_bytes to ", slot)));
  spec.mutable_training()->mutable_recompute()->set_slot_bytes(slot);
  for (const Plan& plan : PlansOfAll(spec)) EXPECT_LE(plan.summary.bytes_per_slot(), slot);
}

}  // namespace
}  // namespace trainyard::plan
