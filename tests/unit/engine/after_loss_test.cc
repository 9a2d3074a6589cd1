// Gangs that lose a rank in the middle of a step: the others leave their state in memory, and the
// next attempt goes on from there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/engine/fault.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/memory_file.h"
#include "tests/unit/engine/on_ranks.h"
#include "tests/unit/engine/wrapped_communicator.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 3;

// Makes its exchanges until exchange number `last`, with which its rank is lost; 0: it is not.
class MortalCommunicator : public WrappedCommunicator {
 public:
  MortalCommunicator(Communicator& real, int64_t last)
      : WrappedCommunicator(real), real_(real), last_(last) {}

  absl::Status Exchange(absl::Span<const Transfer> transfers) override {
    if (++made_ == last_) {
      Abort(absl::UnavailableError(absl::StrCat("the process of ", name(rank()), " has ended")));
    }
    return WrappedCommunicator::Exchange(transfers);
  }
  bool shares_memory(int rank) const override { return real_.shares_memory(rank); }

  int64_t made() const { return made_; }

 private:
  Communicator& real_;
  const int64_t last_;
  int64_t made_ = 0;
};

using Point = std::pair<int64_t, RunObserver::Split>;

// The losses of what was reported, each point once, up to step `last`.
void AddLosses(const RecordingObserver& seen, int64_t last, std::map<Point, double>& to) {
  for (const RecordingObserver::Metrics& m : seen.metrics) {
    if (m.step <= last) to.emplace(Point{m.step, m.split}, m.values.at("loss"));
  }
}

// What three ranks saw, of which one was lost.
struct BrokenGang {
  RecordingObserver seen[kRanks];
  Memory memory[kRanks];
  absl::Status ended[kRanks];
  int64_t exchanges = 0;  // of the rank that is lost

  // The newest state that was left; 0: none.
  int64_t kept() const {
    int64_t newest = 0;
    for (const RecordingObserver& one : seen) {
      if (one.finished.kept) newest = std::max(newest, one.finished.step);
    }
    return newest;
  }
};

class AfterLoss : public testing::Test {
 protected:
  v1::JobSpec Spec(const Family& family, int64_t steps) const {
    v1::JobSpec spec = SmallJob(family, folder_.path(), steps);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_resources()->set_min_slots(kRanks);
    spec.mutable_training()->set_batch_size(8);
    spec.mutable_training()->set_micro_batch_size(2);
    spec.mutable_training()->set_log_every(1);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_parallel()->set_logical_ranks(4);
    spec.mutable_parallel()->set_second_owner(true);
    spec.mutable_evaluation()->set_every_steps(2);
    return spec;
  }

  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }

  // Rank `lost` is lost at its exchange number `at`. The others are asked for their state.
  std::unique_ptr<BrokenGang> Break(const v1::JobSpec& spec, const std::string& root, int lost,
                                    int64_t at) const {
    auto gang = std::make_unique<BrokenGang>();
    InThreads(kRanks, [&](Communicator& real) {
      const int rank = real.rank();
      gang->ended[rank] = real.Barrier();  // all have met
      if (!gang->ended[rank].ok()) return;
      MortalCommunicator communicator(real, rank == lost ? at : 0);
      const auto device = kernels::OpenCpu(1).value();
      RunRequest request = RequestFor(spec, root, std::nullopt, 1, &communicator);
      if (rank != lost) {
        request.room_for_state = [&gang, rank]() -> std::optional<RoomForState> {
          if (gang->seen[rank].left_alone.ok()) return std::nullopt;
          return RoomForState{
              .fd = gang->memory[rank].fd(), .bytes = kPlenty, .stays = true, .alone = true};
        };
      }
      gang->ended[rank] =
          engine::Run(*device, request, gang->seen[rank], gang->seen[rank].stop).status();
      if (rank == lost) gang->exchanges = communicator.made();
    });
    return gang;
  }

  // The job goes on from what was left, or from its beginning, on other ranks: with the bits and
  // the metrics of `whole`.
  void ExpectGoesOn(const v1::JobSpec& spec, const std::string& root, const BrokenGang& gang,
                    const OnRanks& whole) const {
    const int64_t kept = gang.kept();
    const auto change = [&](int rank, RunRequest& request) {
      if (kept == 0) return;
      request.in_memory = {.step = kept,
                           .take = [&gang, rank] { return gang.memory[rank].Open(); },
                           .room = kPlenty};
    };
    const OnRanks next(spec, root, Layout{.ranks = kRanks}, std::nullopt, change);
    next.ExpectOk();
    EXPECT_EQ(next.seen.restored_step, kept);
    EXPECT_THAT(next.seen.warnings, IsEmpty());
    ASSERT_FALSE(next.seen.checkpoints.empty());
    ExpectSameState(next.seen.checkpoints.back(), whole.seen.checkpoints.back());
    std::map<Point, double> losses, of_whole;
    for (const RecordingObserver& seen : gang.seen) AddLosses(seen, kept, losses);
    AddLosses(next.seen, whole.seen.total_steps, losses);
    AddLosses(whole.seen, whole.seen.total_steps, of_whole);
    EXPECT_EQ(losses, of_whole);
  }

  // Rank `lost` is lost at every `stride`-th exchange in [first, end) that it makes, and the job
  // goes on. Returns how often a state was left.
  int LoseRanksAt(int64_t first, int64_t end, int64_t stride, int lost, const v1::JobSpec& spec,
                  const OnRanks& whole) const {
    int left = 0;
    for (int64_t at = first; at < end; at += stride) {
      SCOPED_TRACE(at);
      const std::string root = Root(absl::StrCat("lost ", at));
      const auto gang = Break(spec, root, lost, at);
      if (gang->exchanges < at) break;  // it had done its work
      left += gang->kept() > 0 ? 1 : 0;
      ExpectGoesOn(spec, root, *gang, whole);
      if (HasFailure()) break;
    }
    return left;
  }

  TempFolder folder_;
};

