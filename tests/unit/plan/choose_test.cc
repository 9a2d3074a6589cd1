#include "executor/plan/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "executor/plan/sizing.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

bool NotYet() { return false; }

// A model of which most bytes are parameters and what is kept of them, on 4 slots.
v1::JobSpec OnFourSlots() {
  v1::JobSpec spec = CharGptSpec();
  spec.mutable_model()->mutable_gpt()->set_width(512);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_resources()->set_min_slots(4);
  spec.mutable_training()->set_batch_size(4);
  spec.mutable_training()->set_micro_batch_size(1);
  spec.mutable_parallel()->set_auto_(true);
  return ResolveSpec(spec).value();
}

const DataFacts kFacts = TokenFacts(65);

int64_t BytesOf(const v1::JobSpec& spec) {
  return PlanForAnyRanks(ResolveSpec(spec).value(), kFacts)->summary.bytes_per_slot();
}

int64_t BytesWith(v1::JobSpec spec, v1::Parallel::Shard shard) {
  spec.mutable_parallel()->set_shard(shard);
  return BytesOf(spec);
}

ChosenMesh Choose(const v1::JobSpec& spec, int64_t slot_bytes) {
  absl::StatusOr<ChosenMesh> mesh = ChooseMesh(spec, kFacts, slot_bytes, NotYet);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  EXPECT_FALSE(mesh->ended_early);
  if (!mesh->fits) return *std::move(mesh);
  EXPECT_FALSE(mesh->spec.parallel().auto_());
  EXPECT_EQ(ResolveSpec(mesh->spec)->SerializeAsString(), mesh->spec.SerializeAsString());
  EXPECT_EQ(mesh->summary.bytes_per_slot(), BytesOf(mesh->spec));
  EXPECT_LE(mesh->summary.bytes_per_slot(), slot_bytes);
  return *std::move(mesh);
}

TEST(ChooseMesh, KeepsAJobThatFitsAsItIs) {
  const v1::JobSpec spec = OnFourSlots();
  const ChosenMesh mesh = Choose(spec, BytesOf(spec));
  ASSERT_TRUE(mesh.fits);
  EXPECT_EQ(mesh.spec.parallel().shard(), v1::Parallel::SHARD_UNSPECIFIED);
  EXPECT_EQ(RanksInGroup(mesh.spec.parallel()), 1);
  EXPECT_THAT(mesh.why, StartsWith("the job as it is needs "));
}

TEST(ChooseMesh, SharesOutNoMoreThanTheSlotsAskFor) {
  const v1::JobSpec spec = OnFourSlots();
  const int64_t optimizer = BytesWith(spec, v1::Parallel::OPTIMIZER),
                gradients = BytesWith(spec, v1::Parallel::GRADIENTS),
                parameters = BytesWith(spec, v1::Parallel::PARAMETERS);
  ASSERT_LT(parameters, gradients);
  ASSERT_LT(gradients, optimizer);
  EXPECT_EQ(Choose(spec, optimizer - 1).spec.parallel().shard(), v1::Parallel::GRADIENTS);
  EXPECT_EQ(Choose(spec, gradients).spec.parallel().shard(), v1::Parallel::GRADIENTS);
  const ChosenMesh mesh = Choose(spec, gradients - 1);
  EXPECT_EQ(mesh.spec.parallel().shard(), v1::Parallel::PARAMETERS);
  EXPECT_THAT(mesh.why, StartsWith("shard PARAMETERS needs "));
  EXPECT_THAT(mesh.why, HasSubstr("; the job as it is needs "));
  EXPECT_THAT(mesh.why, HasSubstr("; shard GRADIENTS needs "));
}

// By default every rank then keeps all of it.
TEST(ChooseMesh, SharesOutWhatHasASecondOwner) {
  v1::JobSpec spec = OnFourSlots();
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_parallel()->set_second_owner(true);
  const int64_t all = BytesOf(spec), optimizer = BytesWith(spec, v1::Parallel::OPTIMIZER);
  ASSERT_LT(optimizer, all);
  EXPECT_EQ(Choose(spec, all).spec.parallel().shard(), v1::Parallel::SHARD_UNSPECIFIED);
  EXPECT_EQ(Choose(spec, all - 1).spec.parallel().shard(), v1::Parallel::OPTIMIZER);
  v1::JobSpec one = spec;
  one.mutable_parallel()->clear_second_owner();
  EXPECT_GT(optimizer, BytesWith(one, v1::Parallel::OPTIMIZER)) << "with one owner of each half";
}

TEST(ChooseMesh, CutsTheModelOfAJobThatWantsNoShards) {
  v1::JobSpec spec = OnFourSlots();
  spec.mutable_parallel()->set_shard(v1::Parallel::NONE);
  const int64_t whole = BytesOf(spec);
  const ChosenMesh mesh = Choose(spec, whole - 1);
  ASSERT_TRUE(mesh.fits) << mesh.why;
  EXPECT_EQ(mesh.spec.parallel().shard(), v1::Parallel::NONE);
  EXPECT_EQ(RanksInGroup(mesh.spec.parallel()), 2) << "the smallest group that will do";
  const ChosenMesh smaller = Choose(spec, mesh.summary.bytes_per_slot() * 3 / 4);
  ASSERT_TRUE(smaller.fits) << smaller.why;
  EXPECT_EQ(RanksInGroup(smaller.spec.parallel()), 4);
}

