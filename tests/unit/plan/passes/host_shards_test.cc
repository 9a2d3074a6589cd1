#include "executor/plan/passes/host_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "executor/plan/build.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using ::testing::HasSubstr;

// Two layers of four heads, of which pairs share keys and values, in four shards.
v1::JobSpec InShards(int ranks, int sharing) {
  v1::JobSpec spec = LlamaSpec();
  v1::Llama& llama = *spec.mutable_model()->mutable_llama();
  llama.set_heads(4);
  llama.set_kv_heads(2);
  llama.set_width(16);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_resources()->set_min_slots(ranks);
  spec.mutable_parallel()->set_tensor(4);
  if (sharing > 1) spec.mutable_parallel()->mutable_layout()->set_tensor(sharing);
  if (sharing == ranks) spec.mutable_parallel()->set_logical_ranks(1);
  return spec;
}

std::vector<Plan> PlansOf(const v1::JobSpec& spec, int ranks) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < ranks; ++rank) {
    plans.push_back(BuildPlan(ResolveSpec(spec).value(), TokenFacts(64), rank).value());
  }
  return plans;
}

// What a rank sends and receives in each of `exchanges`: by the rank that makes it, bytes.
std::vector<std::map<int64_t, int64_t>> BytesOf(const Plan& plan,
                                                const std::vector<ShardExchange>& exchanges) {
  std::vector<std::map<int64_t, int64_t>> all;
  for (const ShardExchange& exchange : exchanges) {
    std::map<int64_t, int64_t>& bytes = all.emplace_back();
    for (const TensorId id : exchange.tensors) {
      bytes[plan.tensors[id].made_by] += plan.tensors[id].bytes();
    }
  }
  return all;
}

TEST(HostShards, EveryShardIsHostedByOneRankOfAGroupAndTheRestByAll) {
  for (const int sharing : {2, 3, 4}) {
    const std::vector<Plan> plans = PlansOf(InShards(sharing, sharing), sharing);
    std::map<std::string, int> hosts;
    for (const Plan& plan : plans) {
      for (const TensorId id : plan.parameters) ++hosts[plan.tensors[id].name];
    }
    EXPECT_EQ(hosts.size(), plans[0].of_group.size());
    for (const TensorId id : plans[0].of_group) {
      const Tensor& parameter = plans[0].tensors[id];
      EXPECT_EQ(hosts[parameter.name], parameter.shard ? 1 : sharing) << parameter.name;
    }
  }
}

// Ranks that make other exchanges than those that they exchange with wait for ever.
TEST(HostShards, TheRanksOfAGroupMakeTheSameExchanges) {
  for (const int sharing : {2, 3, 4}) {
    const std::vector<Plan> plans = PlansOf(InShards(sharing, sharing), sharing);
    EXPECT_FALSE(plans[0].micro_exchanges.empty());
    for (const Plan& plan : plans) {
      EXPECT_EQ(BytesOf(plan, plan.micro_exchanges), BytesOf(plans[0], plans[0].micro_exchanges));
      EXPECT_EQ(BytesOf(plan, plan.evaluate_exchanges),
                BytesOf(plans[0], plans[0].evaluate_exchanges));
      EXPECT_EQ(BytesOf(plan, {plan.norm_exchanges.back()}),
                BytesOf(plans[0], {plans[0].norm_exchanges.back()}))
          << "leaves of the norm";
    }
  }
}

TEST(HostShards, TakeLessMemoryTheMoreRanksShareThem) {
  const Plan alone = PlansOf(InShards(1, 1), 1)[0];
  EXPECT_TRUE(alone.micro_exchanges.empty() && alone.norm_exchanges.empty());
  int64_t before = alone.summary.parameter_bytes() + alone.summary.optimizer_bytes();
  for (const int sharing : {2, 4}) {
    const Plan plan = PlansOf(InShards(sharing, sharing), sharing)[0];
    const int64_t bytes = plan.summary.parameter_bytes() + plan.summary.optimizer_bytes();
    EXPECT_LT(bytes, before);
    before = bytes;
    EXPECT_EQ(plan.summary.parameters(), alone.summary.parameters());
    EXPECT_DOUBLE_EQ(plan.summary.flops_per_step(), alone.summary.flops_per_step());
  }
}

