// Runs that leave their state in memory, and runs on other ranks that go on from there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/kept_state.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/late_device.h"
#include "tests/unit/engine/memory_file.h"
#include "tests/unit/engine/on_ranks.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class KeptStateRun : public testing::Test {
 protected:
  v1::JobSpec Spec(const Family& family, int64_t steps) const {
    v1::JobSpec spec = SmallJob(family, folder_.path(), steps);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_training()->set_batch_size(8);
    spec.mutable_training()->set_micro_batch_size(2);
    spec.mutable_training()->set_log_every(1);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_parallel()->set_logical_ranks(4);
    spec.mutable_evaluation()->set_every_steps(2);
    return spec;
  }

  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }

  // Stops after step `stop_at` and leaves its state in `memory_`; begins from there if it holds one
  // of step `kept_step`. Ranks but those in `without` have it in the memory of their node.
  std::unique_ptr<OnRanks> Go(const v1::JobSpec& spec, const std::string& root,
                              const Layout& layout, int64_t kept_step, int64_t stop_at,
                              const std::set<int>& without = {}) {
    const auto change = [&](int rank, RunRequest& request) {
      if (kept_step > 0) {
        request.in_memory = InMemory(kept_step, without.count(rank) == 0, room_);
      }
      // What it leaves is another file than what it takes.
      request.room_for_state = [this]() -> std::optional<RoomForState> {
        return RoomForState{.fd = next_.fd(), .bytes = room_, .stays = true};
      };
    };
    auto run = std::make_unique<OnRanks>(spec, root, layout, std::nullopt, change, stop_at);
    run->ExpectOk();
    memory_.Write(next_.Read());
    return run;
  }

  // What a rank is told of `memory_`, if its node has it.
  StateInMemory InMemory(int64_t step, bool here, int64_t room) const {
    return {.step = step,
            .take = [this, here] { return here ? memory_.Open() : FileDescriptor(); },
            .room = room};
  }

  static void ExpectSame(const OnRanks& found, const OnRanks& expected) {
    ASSERT_FALSE(found.seen.checkpoints.empty());
    ExpectSameState(found.seen.checkpoints.back(), expected.seen.checkpoints.back());
    EXPECT_EQ(found.seen.TrainLosses(), LastOf(expected.seen.TrainLosses(), found));
    EXPECT_THAT(found.seen.warnings, IsEmpty());
  }

  TempFolder folder_;
  Memory memory_, next_;
  int64_t room_ = kPlenty;
};

const Family kGpt = {"gpt", ""};

TEST_F(KeptStateRun, AnyLayoutGoesOnFromMemoryWithTheSameBits) {
  v1::JobSpec spec = Spec(kGpt, 8);
  spec.mutable_training()->clear_ema_decay();  // PARAMETERS has no averages
  const OnRanks whole(spec, Root("whole"), 1);
  v1::JobSpec by_parameter = spec, by_owner = spec;
  by_parameter.mutable_parallel()->set_shard(v1::Parallel::PARAMETERS);
  by_owner.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);

  const auto first = Go(by_parameter, Root("moved"), {.ranks = 4}, 0, 2);
  ASSERT_TRUE(first->results[0].kept && first->results[0].suspended);
  EXPECT_THAT(first->seen.checkpoints, IsEmpty());
  // Ranks 1 and 2 are on another node, in so far as they have to be sent it.
  const auto second = Go(by_owner, Root("moved"), {.ranks = 3}, 2, 5, {1, 2});
  EXPECT_EQ(second->seen.restored_step, 2);
  EXPECT_EQ(second->seen.restored_uri, "");
  ASSERT_THAT(second->seen.checkpoints, SizeIs(1)) << "beside training";
  EXPECT_EQ(second->seen.checkpoints[0].step, 3);
  EXPECT_EQ(second->results[0].step, 5);
  const auto last = Go(spec, Root("moved"), {.ranks = 1}, 5, -1);
  EXPECT_EQ(last->seen.restored_step, 5);
  EXPECT_FALSE(last->results[0].kept);
  ExpectSame(*last, whole);
}

