// What a rank sends in a step is what the plan says.

#include "executor/plan/cost/gang_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/trainer.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/in_threads.h"

namespace trainyard::engine {
namespace {

using ::testing::Each;

constexpr int64_t kSteps = 3;

// A job of eight logical ranks, each of two micro-batches or, to shard gradients or parameters,
// one.
v1::JobSpec EightRanks(const Family& family, const std::string& folder, int ranks,
                       v1::Parallel::Shard shard, int sharing = 1) {
  v1::JobSpec spec = SmallJob(family, folder, kSteps);
  spec.mutable_training()->set_batch_size(32);
  const bool one = shard == v1::Parallel::GRADIENTS || shard == v1::Parallel::PARAMETERS;
  spec.mutable_training()->set_micro_batch_size(one ? 4 : 2);
  if (shard == v1::Parallel::PARAMETERS) spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_parallel()->set_logical_ranks(8);
  spec.mutable_parallel()->set_shard(shard);
  spec.mutable_resources()->set_min_slots(ranks);
  if (sharing > 1) spec.mutable_parallel()->mutable_layout()->set_tensor(sharing);
  if (spec.parallel().tensor() > 1) spec.mutable_resources()->set_device(v1::Resources::CPU);
  return plan::ResolveSpec(spec).value();
}

// Bytes that the rank of `communicator` sends in each of kSteps steps of `plan`. What each rank
// steps of the parameters is sent with that step, or with the next one; that of the last with it.
std::vector<int64_t> SentInSteps(const v1::JobSpec& spec, const plan::Plan& plan,
                                 const data::Dataset& dataset, Communicator& communicator,
                                 bool with_next) {
  const auto device = kernels::OpenCpu(1).value();
  const auto session = Session::Open(*device, plan).value();
  const Groups groups(Gang(&communicator), static_cast<int>(plan.host.ranks));
  const auto trainer = Trainer::Create(*session, spec, groups).value();
  EXPECT_TRUE(trainer->Initialize().ok());
  const plan::LeafRange run =
      plan::HostedBy(plan.logical_ranks, groups.data().size(), groups.data().rank());
  const int64_t share = spec.training().batch_size() / plan.logical_ranks;
  data::Loader loader(dataset, {.seed = 1,
                                .batch_size = spec.training().batch_size(),
                                .first_sample = run.first * share,
                                .samples = run.size() * share,
                                .micro_batch = plan.micro_batch});
  std::vector<int64_t> sent;
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t before = communicator.bytes_sent();
    const auto result = trainer->Step([&] { return loader.Next(); });
    EXPECT_TRUE(result.ok() && result->finite) << result.status();
    if (!with_next || step == kSteps - 1) {
      EXPECT_TRUE(trainer->AwaitParameters().ok());
    }
    sent.push_back(communicator.bytes_sent() - before);
  }
  return sent;
}

// Where tables are shared out, of what the others look up in each of kSteps steps: the bytes that
// `rank` of `ranks` sends, less what a plan counts, for which look-ups are spread evenly.
std::vector<int64_t> UnevenLookUps(const v1::JobSpec& spec, const plan::Plan& plan,
                                   const data::Dataset& dataset, int64_t ranks, int64_t rank) {
  std::vector<int64_t> more(kSteps);
  if (plan.tables.empty()) return more;
  const int64_t row = plan.tensors[plan.row_gradient].dims[2] * int64_t{sizeof(float)};
  const plan::Tensor& ids = plan.tensors[plan.ids];
  const int64_t shares = plan::SlicesFor(ranks, plan.owners), own_share = rank % shares;
  const auto asks = [&](int64_t other) {  // this rank, if it has what is looked up
    return other % shares != own_share && plan::SourceOf(own_share, shares, other, ranks) == rank;
  };
  data::Loader loader(dataset, {.seed = 1,
                                .batch_size = spec.training().batch_size(),
                                .samples = spec.training().batch_size(),
                                .micro_batch = plan.micro_batch});
  for (int64_t step = 0; step < kSteps; ++step) {
    int64_t others = 0;
    for (int64_t logical = 0, host = 0; logical < plan.logical_ranks; ++logical) {
      const auto batch = loader.Next().value();
      while (logical >= plan::HostedBy(plan.logical_ranks, ranks, host).end) ++host;
      if (!asks(host)) continue;
      ++others;
      const auto* id = reinterpret_cast<const int32_t*>(static_cast<const char*>(batch.inputs) +
                                                        plan.tensors[plan.input].bytes());
      for (int64_t i = 0; i < ids.elements(); ++i) {
        const plan::Bucket& table = plan.tables[i % ids.dims[1]];
        const int64_t element = table.elements.first + id[i] * row / int64_t{sizeof(float)};
        const plan::ElementRange& own = table.slices[rank];
        if (own.first <= element && element < own.end) more[step] += row;
      }
    }
    more[step] -= others * plan.tensors[plan.micro_look_up.rows].bytes() / shares;
  }
  return more;
}

// With `second_owner` of each share.
class GangTraffic : public ::testing::TestWithParam<Family> {
 protected:
  static void ExpectAsPlanned(const std::vector<int>& gangs, bool second_owner);
};

void GangTraffic::ExpectAsPlanned(const std::vector<int>& gangs, bool second_owner) {
  const TempFolder folder;
  for (const int ranks : gangs) {
    for (const auto shard : {v1::Parallel::NONE, v1::Parallel::OPTIMIZER, v1::Parallel::GRADIENTS,
                             v1::Parallel::PARAMETERS}) {
      v1::JobSpec spec = EightRanks(GetParam(), folder.path(), ranks, shard);
      if (second_owner) spec.mutable_resources()->set_device(v1::Resources::CPU);
      spec.mutable_parallel()->set_second_owner(second_owner);
      const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
      InThreads(ranks, [&](Communicator& communicator) {
        const int rank = communicator.rank();
        const plan::Plan plan = plan::BuildPlan(spec, dataset->facts(), rank).value();
        const int64_t planned = plan::TrafficOfRanks(plan)[rank].bytes();
        const std::vector<int64_t> more = UnevenLookUps(spec, plan, *dataset, ranks, rank);
        std::vector<int64_t> expected;
        for (const int64_t bytes : more) expected.push_back(planned + bytes);
        EXPECT_EQ(SentInSteps(spec, plan, *dataset, communicator, false), expected)
            << "rank " << rank << " of " << ranks << ", shard " << shard;
        const std::vector<int64_t> sent = SentInSteps(spec, plan, *dataset, communicator, true);
        EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), int64_t{0}),
                  std::accumulate(expected.begin(), expected.end(), int64_t{0}))
            << "rank " << rank << " of " << ranks << ", shard " << shard;
        const int64_t later =
            plan.parameters_sharded ? 0 : plan::TrafficOfRanks(plan)[rank].in_forward;
        EXPECT_EQ(sent.front(), expected.front() - later);
        EXPECT_EQ(sent[1], expected[1]);
        EXPECT_LE(planned, plan.summary.sent_bytes_per_step());
        EXPECT_EQ(plan::MostTraffic(plan).bytes(), plan.summary.sent_bytes_per_step());
      });
    }
  }
}