// At every exchange that it makes. Whatever the others had done is there: at most the step is made
// again that some of them had not done.
TEST_F(AfterLoss, TheOthersLeaveTheirStateWheneverARankIsLost) {
  const Family families[] = {
      {"gpt", ""},
      {"dlrm", "model { dlrm { embedding_width: 4 bottom: 8 top: 6 } }", Family::kClicks}};
  for (const int lost : {0, 1}) {
    const Family& family = families[lost];
    const v1::JobSpec spec = Spec(family, 3);
    const OnRanks whole(spec, Root(absl::StrCat("whole ", family.name)), Layout{.ranks = kRanks});
    whole.ExpectOk();
    for (int64_t at = 1;; ++at) {
      SCOPED_TRACE(absl::StrCat(family.name, ", rank ", lost, ", exchange ", at));
      const std::string root = Root(absl::StrCat(family.name, " ", at));
      const auto gang = Break(spec, root, lost, at);
      if (gang->exchanges < at) break;  // it had done its work
      int64_t told = 0;                 // by rank 0
      for (const auto& m : gang->seen[0].metrics) told = std::max(told, m.step);
      EXPECT_GE(gang->kept(), lost == 0 ? told - 1 : told);
      EXPECT_LE(gang->kept(), told + 1);
      for (const absl::Status& ended : gang->ended) EXPECT_FALSE(ended.ok());
      ExpectGoesOn(spec, root, *gang, whole);
      if (HasFailure()) return;
    }
  }
}

// The update is followed by an exchange of moments: a rank that is left in between has no whole
// state, and the job begins anew.
TEST_F(AfterLoss, RunningStatisticsAreWholeOrAreNotLeft) {
  v1::JobSpec spec =
      Spec({"resnet", "model { resnet { depth: 18 stem: CIFAR width: 4 } }", Family::kImages}, 3);
  const OnRanks whole(spec, Root("whole"), Layout{.ranks = kRanks});
  EXPECT_GT(LoseRanksAt(25, 65, 1, 2, spec, whole), 0);
}

