#include "executor/plan/passes/bucket_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <variant>

#include "executor/plan/build.h"
#include "executor/plan/passes/optimizer_step.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

// The first op of `ops` that touches each tensor.
std::map<TensorId, int64_t> FirstOps(const std::vector<Op>& ops) {
  std::map<TensorId, int64_t> first;
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto touch = [&](TensorId id, Access) { first.emplace(id, static_cast<int64_t>(i)); };
    VisitOperands(ops[i], touch);
  }
  return first;
}

v1::JobSpec OnRanks(v1::JobSpec spec, int ranks) {
  spec.mutable_parallel()->set_logical_ranks(8);
  spec.mutable_training()->set_batch_size(8 * 2);
  spec.mutable_training()->set_micro_batch_size(2);
  spec.mutable_resources()->set_min_slots(ranks);
  spec.mutable_resources()->set_max_slots(ranks);
  return ResolveSpec(spec).value();
}

TEST(AwaitedOrder, IsThatOfTheFirstOpThatReadsAParameterOfTheBucket) {
  const std::vector<ModelCase> cases = {{"gpt2", Gpt2Spec(), TokenFacts(50257)},
                                        {"char gpt", CharGptSpec(), TokenFacts(65)},
                                        {"llama", LlamaSpec(), TokenFacts(65)},
                                        {"resnet", ResnetSpec(), ImageFacts(32, 32, 3, 10)}};
  for (const ModelCase& model : cases) {
    const auto built = BuildPlan(OnRanks(model.spec, 2), model.facts);
    ASSERT_TRUE(built.ok()) << model.name << ": " << built.status();
    const Plan& plan = *built;
    const std::map<TensorId, int64_t> first = FirstOps(plan.micro);
    std::vector<int64_t> expected(plan.buckets.size(), static_cast<int64_t>(plan.micro.size()));
    int64_t begin = 0;
    for (size_t i = 0; i < plan.gradients.size(); ++i) {
      const int64_t end = begin + RunLength(plan, i, i + 1);
      for (size_t b = 0; b < plan.buckets.size(); ++b) {
        const ElementRange& bucket = plan.buckets[b].elements;
        if (bucket.end <= begin || bucket.first >= end) continue;
        expected[b] = std::min(expected[b], first.at(plan.parameters[i]));
      }
      begin = end;
    }
    const std::vector<AwaitedBucket> order = AwaitedOrder(plan);
    ASSERT_EQ(order.size(), plan.buckets.size());
    std::vector<bool> seen(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(order[i].before_op, expected[order[i].bucket]) << model.name << " " << i;
      EXPECT_FALSE(seen[order[i].bucket]);
      seen[order[i].bucket] = true;
      if (i > 0) {
        EXPECT_LE(order[i - 1].before_op, order[i].before_op);
      }
    }
    if (order.size() > 1) {
      EXPECT_LT(order.front().before_op, order.back().before_op);
    }
  }
}

// What runs before a micro-batch waits for no parameters.
TEST(AwaitedOrder, NothingBeforeAMicroBatchReadsParameters) {
  for (const auto& [spec, facts] :
       {std::pair(GptSpec(), TokenFacts(65)), std::pair(ResnetSpec(), ImageFacts(32, 32, 3, 10)),
        std::pair(DlrmSpec(), ClickFacts(13, 26, 100))}) {
    const auto plan = BuildPlan(OnRanks(spec, 2), facts);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const auto* ops : {&plan->begin, &plan->zero}) {
      for (const auto& [id, op] : FirstOps(*ops)) {
        const int64_t at = plan->offsets[id] - plan->parameter_region.offset;
        EXPECT_FALSE(at >= 0 && at < plan->parameter_region.bytes) << plan->tensors[id].name;
      }
    }
  }
}

TEST(AwaitedOrder, OfOneRankNothingIsAwaited) {
  EXPECT_TRUE(AwaitedOrder(*BuildPlan(OnRanks(GptSpec(), 1), TokenFacts(65))).empty());
}

}  // namespace
}  // namespace trainyard::plan