// Four ranks of one shard each send less where they share out the tokens, and need less memory.
TEST(ChooseMesh, SharesOutTokensWhereThatIsFaster) {
  v1::JobSpec spec = OnFourSlots();
  spec.mutable_parallel()->set_shard(v1::Parallel::NONE);
  spec.mutable_parallel()->set_tensor(4);
  spec = ResolveSpec(spec).value();
  v1::JobSpec pairs = spec, all = spec;
  pairs.mutable_parallel()->mutable_layout()->set_tensor(2);
  all.mutable_parallel()->mutable_layout()->set_tensor(4);
  const ChosenMesh of_two = Choose(spec, BytesOf(pairs)), of_four = Choose(spec, BytesOf(all));
  ASSERT_TRUE(of_two.fits && of_four.fits);
  EXPECT_EQ(of_two.spec.parallel().layout().tensor(), 2);
  EXPECT_FALSE(of_two.spec.parallel().layout().sequence()) << "of two shards on a rank";
  EXPECT_EQ(of_four.spec.parallel().layout().tensor(), 4);
  EXPECT_TRUE(of_four.spec.parallel().layout().sequence());
  EXPECT_THAT(of_four.why, StartsWith("tensor 4, sequence needs "));
}

// Two stages of two layers each wait for each other less in two chunks, which keep more. (Lamb
// steps whole matrices, which tensor parallelism would cut.)
TEST(ChooseMesh, CutsStagesInChunksWhereThatIsFaster) {
  v1::JobSpec spec = OnFourSlots();
  spec.mutable_optimizer()->mutable_lamb();
  spec.mutable_parallel()->set_shard(v1::Parallel::NONE);
  spec.mutable_parallel()->set_pipeline(2);
  spec = ResolveSpec(spec).value();
  v1::JobSpec stages = spec, chunks = spec;
  stages.mutable_parallel()->mutable_layout()->set_pipeline(2);
  *chunks.mutable_parallel() = stages.parallel();
  chunks.mutable_parallel()->mutable_layout()->set_chunks(2);
  ASSERT_GT(BytesOf(chunks), BytesOf(stages));
  ASSERT_LT(BytesOf(chunks), BytesOf(spec));
  const ChosenMesh fast = Choose(spec, BytesOf(chunks)), small = Choose(spec, BytesOf(stages));
  ASSERT_TRUE(fast.fits && small.fits) << fast.why << small.why;
  EXPECT_EQ(fast.spec.parallel().layout().chunks(), 2);
  EXPECT_THAT(fast.why, StartsWith("pipeline 2 in 2 chunks needs "));
  EXPECT_FALSE(small.spec.parallel().layout().has_chunks());
  // A job that names chunks keeps them.
  chunks = ResolveSpec(chunks).value();
  EXPECT_EQ(Choose(chunks, BytesOf(chunks)).spec.parallel().layout().chunks(), 2);
  chunks.mutable_parallel()->clear_shard();
  const ChosenMesh shares = Choose(chunks, BytesOf(chunks) - 1);
  ASSERT_TRUE(shares.fits) << shares.why;
  EXPECT_THAT(shares.why, StartsWith("shard OPTIMIZER, pipeline 2 in 2 chunks needs "));
  EXPECT_THAT(Choose(chunks, 1000).why, HasSubstr("pipeline 2 in 2 chunks, with "));
}

// A large table is shared out more evenly by smaller pieces.
TEST(ChooseMesh, CutsStagesInChunksWhereThatNeedsLess) {
  v1::JobSpec spec = OnFourSlots();
  spec.mutable_model()->mutable_gpt()->set_width(256);
  spec.mutable_model()->mutable_gpt()->set_layers(8);
  spec.mutable_optimizer()->mutable_lamb();
  spec.mutable_resources()->set_min_slots(2);
  spec.mutable_resources()->set_max_slots(2);
  spec.mutable_parallel()->set_logical_ranks(2);
  spec.mutable_parallel()->set_pipeline(2);
  spec.mutable_parallel()->set_shard(v1::Parallel::NONE);
  v1::JobSpec stages = spec, chunks = spec;
  stages.mutable_parallel()->mutable_layout()->set_pipeline(2);
  chunks.mutable_parallel()->mutable_layout()->set_pipeline(2);
  chunks.mutable_parallel()->mutable_layout()->set_chunks(4);
  const DataFacts facts = TokenFacts(32768);
  const auto bytes = [&](const v1::JobSpec& of) {
    return PlanForAnyRanks(ResolveSpec(of).value(), facts)->summary.bytes_per_slot();
  };
  ASSERT_LT(bytes(chunks), bytes(stages));
  const ChosenMesh mesh =
      ChooseMesh(ResolveSpec(stages).value(), facts, bytes(chunks), NotYet).value();
  EXPECT_FALSE(mesh.fits) << "it names its stages";
  spec.mutable_parallel()->clear_layout();
  spec = ResolveSpec(spec).value();
  const ChosenMesh chosen = ChooseMesh(spec, facts, bytes(chunks), NotYet).value();
  ASSERT_TRUE(chosen.fits) << chosen.why;
  EXPECT_EQ(chosen.spec.parallel().layout().chunks(), 4);
}

