// Runs whose ranks keep no gradients but their shares of the sums, or no parameters but those that
// they step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "storage/base/file.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/on_ranks.h"

namespace trainyard::engine {
namespace {

using ShardedCase = std::tuple<Family, v1::Parallel::Shard>;

class ShardedRun : public testing::TestWithParam<ShardedCase> {
 protected:
  // Of `logical_ranks` logical ranks of one micro-batch each.
  v1::JobSpec Spec(int64_t steps, int logical_ranks) const {
    v1::JobSpec spec = SmallJob(std::get<0>(GetParam()), folder_.path(), steps);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    v1::Training& training = *spec.mutable_training();
    training.set_batch_size(2 * logical_ranks);
    training.set_micro_batch_size(2);
    training.set_log_every(1);
    spec.mutable_parallel()->set_logical_ranks(logical_ranks);
    spec.mutable_checkpoint()->set_every_steps(2);
    spec.mutable_evaluation()->set_every_steps(2);
    return spec;
  }

  static v1::JobSpec Sharded(v1::JobSpec spec) {
    spec.mutable_parallel()->set_shard(std::get<1>(GetParam()));
    return spec;
  }

  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }

  static void ExpectSame(const WrittenCheckpoint& found, const WrittenCheckpoint& expected) {
    EXPECT_EQ(found.weights_sha256, expected.weights_sha256);
    const std::string state = "/trainer_state/optimizer.safetensors";
    const auto read = [&](const WrittenCheckpoint& checkpoint) {
      return ReadFile(checkpoint.uri + state, int64_t{1} << 24).value_or("");
    };
    EXPECT_FALSE(read(expected).empty());
    EXPECT_TRUE(read(found) == read(expected));
  }

  TempFolder folder_;
};

TEST_P(ShardedRun, HasTheBitsOfOneRank) {
  struct Layouts {
    int logical_ranks;
    v1::Precision::Compute compute;
    std::vector<int> ranks;
  };
  for (const Layouts& c :
       {Layouts{8, v1::Precision::FP32, {3, 8}}, Layouts{5, v1::Precision::BF16, {2}},
        Layouts{4, v1::Precision::FP16, {3}}}) {
    v1::JobSpec spec = Spec(4, c.logical_ranks);
    spec.mutable_precision()->set_compute(c.compute);
    const std::string name = absl::StrCat(c.logical_ranks, " in ", c.compute);
    const OnRanks whole(spec, Root(name), 1);
    whole.ExpectOk();
    ASSERT_EQ(whole.seen.checkpoints.size(), 2u);
    for (const int ranks : c.ranks) {
      SCOPED_TRACE(absl::StrCat(name, " on ", ranks));
      const OnRanks gang(Sharded(spec), Root(absl::StrCat(name, " on ", ranks)), ranks);
      gang.ExpectOk();
      EXPECT_EQ(gang.seen.TrainLosses(), whole.seen.TrainLosses());
      EXPECT_EQ(gang.seen.Evaluations(), whole.seen.Evaluations());
      ASSERT_EQ(gang.seen.checkpoints.size(), 2u);
      for (const size_t i : {0, 1}) {
        ExpectSame(gang.seen.checkpoints[i], whole.seen.checkpoints[i]);
      }
    }
  }
}

// From what ranks wrote that have gradients of their own, and the other way round.
TEST_P(ShardedRun, ResumesOnAnotherLayout) {
  const v1::JobSpec spec = Spec(4, 4);
  const OnRanks whole(spec, Root("whole"), 2);
  const OnRanks sharded(Sharded(spec), Root("sharded"), 3);
  ASSERT_EQ(whole.seen.checkpoints.size(), 2u);
  ASSERT_EQ(sharded.seen.checkpoints.size(), 2u);
  const auto first_of = [](const OnRanks& run) {
    const WrittenCheckpoint& first = run.seen.checkpoints[0];
    return RestorePoint{.uri = first.uri, .manifest_sha256 = first.manifest_sha256};
  };
  const OnRanks gone_on(Sharded(spec), Root("whole"), 4, 1, first_of(whole));
  const OnRanks alone(spec, Root("sharded"), 1, 1, first_of(sharded));
  for (const OnRanks* run : {&gone_on, &alone}) {
    run->ExpectOk();
    ASSERT_FALSE(run->seen.checkpoints.empty());
    ExpectSame(run->seen.checkpoints.back(), whole.seen.checkpoints[1]);
    EXPECT_EQ(run->seen.TrainLosses(), LastOf(whole.seen.TrainLosses(), *run));
  }
}

// What is read, and what is not trained, has its place beside what is sharded.
TEST_P(ShardedRun, StartsFromAnotherModelAndLeavesWhatIsFrozen) {
  v1::JobSpec spec = Spec(4, 4);
  const OnRanks other(spec, Root("other"), 1);
  ASSERT_FALSE(other.seen.checkpoints.empty());
  spec.mutable_fine_tune()->set_from(other.seen.checkpoints[0].uri);
  v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
  const bool tables = spec.model().has_dlrm();  // all of them or none
  frozen.set_pattern(tables ? "emb_l.*" : "*1*");
  frozen.set_frozen(true);
  const OnRanks whole(spec, Root("whole"), 1);
  whole.ExpectOk();
  const OnRanks gang(Sharded(spec), Root("gang"), 3);
  gang.ExpectOk();
  ASSERT_FALSE(gang.seen.checkpoints.empty());
  EXPECT_EQ(gang.seen.Evaluations(), whole.seen.Evaluations());
  ExpectSame(gang.seen.checkpoints.back(), whole.seen.checkpoints.back());
}

TEST_P(ShardedRun, SkipsTheSameSteps) {
  v1::JobSpec spec = Spec(8, 4);
  spec.mutable_precision()->set_compute(v1::Precision::FP16);
  spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p30);
  const OnRanks whole(spec, Root("whole"), 1);
  const OnRanks gang(Sharded(spec), Root("gang"), 3);
  gang.ExpectOk();
  ASSERT_FALSE(gang.seen.checkpoints.empty());
  EXPECT_EQ(gang.seen.TrainLosses(), whole.seen.TrainLosses());
  ExpectSame(gang.seen.checkpoints.back(), whole.seen.checkpoints.back());
}