// Of the ranks of an agent one receives the state, and the others need no way to its memory.
TEST_F(KeptStateRun, RanksOfAnAgentShareTheFileThatTheStateIsReceivedIn) {
  v1::JobSpec spec = Spec(kGpt, 6);
  const OnRanks whole(spec, Root("whole"), 1);
  Go(spec, Root("moved"), {.ranks = 1}, 0, 3);
  Memory received;
  const auto change = [&](int rank, RunRequest& request) {
    request.in_memory = InMemory(3, true, kPlenty);
    if (rank > 0) request.in_memory->take = [&] { return received.Open(); };
  };
  OnRanks run(spec, Root("moved"), Layout{.ranks = 3}, std::nullopt, change);
  run.ExpectOk();
  EXPECT_EQ(received.Read(), memory_.Read());
  ExpectSame(run, whole);
}

TEST_F(KeptStateRun, SoDoShardsAndStages) {
  v1::JobSpec spec = Spec(kGpt, 6);
  spec.mutable_parallel()->set_tensor(2);
  spec.mutable_parallel()->set_pipeline(2);
  const OnRanks whole(spec, Root("whole"), Layout{.ranks = 2, .sharing = 2});
  Go(spec, Root("moved"), {.ranks = 4, .sharing = 2, .stages = 2}, 0, 2);
  Go(spec, Root("moved"), {.ranks = 4, .sharing = 2}, 2, 3, {0, 3});
  ExpectSame(*Go(spec, Root("moved"), {.ranks = 2, .sharing = 1, .stages = 2}, 3, -1), whole);
}

TEST_F(KeptStateRun, SoDoRunningStatisticsAndTables) {
  for (const Family& family :
       {Family{"resnet", "model { resnet { depth: 18 stem: CIFAR width: 4 } }", Family::kImages},
        Family{"dlrm", "model { dlrm { embedding_width: 4 bottom: 8 top: 6 } }",
               Family::kClicks}}) {
    SCOPED_TRACE(family.name);
    const v1::JobSpec spec = Spec(family, 4);
    const OnRanks whole(spec, Root(absl::StrCat("whole ", family.name)), 1);
    Go(spec, Root(family.name), {.ranks = 2}, 0, 1);
    ExpectSame(*Go(spec, Root(family.name), {.ranks = 4}, 1, -1, {0, 1, 2}), whole);
  }
}

// A step is on its way behind the one after which it is told to stop; fp16 has a scale of the loss.
TEST_F(KeptStateRun, SoDoesADeviceThatComputesWhileTheHostGoesOn) {
  for (const v1::Precision::Compute compute : {v1::Precision::FP32, v1::Precision::FP16}) {
    v1::JobSpec spec = Spec(kGpt, 9);
    spec.mutable_resources()->set_min_slots(1);
    spec.mutable_precision()->set_compute(compute);
    const std::string root = Root(absl::StrCat("late ", compute));
    LateDevice device(1);
    RecordingObserver whole, first, second;
    ASSERT_TRUE(RunOn(device, spec, root + " whole", whole).ok());
    first.stop_at = 4;
    RunRequest request = RequestFor(spec, root, std::nullopt, 1, nullptr);
    request.room_for_state = [this] { return RoomForState{next_.fd(), kPlenty, true}; };
    const auto left = engine::Run(device, request, first, first.stop);
    ASSERT_TRUE(left.ok()) << left.status();
    ASSERT_TRUE(left->kept);
    memory_.Write(next_.Read());
    request.in_memory = InMemory(left->step, true, kPlenty);
    const auto ended = engine::Run(device, request, second, second.stop);
    ASSERT_TRUE(ended.ok()) << ended.status();
    EXPECT_EQ(second.restored_step, left->step);
    EXPECT_EQ(second.checkpoints.back().manifest_sha256, whole.checkpoints.back().manifest_sha256);
  }
}