TEST_P(GangTraffic, IsWhatThePlanSays) { ExpectAsPlanned({2, 3, 5, 8}, false); }
TEST_P(GangTraffic, OfTwoOwnersIsWhatThePlanSays) { ExpectAsPlanned({2, 5, 6}, true); }

// Keys and values of 2 heads in 4 shards: some ranks exchange the gradients of those that both
// have.
TEST(TrafficOfShards, IsWhatThePlanSays) {
  const TempFolder folder;
  const Family llama = {
      "llama",
      "model { llama { layers: 2 heads: 4 kv_heads: 2 width: 16 context: 8 mlp_width: 21 } } "
      "parallel { tensor: 4 }"};
  struct Layout {
    int ranks, sharing;
    bool sequence = false;
  };
  for (const auto& [ranks, sharing, sequence] :
       {Layout{2, 2}, {4, 4}, {4, 2}, {6, 3}, {5, 1}, {4, 4, true}, {8, 4, true}}) {
    for (const auto shard : {v1::Parallel::NONE, v1::Parallel::OPTIMIZER}) {
      v1::JobSpec spec = EightRanks(llama, folder.path(), ranks, shard, sharing);
      spec.mutable_parallel()->mutable_layout()->set_sequence(sequence);
      spec = plan::ResolveSpec(spec).value();
      const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
      InThreads(ranks, [&, sharing = sharing, ranks = ranks](Communicator& communicator) {
        const plan::Plan plan =
            plan::BuildPlan(spec, dataset->facts(), communicator.rank()).value();
        const int64_t planned = plan::TrafficOfRanks(plan)[plan.rank].bytes();
        EXPECT_THAT(SentInSteps(spec, plan, *dataset, communicator, /*with_next=*/false),
                    Each(planned))
            << "rank " << communicator.rank() << " of " << ranks << ", sharing " << sharing
            << ", shard " << shard;
      });
    }
  }
}