TEST(ChooseMesh, KeepsWhatTheJobSays) {
  v1::JobSpec spec = OnFourSlots();
  spec.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
  EXPECT_EQ(Choose(spec, BytesOf(spec) - 1).spec.parallel().shard(), v1::Parallel::OPTIMIZER);
  spec.mutable_parallel()->set_shard(v1::Parallel::GRADIENTS);
  EXPECT_THAT(Choose(spec, 1000).why, StartsWith("what needs least is shard GRADIENTS, with "));

  spec = OnFourSlots();
  spec.mutable_parallel()->set_pipeline(4);
  spec.mutable_parallel()->mutable_layout()->set_pipeline(2);
  spec = ResolveSpec(spec).value();
  const ChosenMesh shares = Choose(spec, BytesOf(spec) - 1);
  ASSERT_TRUE(shares.fits) << shares.why;
  EXPECT_EQ(shares.spec.parallel().layout().pipeline(), 2);
  EXPECT_EQ(shares.spec.parallel().shard(), v1::Parallel::OPTIMIZER);
  EXPECT_FALSE(Choose(spec, shares.summary.bytes_per_slot() - 1).fits);

  // Two shards, whoever computes them.
  spec = OnFourSlots();
  spec.mutable_parallel()->set_tensor(2);
  spec = ResolveSpec(spec).value();
  for (int64_t slot = BytesOf(spec);; slot = slot * 9 / 10) {
    const ChosenMesh mesh = Choose(spec, slot);
    if (!mesh.fits) break;
    EXPECT_EQ(mesh.spec.parallel().tensor(), 2) << mesh.why;
  }
}

TEST(ChooseMesh, CutsAnElasticJobIntoGroupsOfWhichItsLeastSlotsAreAMultiple) {
  v1::JobSpec spec = OnFourSlots();
  spec.mutable_resources()->set_min_slots(2);
  spec = ResolveSpec(spec).value();
  spec.mutable_parallel()->set_shard(v1::Parallel::NONE);
  const ChosenMesh cut = Choose(spec, BytesOf(spec) - 1);
  ASSERT_TRUE(cut.fits) << cut.why;
  EXPECT_EQ(RanksInGroup(cut.spec.parallel()), 2);
  EXPECT_EQ(cut.spec.resources().min_slots(), 2);
  const ChosenMesh none = Choose(spec, 1);
  EXPECT_FALSE(none.fits);
  EXPECT_THAT(none.why, HasSubstr("; refused: pipeline 4 (spec.resources.min_slots: 2 is not a "
                                  "multiple of the 4 ranks"));
  spec.mutable_parallel()->clear_shard();
  EXPECT_TRUE(Choose(spec, BytesWith(spec, v1::Parallel::GRADIENTS)).fits);
}

// Of it stages alone are built with Muon.
TEST(ChooseMesh, SaysWhatWasRefused) {
  v1::JobSpec spec = OnFourSlots();
  spec.mutable_optimizer()->mutable_muon();
  spec = ResolveSpec(spec).value();
  const ChosenMesh stages = Choose(spec, BytesOf(spec) - 1);
  EXPECT_TRUE(stages.fits) << stages.why;
  EXPECT_GT(stages.spec.parallel().layout().pipeline(), 1);
  const ChosenMesh mesh = Choose(spec, 1);
  EXPECT_FALSE(mesh.fits);
  EXPECT_THAT(mesh.why, HasSubstr("; refused: shard GRADIENTS ("));
  EXPECT_THAT(mesh.why, HasSubstr("spec.optimizer: muon with spec.parallel."));
}

TEST(ChooseMesh, TellsWhatNeedsLeastIfNothingFits) {
  const ChosenMesh mesh = Choose(OnFourSlots(), 1000);
  EXPECT_FALSE(mesh.fits);
  EXPECT_THAT(mesh.why, StartsWith("what needs least is "));
}

TEST(ChooseMesh, EndsWhenItIsTold) {
  int asked = 0;
  const absl::StatusOr<ChosenMesh> mesh =
      ChooseMesh(OnFourSlots(), kFacts, 1000, [&] { return ++asked > 2; });
  ASSERT_TRUE(mesh.ok());
  EXPECT_FALSE(mesh->fits);
  EXPECT_TRUE(mesh->ended_early);
  EXPECT_THAT(mesh->why, StartsWith("what needs least is "));
}

}  // namespace
}  // namespace trainyard::plan