// Asked to stop before it made a step, it has what no checkpoint holds.
TEST_F(KeptStateRun, IsLeftOnByARunThatMadeNoStep) {
  const v1::JobSpec spec = Spec(kGpt, 6);
  const OnRanks whole(spec, Root("whole"), 1);
  Go(spec, Root("moved"), {.ranks = 2}, 0, 3);
  const auto change = [&](int rank, RunRequest& request) {
    request.in_memory = InMemory(3, true, room_);
    if (rank == 0) request.room_for_state = [&] { return RoomForState{next_.fd(), kPlenty, true}; };
  };
  RecordingObserver observer;
  observer.stop = true;
  const auto device = kernels::OpenCpu(1).value();
  RunRequest request = RequestFor(spec, Root("moved"), std::nullopt, 1, nullptr);
  change(0, request);
  request.spec.mutable_resources()->set_min_slots(1);
  const auto stopped = engine::Run(*device, request, observer, observer.stop);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_TRUE(stopped->kept);
  memory_.Write(next_.Read());
  ExpectSame(*Go(spec, Root("moved"), {.ranks = 2}, 3, -1), whole);
}

// Rank 0's node is drained: the state goes to the first rank whose node stays and has memory for
// it.
TEST_F(KeptStateRun, IsLeftWithARankWhoseNodeStays) {
  const v1::JobSpec spec = Spec(kGpt, 6);
  const OnRanks whole(spec, Root("whole"), 1);
  Memory at[4];
  const auto leave = [&](const std::string& root, const std::vector<RoomForState>& rooms) {
    const auto change = [&](int rank, RunRequest& request) {
      request.room_for_state = [&, rank]() -> std::optional<RoomForState> {
        RoomForState room = rooms[rank];
        room.fd = at[rank].fd();
        return room;
      };
    };
    return std::make_unique<OnRanks>(spec, Root(root), Layout{.ranks = 4}, std::nullopt, change, 3);
  };
  const RoomForState leaves{.bytes = kPlenty}, small{.bytes = 4096, .stays = true},
      stays{.bytes = kPlenty, .stays = true};
  const auto none = leave("none", {leaves, leaves, small, small});
  none->ExpectOk();
  EXPECT_FALSE(none->results[0].kept);
  EXPECT_THAT(none->seen.checkpoints, SizeIs(1));
  ASSERT_THAT(none->seen.notices, SizeIs(1));
  EXPECT_THAT(none->seen.notices[0], HasSubstr("left in memory: a packed folder may have 4096"));
  for (const Memory& memory : at) EXPECT_EQ(memory.Read(), "");

  const auto moved = leave("moved", {leaves, small, stays, stays});
  moved->ExpectOk();
  for (const RunResult& result : moved->results) EXPECT_TRUE(result.kept);
  EXPECT_THAT(moved->seen.checkpoints, IsEmpty());
  for (const int empty : {0, 1, 3}) EXPECT_EQ(at[empty].Read(), "") << empty;
  memory_.Write(at[2].Read());
  const int64_t step = moved->results[0].step;
  ExpectSame(*Go(spec, Root("moved"), {.ranks = 2}, step, -1, {0}), whole);
}

TEST(WishToLeave, OfARankIsWhatItWasToldAndWhatOthersSaid) {
  const RoomForState stays{.bytes = 1, .stays = true}, leaves{.bytes = 1};
  const auto wish = [](bool leads, std::optional<RoomForState> room, uint8_t before,
                       bool impatient) {
    return WishToLeave(leads, true, room, before, impatient);
  };
  for (const bool leads : {false, true}) {
    EXPECT_EQ(WishToLeave(leads, false, std::nullopt, kAskedToKeep | kCanKeep, false), 0);
    EXPECT_EQ(wish(leads, std::nullopt, 0, false), kStop) << "a checkpoint is written at once";
  }
  EXPECT_EQ(WishToLeave(true, false, std::nullopt, kAskedToKeep, true), kStop);
  EXPECT_EQ(WishToLeave(false, false, std::nullopt, kAskedToKeep, true), 0);
  EXPECT_EQ(wish(false, stays, 0, true), kAskedToKeep | kCanKeep);
  EXPECT_EQ(wish(false, leaves, kCanKeep, true), kAskedToKeep);
  EXPECT_EQ(wish(true, stays, 0, false), kStop | kAskedToKeep | kCanKeep);
  EXPECT_EQ(wish(true, leaves, 0, false), kAskedToKeep);
  EXPECT_EQ(wish(true, leaves, kCanKeep, false), kStop | kAskedToKeep);
  EXPECT_EQ(wish(true, leaves, 0, true), kStop | kAskedToKeep);
}

