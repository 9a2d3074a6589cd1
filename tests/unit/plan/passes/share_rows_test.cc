#include "executor/plan/passes/share_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/cost/gang_traffic.h"
#include "executor/plan/layouts.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"
#include "tests/unit/plan/step_in_bytes.h"

namespace trainyard::plan {
namespace {

using ::testing::HasSubstr;

v1::JobSpec OnRanksOfOneShard(int ranks, bool sequence) {
  v1::JobSpec spec = LlamaSpec();
  v1::Llama& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(4);
  llama.set_heads(4);
  llama.set_kv_heads(4);
  llama.set_width(32);
  llama.set_context(32);
  spec.mutable_training()->set_batch_size(8);
  spec.mutable_training()->set_micro_batch_size(8);
  spec.mutable_evaluation()->set_batch_size(1);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_resources()->set_min_slots(ranks);
  spec.mutable_parallel()->set_tensor(ranks);
  spec.mutable_parallel()->set_logical_ranks(1);
  spec.mutable_parallel()->mutable_layout()->set_tensor(ranks);
  spec.mutable_parallel()->mutable_layout()->set_sequence(sequence);
  return spec;
}

Plan PlanOf(const v1::JobSpec& spec, int rank) {
  return BuildPlan(ResolveSpec(spec).value(), TokenFacts(64), rank).value();
}

template <typename T>
std::vector<T> AllOf(const std::vector<Op>& ops) {
  std::vector<T> found;
  for (const Op& op : ops) {
    if (const auto* const one = std::get_if<T>(&op)) found.push_back(*one);
  }
  return found;
}

TEST(RowsAt, AreEachRowOnceInTheCutsOfSumsOverTokens) {
  for (const int64_t ranks : {2, 3, 7}) {
    for (const int64_t rows : {7, 8, 64, 99}) {
      const ShardHost host = {.rank = 0, .ranks = ranks};
      int64_t next = 0;
      for (int64_t place = ranks - 1; place >= 0; --place) {
        const plan::Run run = RowsAt(host, place, rows);
        EXPECT_EQ(run.first, next);
        EXPECT_GT(run.size(), 0);
        next = run.end;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(ShareRows, ARankComputesItsRowsOfWhatBelongsToNoShard) {
  for (const int ranks : {2, 3, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Plan plan = PlanOf(OnRanksOfOneShard(ranks, true), rank);
      const int64_t own = RowsAt(plan.host, plan.host.place(), 8 * 32).size();
      // Two sums in each of four layers and the embedding; and what comes of the norms' gradients.
      EXPECT_EQ(AllOf<AddRows>(plan.micro).size(), 9u + 9u);
      for (const auto& op : AllOf<AddRows>(plan.micro)) EXPECT_EQ(op.rows, own);
      for (const auto& op : AllOf<LayerNormBackward>(plan.micro)) EXPECT_EQ(op.rows, own);
      for (const auto& op : AllOf<Add>(plan.micro)) EXPECT_TRUE(op.n == own * 32 || op.n == 32);
      // Before each product that reads a norm, and in the backward pass once more, where that of
      // each sum is gathered as well, and of the embedding.
      EXPECT_EQ(AllOf<GatherRows>(plan.micro).size(), 9u + 9u + 8u + 1u);
    }
  }
}

TEST(ShareRows, KeepsFewerActivationsAndSendsLessTheMoreRanksThereAre) {
  for (const int ranks : {2, 4}) {
    const Plan whole = PlanOf(OnRanksOfOneShard(ranks, false), 0);
    const Plan shared = PlanOf(OnRanksOfOneShard(ranks, true), 0);
    EXPECT_LT(static_cast<double>(shared.summary.activation_bytes()),
              (ranks == 2 ? 0.85 : 0.65) * static_cast<double>(whole.summary.activation_bytes()));
    const double sent = static_cast<double>(MostTraffic(shared).of_shards) /
                        static_cast<double>(MostTraffic(whole).of_shards);
    EXPECT_LT(sent, ranks == 2 ? 1.25 : 0.65);
  }
}

// Bytes that the rank of a plan sends to `other` in an exchange, and those that it is sent.
struct SentAndReceived {
  int64_t sent = 0, received = 0;
};
SentAndReceived With(int64_t other, const Plan& plan, const ShardExchange& exchange) {
  const auto rows_of = [&](int64_t rank, TensorId of) {
    const auto place = static_cast<size_t>(rank % plan.host.in_stage());
    int64_t all = 0;
    for (const plan::Run& rows : exchange.rows) all += rows.size();
    return plan.tensors[of].bytes() / all * exchange.rows[place].size();
  };
  SentAndReceived bytes;
  for (const TensorId id : exchange.tensors) {
    if (exchange.gathered != kNone) {
      bytes.sent += plan.tensors[id].bytes();
      bytes.received += rows_of(other, exchange.gathered);
    } else if (plan.tensors[id].made_by == plan.host.rank) {
      bytes.sent += exchange.rows.empty() ? plan.tensors[id].bytes() : rows_of(other, id);
    } else if (plan.tensors[id].made_by == other) {
      bytes.received += plan.tensors[id].bytes();
    }
  }
  return bytes;
}

// Ranks that make other exchanges than those that they exchange with wait for ever. Of three or
// four ranks some have no heads, of three each has another number of the 33 tokens of a sample.
TEST(ShareRows, WhatARankSendsIsWhatTheOtherExpects) {
  for (const int ranks : {2, 3, 4}) {
    for (const double share : {1.0, 0.8}) {
      v1::JobSpec spec = OnRanksOfOneShard(ranks, true);
      spec.mutable_model()->mutable_llama()->set_heads(2);
      spec.mutable_model()->mutable_llama()->set_kv_heads(2);
      spec.mutable_model()->mutable_llama()->set_context(33);
      spec.mutable_training()->set_micro_batch_size(1);
      spec.mutable_resources()->set_min_slots(2 * ranks);
      spec.mutable_parallel()->set_pipeline(2);
      spec.mutable_parallel()->mutable_layout()->set_pipeline(2);
      if (share < 1) spec.mutable_training()->mutable_recompute()->set_activation_share(share);
      std::vector<Plan> plans;
      for (int rank = 0; rank < 2 * ranks; ++rank) plans.push_back(PlanOf(spec, rank));
      for (const Plan& one : plans) {
        for (const Plan& other : plans) {
          if (one.host.stage() != other.host.stage() || one.host.rank == other.host.rank) continue;
          SCOPED_TRACE(absl::StrCat(one.host.rank, " with ", other.host.rank, " of ", ranks));
          ASSERT_EQ(one.micro_exchanges.size(), other.micro_exchanges.size());
          for (size_t i = 0; i < one.micro_exchanges.size(); ++i) {
            EXPECT_EQ(With(other.host.rank, one, one.micro_exchanges[i]).sent,
                      With(one.host.rank, other, other.micro_exchanges[i]).received)
                << "exchange " << i;
          }
        }
      }
    }
  }
}

TEST(ShareRows, FewerRowsThanRanksStayWhole) {
  v1::JobSpec spec = OnRanksOfOneShard(4, true);
  spec.mutable_model()->mutable_llama()->set_context(3);
  spec.mutable_training()->set_micro_batch_size(1);
  const Plan plan = PlanOf(spec, 0);
  EXPECT_TRUE(AllOf<AddRows>(plan.micro).empty() && AllOf<GatherRows>(plan.micro).empty());
}

TEST(ShareRows, IsRefusedWhereARankHasSeveralShardsOrNone) {
  const auto why = [](const v1::JobSpec& spec) {
    return std::string(ResolveSpec(spec).status().message());
  };
  v1::JobSpec spec = OnRanksOfOneShard(4, true);
  spec.mutable_parallel()->mutable_layout()->set_tensor(2);
  EXPECT_EQ(why(spec),
            "spec.parallel.layout.sequence: sharing out tokens among 2 ranks that host 4 shards is "
            "not built yet; set spec.parallel.layout.tensor to 4, or leave sequence out");
  spec = OnRanksOfOneShard(1, true);
  EXPECT_THAT(why(spec), HasSubstr("spec.parallel.layout.sequence: true, but spec.parallel.layout."
                                   "tensor is 1: tokens are shared out among ranks that"));
  spec = OnRanksOfOneShard(2, true);
  spec.mutable_parallel()->set_sequence(2);
  EXPECT_THAT(why(spec), HasSubstr("spec.parallel.sequence: 2 ranks that share out tokens, but"));
}

// Advice tells of fewer ranks that share shards, too: then tokens are whole.
TEST(ShareRows, OtherLayoutsOfTheJobSayWhetherTokensAreShared) {
  const v1::JobSpec spec = ResolveSpec(OnRanksOfOneShard(4, true)).value();
  const auto layouts =
      PlanLayouts(spec, TokenFacts(64), LayoutsOn(spec, GroupsWorthHaving(spec), 4), {}, [] {
        return false;
      }).value();
  int shared = 0;
  for (const v1::LayoutPlan& layout : layouts) {
    EXPECT_EQ(layout.layout().sequence(), layout.layout().tensor() == 4);
    shared += layout.layout().sequence();
  }
  EXPECT_EQ(shared, 1);
}

// Also where ranks recompute, each by itself, with several micro-batches in flight.
TEST(ShareRows, NothingIsOverwrittenThatIsStillRead) {
  for (const auto& [stages, chunks] : {std::pair(1, 1), {2, 1}, {3, 1}, {2, 2}}) {
    for (const double share : {1.0, 0.9, 0.8, 0.75}) {
      for (const bool sequence : {false, true}) {
        v1::JobSpec spec = OnRanksOfOneShard(2, sequence);
        spec.mutable_resources()->set_min_slots(2 * stages);
        spec.mutable_parallel()->set_pipeline(3);
        spec.mutable_parallel()->mutable_layout()->set_pipeline(stages);
        spec.mutable_parallel()->mutable_layout()->set_chunks(chunks);
        spec.mutable_training()->set_micro_batch_size(1);
        if (share < 1) spec.mutable_training()->mutable_recompute()->set_activation_share(share);
        for (int rank = 0; rank < 2 * stages; ++rank) {
          SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", stages, " stages of ", chunks,
                                    " chunks, ", share, sequence ? ", tokens shared" : ""));
          const Plan plan = PlanOf(spec, rank);
          StepInBytes bytes(plan);
          bytes.Run(8);
          bytes.Evaluate();
        }
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::plan
