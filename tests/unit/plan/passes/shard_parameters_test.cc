#include "executor/plan/passes/shard_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "executor/plan/build.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/passes/shard_gradients.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

Plan OnThreeRanks(v1::JobSpec spec, const DataFacts& facts, int64_t rank = 1) {
  spec.mutable_resources()->set_min_slots(3);
  spec.mutable_resources()->set_max_slots(3);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_parallel()->set_logical_ranks(3);
  spec.mutable_parallel()->set_shard(v1::Parallel::PARAMETERS);
  spec.mutable_training()->set_batch_size(6);
  spec.mutable_training()->set_micro_batch_size(2);
  return BuildPlan(ResolveSpec(spec).value(), facts, rank).value();
}

std::vector<Plan> SomePlans() {
  v1::JobSpec narrow = GptSpec();
  narrow.mutable_precision()->set_compute(v1::Precision::BF16);
  return {OnThreeRanks(GptSpec(), TokenFacts(11)), OnThreeRanks(narrow, TokenFacts(11)),
          OnThreeRanks(ResnetSpec(), ImageFacts(32, 32, 3, 10)),
          OnThreeRanks(DlrmSpec(), ClickFacts(5, 3, 7))};
}

// Calls f(ops, gathers) for each list of ops that parameters are gathered for.
template <typename F>
void ForEachList(const Plan& plan, const F& f) {
  f(plan.micro, plan.micro_gathers);
  f(plan.evaluate, plan.evaluate_gathers);
}

TEST(Gathers, HaveWhatEachOpReads) {
  for (const Plan& plan : SomePlans()) {
    std::map<TensorId, size_t> bucket_of;
    for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      for (const TensorId id : GatheredWith(plan, bucket)) bucket_of[id] = bucket;
    }
    EXPECT_EQ(bucket_of.size(), plan.gradients.size());
    ForEachList(plan, [&](const std::vector<Op>& ops, const std::vector<Gather>& gathers) {
      size_t reads = 0;
      for (size_t i = 0; i < ops.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        Op op = ops[i];
        const auto touch = [&](TensorId id, Access access) {
          const auto found = bucket_of.find(id);
          if (found == bucket_of.end()) return;
          ++reads;
          EXPECT_EQ(access, Access::kRead);
          EXPECT_TRUE(std::any_of(gathers.begin(), gathers.end(),
                                  [&](const Gather& gather) {
                                    return gather.bucket == found->second &&
                                           gather.read.first <= at && at <= gather.read.last;
                                  }))
              << plan.tensors[id].name << " is not there for op " << i;
        };
        VisitOperands(op, touch);
      }
      EXPECT_GT(reads, 0u);
    });
  }
}

// So that all ranks exchange in one order, and no memory is anyone else's meanwhile.
TEST(Gathers, BeginInOrderWithTheOneBefore) {
  for (const Plan& plan : SomePlans()) {
    ForEachList(plan, [&](const std::vector<Op>&, const std::vector<Gather>& gathers) {
      int64_t before = 0, now = 0;
      std::map<size_t, int64_t> free_after;  // by bucket
      for (const Gather& gather : gathers) {
        if (gather.read.first > now) before = std::exchange(now, gather.read.first);
        EXPECT_EQ(gather.read.first, now);
        EXPECT_EQ(gather.start_before, before);
        EXPECT_LE(gather.read.first, gather.read.last);
        if (const auto found = free_after.find(gather.bucket); found != free_after.end()) {
          EXPECT_GT(gather.start_before, found->second);
        }
        free_after[gather.bucket] = gather.read.last;
      }
    });
  }
}

TEST(Gathers, AreAtMostTwoOfABucket) {
  for (const Plan& plan : SomePlans()) {
    ForEachList(plan, [&](const std::vector<Op>&, const std::vector<Gather>& gathers) {
      std::map<size_t, int> count;
      for (const Gather& gather : gathers) EXPECT_LE(++count[gather.bucket], 2);
    });
  }
}