// What nobody needs any more is freed: of what a run takes nothing is open once it trains.
TEST_F(KeptStateRun, IsNotHeldByARunThatHasIt) {
  v1::JobSpec spec = Spec(kGpt, 6);
  Go(spec, Root("moved"), {.ranks = 2}, 0, 3);
  const auto held = [] {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      files += target.find("memfd:") != std::string::npos ? 1 : 0;
    }
    return files;
  };
  struct Counting : RecordingObserver {
    absl::Status OnMetrics(int64_t step, Split split,
                           const std::map<std::string, double>& values) override {
      open = count();
      return RecordingObserver::OnMetrics(step, split, values);
    }
    std::function<int()> count;
    int open = -1;
  } seen;
  seen.count = held;
  const int before = held();
  RunRequest request = RequestFor(spec, Root("moved"), std::nullopt, 1, nullptr);
  request.spec.mutable_resources()->set_min_slots(1);
  request.in_memory = InMemory(3, true, kPlenty);
  const auto device = kernels::OpenCpu(1).value();
  const auto result = engine::Run(*device, request, seen, seen.stop);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(seen.restored_step, 3);
  EXPECT_EQ(seen.open, before);
}

// The agents of a gang are told to let it leave one after the other.
TEST_F(KeptStateRun, AGangGoesOnUntilRankZeroKnowsWhereToLeaveItsState) {
  for (const int64_t told_after : {int64_t{4}, int64_t{-1}}) {
    SCOPED_TRACE(told_after);
    const bool told = told_after > 0;
    v1::JobSpec spec = Spec(kGpt, 1'000'000);
    spec.mutable_resources()->set_min_slots(2);
    spec.mutable_evaluation()->clear_every_steps();
    RecordingObserver seen[2];
    seen[0].stop_at = told_after;
    seen[1].stop = true;
    RunResult results[2];
    InThreads(2, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      RunRequest request = RequestFor(spec, Root("told"), std::nullopt, 1, &communicator);
      request.keep_patience = told ? absl::InfiniteDuration() : absl::Milliseconds(1);
      request.room_for_state = [&, rank]() -> std::optional<RoomForState> {
        if (rank == 0 && !seen[0].stop) return std::nullopt;
        return RoomForState{.fd = next_.fd(), .bytes = kPlenty, .stays = true};
      };
      const auto device = kernels::OpenCpu(1).value();
      const auto result = engine::Run(*device, request, seen[rank], seen[rank].stop);
      ASSERT_TRUE(result.ok()) << result.status();
      results[rank] = *result;
    });
    EXPECT_EQ(results[0].step, results[1].step);
    EXPECT_TRUE(results[0].suspended);
    EXPECT_EQ(results[0].kept, told);
    EXPECT_THAT(seen[0].checkpoints, SizeIs(told ? 0 : 1)) << "after it has waited long enough";
    EXPECT_GE(results[0].step, told ? told_after : 1);
  }
}

TEST_F(KeptStateRun, ACheckpointIsWrittenWhereMemoryIsShort) {
  const v1::JobSpec spec = Spec(kGpt, 6);
  room_ = 4096;
  const auto first = Go(spec, Root("short"), {.ranks = 2}, 0, 3);
  EXPECT_FALSE(first->results[0].kept);
  EXPECT_TRUE(first->results[0].suspended);
  ASSERT_THAT(first->seen.checkpoints, SizeIs(1));
  ASSERT_THAT(first->seen.notices, SizeIs(1));
  EXPECT_THAT(first->seen.notices[0],
              HasSubstr("writes a checkpoint, since its state cannot be left in memory: a packed "
                        "folder may have 4096 bytes here"));
  EXPECT_EQ(memory_.Read(), "");
}