// The search for what is not finite makes the same exchanges, and finds the same.
TEST_P(ShardedRun, NamesWhatIsNotFinite) {
  v1::JobSpec spec = Spec(6, 4);
  spec.mutable_checkpoint()->clear_every_steps();
  spec.mutable_schedule()->set_learning_rate(1e38);
  spec.mutable_schedule()->set_warmup_steps(0);
  spec.mutable_optimizer()->clear_clip_norm();
  const OnRanks whole(spec, Root("whole"), 1);
  ASSERT_FALSE(whole.ended[0].ok());
  const OnRanks gang(Sharded(spec), Root("gang"), 3);
  for (const absl::Status& ended : gang.ended) EXPECT_EQ(ended, whole.ended[0]);
}

// Every rank gets the gradients of the rows that the others looked up, and steps the tables alike,
// or, where parameters are sharded, the rows that it has.
class TablesByRow : public ShardedRun {};

// Some ranks have no row of a table.
TEST_P(TablesByRow, HaveTheBitsOfOneRankWithFewerRowsThanRanks) {
  v1::JobSpec spec = Spec(4, 8);
  spec.mutable_data()->mutable_clicks()->set_categories(5);
  const OnRanks whole(spec, Root("whole"), 1);
  whole.ExpectOk();
  for (const int ranks : {3, 8}) {
    SCOPED_TRACE(ranks);
    const OnRanks gang(Sharded(spec), Root(absl::StrCat("gang of ", ranks)), ranks);
    gang.ExpectOk();
    ASSERT_EQ(gang.seen.checkpoints.size(), whole.seen.checkpoints.size());
    EXPECT_EQ(gang.seen.TrainLosses(), whole.seen.TrainLosses());
    EXPECT_EQ(gang.seen.Evaluations(), whole.seen.Evaluations());
    ExpectSame(gang.seen.checkpoints.back(), whole.seen.checkpoints.back());
  }
}

// Tables that an update has made infinite, and such whose products are: in an op behind the
// look-up.
TEST_P(TablesByRow, NameTheSamePlaceThatIsNotFinite) {
  for (const auto& [rate, words] :
       {std::pair(1e39, "left it, parameter \"emb_l."), {1e30, "interaction"}}) {
    v1::JobSpec spec = Spec(6, 4);
    spec.mutable_checkpoint()->clear_every_steps();
    spec.mutable_schedule()->set_learning_rate(1);
    spec.mutable_schedule()->set_warmup_steps(0);
    spec.mutable_optimizer()->clear_clip_norm();
    v1::ParameterGroup& tables = *spec.mutable_optimizer()->add_groups();
    tables.set_pattern("emb_l.*");
    tables.set_learning_rate_scale(rate);
    const OnRanks whole(spec, Root(absl::StrCat("whole ", rate)), 1);
    EXPECT_THAT(std::string(whole.ended[0].message()), testing::HasSubstr(words));
    const OnRanks gang(Sharded(spec), Root(absl::StrCat("gang ", rate)), 3);
    for (const absl::Status& ended : gang.ended) EXPECT_EQ(ended, whole.ended[0]);
  }
}