// Of one of the best steps either the checkpoint is there, or the step is made again.
TEST_F(AfterLoss, TheBestStepsHaveTheirCheckpoints) {
  v1::JobSpec spec = Spec({"gpt", ""}, 6);
  spec.mutable_checkpoint()->mutable_best()->set_metric("loss");
  const OnRanks whole(spec, Root("whole"), Layout{.ranks = kRanks});
  whole.ExpectOk();
  EXPECT_GT(LoseRanksAt(20, 1'000, 5, 0, spec, whole), 0);
}

// The server has lost a node that the other ranks still reach.
TEST_F(AfterLoss, AGangIsBrokenByTheOneThatIsToldSo) {
  struct Telling : RecordingObserver {
    absl::Status OnMetrics(int64_t step, Split split,
                           const std::map<std::string, double>& values) override {
      if (step == 3 && told != nullptr) told->stop = true;
      return RecordingObserver::OnMetrics(step, split, values);
    }
    RecordingObserver* told = nullptr;
  } seen[2];
  seen[0].told = &seen[1];
  const v1::JobSpec spec = Spec({"gpt", ""}, 1'000'000);
  Memory memory;
  InThreads(2, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    RunRequest request = RequestFor(spec, Root("told"), std::nullopt, 1, &communicator);
    request.spec.mutable_resources()->set_min_slots(2);
    request.loss_patience = absl::ZeroDuration();  // of rank 0, which nobody asks
    request.room_for_state = [&, rank]() -> std::optional<RoomForState> {
      if (rank == 0 || !seen[1].stop) return std::nullopt;
      return RoomForState{.fd = memory.fd(), .bytes = kPlenty, .stays = true, .alone = true};
    };
    const auto device = kernels::OpenCpu(1).value();
    const absl::Status ended = engine::Run(*device, request, seen[rank], seen[rank].stop).status();
    EXPECT_EQ(FaultOf(ended), Fault::kGang) << ended;
    EXPECT_THAT(std::string(ended.message()), HasSubstr("counts another rank of the gang as lost"));
  });
  EXPECT_TRUE(seen[1].finished.kept);
  EXPECT_GE(seen[1].finished.step, 3);
  EXPECT_NE(memory.Read(), "");
  EXPECT_FALSE(seen[0].finished.kept);
  EXPECT_THAT(seen[0].checkpoints, IsEmpty());
}

// The job did not ask for it, or nothing is new.
TEST_F(AfterLoss, NothingIsLeftWhereItWouldBeOfNoUse) {
  v1::JobSpec unasked = Spec({"gpt", ""}, 3);
  unasked.mutable_parallel()->clear_second_owner();
  const auto gang = Break(unasked, Root("unasked"), 1, 60);
  EXPECT_FALSE(gang->ended[0].ok());
  EXPECT_EQ(FaultOf(gang->ended[0]), Fault::kGang);
  EXPECT_TRUE(gang->seen[0].left_alone.ok());
  EXPECT_EQ(gang->kept(), 0);
  const auto early = Break(Spec({"gpt", ""}, 3), Root("early"), 1, 1);
  EXPECT_TRUE(early->seen[0].left_alone.ok());
}

TEST_F(AfterLoss, ARankThatIsNotAskedInTimeEndsWithoutLeavingAnything) {
  const v1::JobSpec spec = Spec({"gpt", ""}, 1'000'000);
  RecordingObserver seen[2];
  InThreads(2, [&](Communicator& real) {
    const int rank = real.rank();
    ASSERT_TRUE(real.Barrier().ok()) << "all have met";
    MortalCommunicator communicator(real, rank == 1 ? 100 : 0);
    const auto device = kernels::OpenCpu(1).value();
    RunRequest request = RequestFor(spec, Root("late"), std::nullopt, 1, &communicator);
    request.spec.mutable_resources()->set_min_slots(2);
    request.room_for_state = []() -> std::optional<RoomForState> { return std::nullopt; };
    request.loss_patience = absl::Milliseconds(20);
    const absl::Status ended = engine::Run(*device, request, seen[rank], seen[rank].stop).status();
    EXPECT_EQ(FaultOf(ended), Fault::kGang) << ended;
  });
  EXPECT_THAT(std::string(seen[0].left_alone.message()), HasSubstr("has ended"));
  EXPECT_FALSE(seen[0].finished.kept);
  EXPECT_THAT(seen[0].notices, ElementsAre(HasSubstr("nobody asked for it within 20ms")));
}

}  // namespace
}  // namespace trainyard::engine