TEST(HostShards, GroupsAreRanksSideBySide) {
  const Mesh mesh = MeshOf(ResolveSpec(InShards(6, 3)).value());
  EXPECT_EQ(mesh.data, 2);
  EXPECT_EQ(mesh.tensor, 3);
  EXPECT_EQ(mesh.group_of(4), 1);
  EXPECT_EQ(mesh.place_in_group(4), 1);
  EXPECT_EQ(ResolveSpec(InShards(6, 3))->parallel().logical_ranks(), 6) << "whatever the layout";
}

// Two heads of keys and values, each on two of four ranks, which exchange what the others do not.
TEST(HostShards, GradientsOfHeadsThatSeveralRanksHaveAreExchangedByTheseAlone) {
  const std::vector<Plan> plans = PlansOf(InShards(4, 4), 4);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const std::vector<ShardExchange>& exchanges = plans[rank].norm_exchanges;
    ASSERT_GT(exchanges.size(), 1u);
    EXPECT_TRUE(exchanges.back().ranks.empty()) << "leaves go to all";
    for (size_t i = 0; i + 1 < exchanges.size(); ++i) {
      const int64_t first = rank / 2 * 2;
      EXPECT_THAT(exchanges[i].ranks, ::testing::UnorderedElementsAre(first, first + 1));
    }
    EXPECT_FALSE(plans[rank].received.empty());
  }
}

TEST(HostShards, ALayoutThatCannotBeIsRefused) {
  const auto why = [](const v1::JobSpec& spec) {
    return std::string(ResolveSpec(spec).status().message());
  };
  EXPECT_THAT(why(InShards(4, 3)), HasSubstr("spec.parallel.layout.tensor: 3 does not divide the 4 "
                                             "slots of spec.resources; use 6 slots"));
  v1::JobSpec usual = InShards(2, 1);
  usual.mutable_parallel()->mutable_layout()->set_tensor(1);
  EXPECT_FALSE(ResolveSpec(usual)->parallel().has_layout()) << "older workers do not know it";
  EXPECT_THAT(why(InShards(5, 5)), HasSubstr("spec.parallel.layout.tensor: 5 is not in [1, 4]"));
  v1::JobSpec elastic = InShards(2, 2);
  elastic.mutable_resources()->set_max_slots(4);
  elastic.mutable_parallel()->set_logical_ranks(2);
  EXPECT_EQ(why(elastic), "");
  v1::JobSpec few = InShards(4, 2);
  few.mutable_parallel()->set_logical_ranks(1);
  EXPECT_THAT(why(few),
              HasSubstr("spec.parallel.logical_ranks: 1 cannot be shared by 4 slots: each "
                        "group of them takes at least one; use 2 or more"));
}

// Ranks choose by themselves what to compute a second time. What travels is as if they did not.
TEST(HostShards, RanksExchangeAsMuchWhenTheyRecompute) {
  for (const int sharing : {2, 3, 4}) {
    v1::JobSpec spec = InShards(sharing, sharing);
    spec.mutable_model()->mutable_llama()->set_layers(8);
    spec.mutable_evaluation()->set_batch_size(1);
    const std::vector<Plan> kept = PlansOf(spec, sharing);
    for (const double share : {0.8, 0.5}) {
      spec.mutable_training()->mutable_recompute()->set_activation_share(share);
      const std::vector<Plan> recomputing = PlansOf(spec, sharing);
      EXPECT_GT(recomputing[0].micro.size(), kept[0].micro.size());
      for (int rank = 0; rank < sharing; ++rank) {
        EXPECT_LE(static_cast<double>(recomputing[rank].summary.activation_bytes()),
                  share * static_cast<double>(kept[0].summary.activation_bytes()));
        EXPECT_EQ(BytesOf(recomputing[rank], recomputing[rank].micro_exchanges),
                  BytesOf(kept[rank], kept[rank].micro_exchanges))
            << "rank " << rank << " of " << sharing << " with " << share;
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::plan