// All tables are read, but for one, which is drawn anew.
TEST_P(TablesByRow, StartFromAnotherModel) {
  v1::JobSpec spec = Spec(4, 4);
  const OnRanks other(spec, Root("other"), 1);
  ASSERT_FALSE(other.seen.checkpoints.empty());
  spec.mutable_fine_tune()->set_from(other.seen.checkpoints[0].uri);
  spec.mutable_fine_tune()->add_reinitialize("emb_l.1.*");
  const OnRanks whole(spec, Root("whole"), 1);
  whole.ExpectOk();
  const OnRanks gang(Sharded(spec), Root("gang"), 3);
  gang.ExpectOk();
  ASSERT_FALSE(gang.seen.checkpoints.empty());
  EXPECT_EQ(gang.seen.TrainLosses(), whole.seen.TrainLosses());
  ExpectSame(gang.seen.checkpoints.back(), whole.seen.checkpoints.back());
}

// Where tables that are kept by row are all that is trained, there are no gradients to exchange.
TEST_P(TablesByRow, TrainsWhatIsLeftWhenTheRestIsFrozen) {
  v1::JobSpec spec = Spec(4, 5);
  for (const char* pattern : {"bot_l.*", "top_l.*"}) {
    v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
    frozen.set_pattern(pattern);
    frozen.set_frozen(true);
  }
  const OnRanks whole(spec, Root("whole"), 1);
  whole.ExpectOk();
  for (const int ranks : {2, 3, 5}) {
    SCOPED_TRACE(ranks);
    const OnRanks gang(Sharded(spec), Root(absl::StrCat("gang of ", ranks)), ranks);
    gang.ExpectOk();
    ASSERT_EQ(gang.seen.checkpoints.size(), whole.seen.checkpoints.size());
    EXPECT_EQ(gang.seen.TrainLosses(), whole.seen.TrainLosses());
    ExpectSame(gang.seen.checkpoints.back(), whole.seen.checkpoints.back());
  }
}

std::string FamilyAndShard(const testing::TestParamInfo<ShardedCase>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_",
                      v1::Parallel::Shard_Name(std::get<1>(info.param)));
}

const auto kByRow = testing::Combine(
    testing::Values(Family{"adamw",
                           "model { dlrm { embedding_width: 4 bottom: 64 top: 6 } } optimizer { "
                           "adamw { lazy_tables: true } clip_norm: 0.5 }",
                           Family::kClicks},
                    Family{"sgd",
                           "model { dlrm { embedding_width: 4 bottom: 64 top: 6 } } optimizer { "
                           "sgd { lazy_tables: true } clip_norm: 0.5 }",
                           Family::kClicks}),
    testing::Values(v1::Parallel::NONE, v1::Parallel::OPTIMIZER, v1::Parallel::GRADIENTS,
                    v1::Parallel::PARAMETERS));
INSTANTIATE_TEST_SUITE_P(ByRow, ShardedRun, kByRow, FamilyAndShard);
INSTANTIATE_TEST_SUITE_P(ByRow, TablesByRow, kByRow, FamilyAndShard);

INSTANTIATE_TEST_SUITE_P(
    Families, ShardedRun,
    testing::Combine(
        testing::Values(
            Family{"gpt", "model { gpt { layers: 2 heads: 3 width: 12 context: 8 dropout: 0.1 } }"},
            Family{
                "llama",
                "model { llama { layers: 2 heads: 4 kv_heads: 2 width: 16 context: 8 mlp_width: 21 "
                "} } optimizer { lamb {} }"},
            Family{"mlp",
                   "model { mlp { hidden: 37 hidden: 11 } } optimizer { sgd { momentum: 0.9 } }",
                   Family::kImages},
            Family{"resnet", "model { resnet { depth: 18 stem: CIFAR width: 4 } }",
                   Family::kImages},
            Family{"dlrm", "model { dlrm { embedding_width: 4 bottom: 64 top: 6 } }",
                   Family::kClicks}),
        testing::Values(v1::Parallel::GRADIENTS, v1::Parallel::PARAMETERS)),
    FamilyAndShard);

}  // namespace
}  // namespace trainyard::engine