// The embedding of GPT-2 is read by the first op, and as the head by ops in the middle.
TEST(Gathers, LeaveNoTiedEmbeddingWhileLayersRun) {
  const Plan plan = OnThreeRanks(Gpt2Spec(), TokenFacts(50257));
  const auto embedding =
      std::find_if(plan.parameters.begin(), plan.parameters.end(),
                   [&](TensorId id) { return plan.tensors[id].name == "transformer.wte.weight"; });
  ASSERT_NE(embedding, plan.parameters.end());
  std::vector<Gather> of_it;
  for (const Gather& gather : plan.micro_gathers) {
    const std::vector<TensorId> with = GatheredWith(plan, gather.bucket);
    if (std::find(with.begin(), with.end(), *embedding) != with.end()) of_it.push_back(gather);
  }
  ASSERT_EQ(of_it.size(), 2u);
  const auto ops = static_cast<int64_t>(plan.micro.size());
  EXPECT_LT(of_it[0].read.last, ops / 10);
  EXPECT_GT(of_it[1].start_before, ops / 4);
  EXPECT_LT(of_it[1].read.last, ops * 3 / 4);
}

// A rank keeps its share, and has room for what is gathered at once.
TEST(Gathers, NeedLessMemoryThanAllParameters) {
  const Plan plan = OnThreeRanks(Gpt2Spec(), TokenFacts(50257));
  const int64_t all = 4 * plan.summary.parameters();
  EXPECT_LT(plan.weight_region.bytes, all * 2 / 5);
  EXPECT_LT(plan.gathered_parameter_bytes, all / 2);
  EXPECT_EQ(plan.parameter_region.bytes, 0);
}

Plan WithTablesOnRank(int64_t rank, int64_t rows) {
  v1::JobSpec spec = DlrmSpec();
  spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(true);
  return OnThreeRanks(spec, ClickFacts(5, 3, rows), rank);
}

TEST(Tables, HaveEachRowOnOneRank) {
  for (const int64_t rows : {2, 7, 1000}) {
    const Plan first = WithTablesOnRank(0, rows);
    ASSERT_EQ(first.tables.size(), 3u);
    const int64_t width = first.tensors[first.parameters[first.gradients.size()]].dims[1];
    std::vector<int64_t> next(3);  // by table: the element that no rank had yet
    for (size_t t = 0; t < 3; ++t) next[t] = first.tables[t].elements.first;
    for (int64_t rank = 0; rank < 3; ++rank) {
      const Plan plan = WithTablesOnRank(rank, rows);
      EXPECT_EQ(plan.summary.bytes_per_slot(), first.summary.bytes_per_slot());
      for (size_t t = 0; t < 3; ++t) {
        const OwnedRun& owned = plan.owned_rows[t];
        EXPECT_EQ(owned.elements, first.tables[t].slices[rank]);
        EXPECT_EQ(owned.elements.first, next[t]);
        next[t] = owned.elements.end;
        EXPECT_EQ(owned.elements.size() % width, 0);
        // At least one, which nothing reads.
        EXPECT_EQ(plan.tensors[owned.weights].elements(), std::max(width, owned.elements.size()));
        EXPECT_EQ(owned.state.size(), 2u);
      }
    }
    for (size_t t = 0; t < 3; ++t) EXPECT_EQ(next[t], first.tables[t].elements.end);
  }
}

TEST(Tables, AreNotLookedUpByAnOp) {
  const Plan plan = WithTablesOnRank(1, 7);
  for (const auto& [ops, look_up] : {std::pair(&plan.micro, plan.micro_look_up),
                                     std::pair(&plan.evaluate, plan.evaluate_look_up)}) {
    const TensorId rows = look_up.rows;
    ASSERT_NE(rows, kNone);
    EXPECT_EQ(plan.tensors[rows].kind, TensorKind::kReceived);
    for (size_t i = 0; i < ops->size(); ++i) {
      EXPECT_EQ(std::get_if<EmbeddingTablesForward>(&(*ops)[i]), nullptr);
      bool reads = false;
      VisitOperands((*ops)[i], [&](TensorId id, Access) { reads |= id == rows; });
      if (static_cast<int64_t>(i) <= look_up.read_first) {
        EXPECT_EQ(reads, static_cast<int64_t>(i) == look_up.read_first);
      }
    }
  }
}

TEST(Tables, TakeAThirdOfTheMemoryOnThreeRanks) {
  constexpr int64_t kRows = 99'999;
  const Plan plan = WithTablesOnRank(0, kRows);
  const int64_t width = plan.tensors[plan.parameters[plan.gradients.size()]].dims[1];
  const int64_t tables = 3 * kRows * width * int64_t{sizeof(float)};
  EXPECT_NEAR(plan.summary.parameter_bytes(), tables / 3, tables / 100);
  EXPECT_NEAR(plan.summary.optimizer_bytes(), 2 * tables / 3, tables / 100);
  EXPECT_LT(plan.parameter_region.bytes, tables / 1000);
}

}  // namespace
}  // namespace trainyard::plan