// What cannot be used is told, and the newest checkpoint serves.
TEST_F(KeptStateRun, WhatIsGoneOrDamagedIsMadeAgain) {
  v1::JobSpec spec = Spec(kGpt, 6);
  const OnRanks whole(spec, Root("whole"), 1);
  Go(spec, Root("left"), {.ranks = 2}, 0, 3);
  const std::string state = memory_.Read();
  const auto go_on = [&](const std::set<int>& without, int64_t room) {
    const auto change = [&, room](int rank, RunRequest& request) {
      request.in_memory = InMemory(3, without.count(rank) == 0, room);
    };
    OnRanks run(spec, Root(absl::StrCat("again ", RandomHex(4))), Layout{.ranks = 2}, std::nullopt,
                change);
    run.ExpectOk();
    EXPECT_EQ(run.seen.restored_step, 0);
    EXPECT_EQ(run.seen.TrainLosses(), whole.seen.TrainLosses());
    EXPECT_EQ(run.seen.warnings.size(), 1u);
    return run.seen.warnings.empty() ? "" : run.seen.warnings[0];
  };
  EXPECT_EQ(go_on({0, 1}, kPlenty),
            "the state of step 3, which was left in memory, cannot be used: no node has it any "
            "more; the steps since the newest checkpoint are made again");
  EXPECT_THAT(go_on({1}, 4096), HasSubstr("rank 1 has no memory for its "));
  for (const std::string& damaged : {state.substr(0, state.size() / 2), state.substr(1),
                                     std::string(100, '\0'), std::string("TYFOLDER")}) {
    memory_.Write(damaged);
    EXPECT_THAT(go_on({}, kPlenty), HasSubstr("no node has it any more"));
  }
}

TEST_F(KeptStateRun, TheStateOfAnotherStepIsNotTaken) {
  const v1::JobSpec spec = Spec(kGpt, 6);
  Go(spec, Root("left"), {.ranks = 2}, 0, 3);
  const auto taken = TakeState(Gang(), InMemory(4, true, kPlenty));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_FALSE(taken->checkpoint.has_value());
}

// One rank of each node receives it, by way of others.
TEST_F(KeptStateRun, ReachesEveryNodeThroughTheTree) {
  const v1::JobSpec spec = Spec(kGpt, 6);
  Go(spec, Root("left"), {.ranks = 2}, 0, 3);
  constexpr int kRanks = 7;
  for (const int holder : {0, 3, 6}) {
    for (const bool one_node : {true, false}) {
      const auto meetings = LocalRendezvous(kRanks);
      ASSERT_TRUE(meetings.ok()) << meetings.status();
      std::vector<std::thread> threads;
      for (Rendezvous mine : *meetings) {
        mine.version = "test";
        mine.allow_shared_memory = one_node;
        threads.emplace_back([&, mine] {
          const auto met = Meet(mine);
          ASSERT_TRUE(met.ok()) << met.status();
          const auto taken = TakeState(Gang(met->get()), InMemory(3, mine.rank == holder, kPlenty));
          ASSERT_TRUE(taken.ok()) << taken.status();
          ASSERT_TRUE(taken->checkpoint.has_value()) << taken->why_not;
          EXPECT_EQ(taken->checkpoint->step, 3);
          const int64_t sent = (*met)->bytes_sent();
          const auto size = static_cast<int64_t>(memory_.Read().size());
          EXPECT_LT(sent, 2 * size + 65536) << "to two others at most";
          if (mine.rank == holder) {
            EXPECT_GT(sent, one_node ? size : 2 * size);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

}  // namespace
}  // namespace trainyard::engine