// Stages send in each micro-batch what goes on and what goes back, the middle one both.
TEST(TrafficOfStages, IsWhatThePlanSays) {
  const TempFolder folder;
  const Family llama = {"llama",
                        "model { llama { layers: 6 heads: 4 width: 16 context: 8 mlp_width: 21 "
                        "tie_embeddings: true } } parallel { pipeline: 3 tensor: 2 }"};
  struct Layout {
    int ranks, tensor, stages;
    v1::Parallel::Shard shard = v1::Parallel::NONE;
    int chunks = 1;
  };
  for (const Layout& on : {Layout{3, 1, 3},
                           {2, 1, 2},
                           {6, 2, 3},
                           {4, 1, 2},
                           {4, 1, 2, v1::Parallel::OPTIMIZER},
                           {2, 1, 2, v1::Parallel::NONE, 2},
                           {4, 2, 2, v1::Parallel::NONE, 2},
                           {3, 1, 3, v1::Parallel::NONE, 2}}) {
    v1::JobSpec spec = EightRanks(llama, folder.path(), on.ranks, on.shard, on.tensor);
    spec.mutable_parallel()->mutable_layout()->set_pipeline(on.stages);
    spec.mutable_parallel()->mutable_layout()->set_chunks(on.chunks);
    spec = plan::ResolveSpec(spec).value();
    const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
    const int64_t most =
        plan::BuildLargestPlan(spec, dataset->facts()).value().summary.sent_bytes_per_step();
    InThreads(on.ranks, [&](Communicator& communicator) {
      const plan::Plan plan = plan::BuildPlan(spec, dataset->facts(), communicator.rank()).value();
      const int64_t planned = plan::TrafficOfRanks(plan)[plan.rank].bytes();
      EXPECT_LE(planned, most);
      EXPECT_THAT(SentInSteps(spec, plan, *dataset, communicator, /*with_next=*/false),
                  Each(planned))
          << "rank " << communicator.rank() << " of " << on.ranks << ", " << on.stages
          << " stages of " << on.chunks << " chunks";
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, GangTraffic,
    ::testing::Values(
        Family{"gpt", ""},
        Family{"resnet", "model { resnet { depth: 18 stem: CIFAR width: 4 } }", Family::kImages},
        Family{"dlrm", "model { dlrm { embedding_width: 4 bottom: 64 top: 6 } }", Family::kClicks},
        Family{"dlrm_by_row",
               "model { dlrm { embedding_width: 4 bottom: 64 top: 6 } } optimizer { adamw { "
               "lazy_tables: true } }",
               Family::kClicks}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trainyard::engine
