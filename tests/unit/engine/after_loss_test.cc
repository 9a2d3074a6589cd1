// Gangs that lose a rank in the middle of a step: the others leave their state in memory, and the
// next attempt goes on from there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "executor/engine/fault.h"
#include "executor/engine/survivors.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/memory_file.h"
#include "tests/unit/engine/on_ranks.h"
#include "tests/unit/engine/wrapped_communicator.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 3;  // of gangs of which every rank has the whole state

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

// Which of the ranks that are left has said so, or has ended, as a server knows it.
class Muster {
 public:
  explicit Muster(int ranks) : known_(ranks) {}

  void Set(int rank, bool left) {
    absl::MutexLock lock(&mu_);
    if (!known_[rank]) known_[rank] = left;
  }
  // Once all have.
  std::vector<int> Survivors() const {
    absl::MutexLock lock(&mu_);
    std::vector<int> left;
    for (size_t rank = 0; rank < known_.size(); ++rank) {
      if (!known_[rank]) return {};
      if (*known_[rank]) left.push_back(static_cast<int>(rank));
    }
    return left;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::optional<bool>> known_;
};

struct MusteredObserver : RecordingObserver {
  absl::Status OnLeftAlone(const absl::Status& why, int64_t told_after) override {
    muster->Set(rank, true);
    return RecordingObserver::OnLeftAlone(why, told_after);
  }
  Muster* muster = nullptr;
  int rank = 0;
};

// What its ranks saw, of which some were lost.
struct BrokenGang {
  explicit BrokenGang(int ranks) : muster(ranks), seen(ranks), memory(ranks), ended(ranks) {
    for (int rank = 0; rank < ranks; ++rank) seen[rank].muster = &muster, seen[rank].rank = rank;
  }
  Muster muster;
  std::vector<MusteredObserver> seen;
  std::vector<Memory> memory;
  std::vector<absl::Status> ended;
  int64_t exchanges = 0;         // of the first rank that is lost
  std::atomic<int> misled = -1;  // a rank

  // Whom rank `rank` is told of, which may be `misled` once: as if all others but the first were
  // gone.
  std::vector<int> ToldTo(int rank) {
    std::vector<int> told = muster.Survivors();
    if (told.empty() || misled != rank) return told;
    misled = -1;
    return {told.front(), rank};
  }

  int64_t told() const {  // by rank 0
    int64_t step = 0;
    for (const auto& m : seen[0].metrics) step = std::max(step, m.step);
    return step;
  }

  // What rank `rank` of the next gang, of `ranks`, takes from its node: that of a node with several
  // ranks, if there are fewer now.
  FileDescriptor TakeFor(int rank, int ranks) const {
    for (size_t of = rank; of < seen.size(); of += ranks) {
      if (seen[of].finished.kept) return memory[of].Open();
    }
    return memory[rank].Open();
  }

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
  v1::JobSpec Spec(const Family& family, int64_t steps, int ranks = kRanks) const {
    v1::JobSpec spec = SmallJob(family, folder_.path(), steps);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_resources()->set_min_slots(ranks);
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

  // The first rank of `lost` is lost at its exchange number `at`, and the others with it. Those
  // that are left are asked for their state.
  std::unique_ptr<BrokenGang> Break(const v1::JobSpec& spec, const std::string& root,
                                    const std::vector<int>& lost, int64_t at,
                                    int misled = -1) const {
    const int ranks = spec.resources().min_slots();
    auto gang = std::make_unique<BrokenGang>(ranks);
    gang->misled = misled;
    InThreads(ranks, [&](Communicator& real, const Rendezvous& rendezvous) {
      const int rank = real.rank();
      gang->ended[rank] = real.Barrier();  // all have met
      if (!gang->ended[rank].ok()) return;
      MortalCommunicator communicator(real, rank == lost[0] ? at : 0);
      const auto device = kernels::OpenCpu(1).value();
      RunRequest request = RequestFor(spec, root, std::nullopt, 1, &communicator);
      if (std::count(lost.begin(), lost.end(), rank) == 0) {
        request.room_for_state = [&gang, rank]() -> std::optional<RoomForState> {
          if (gang->seen[rank].left_alone.ok()) return std::nullopt;
          return RoomForState{.fd = gang->memory[rank].fd(),
                              .bytes = kPlenty + rank,  // the last has most room
                              .stays = true,
                              .alone = true,
                              .survivors = gang->ToldTo(rank)};
        };
        request.meet_survivors = [&rendezvous](const std::vector<int>& survivors) {
          return MeetSurvivors(rendezvous, survivors);
        };
      }
      gang->ended[rank] =
          engine::Run(*device, request, gang->seen[rank], gang->seen[rank].stop).status();
      gang->muster.Set(rank, false);
      if (rank == lost[0]) gang->exchanges = communicator.made();
    });
    return gang;
  }

  // The job goes on from what was left, or from its beginning, on `next_ranks_`: with the bits and
  // the metrics of `whole`.
  void ExpectGoesOn(const v1::JobSpec& spec, const std::string& root, const BrokenGang& gang,
                    const OnRanks& whole) const {
    const int64_t kept = gang.kept();
    const auto change = [&](int rank, RunRequest& request) {
      if (kept == 0) return;
      request.in_memory = {.step = kept,
                           .take = [&gang, rank, this] { return gang.TakeFor(rank, next_ranks_); },
                           .room = kPlenty};
    };
    const OnRanks next(spec, root, Layout{.ranks = next_ranks_}, std::nullopt, change);
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
  int LoseRanksAt(int64_t first, int64_t end, int64_t stride, const std::vector<int>& lost,
                  const v1::JobSpec& spec, const OnRanks& whole) const {
    int left = 0;
    for (int64_t at = first; at < end; at += stride) {
      SCOPED_TRACE(at);
      const std::string root = Root(absl::StrCat("lost ", at));
      const auto gang = Break(spec, root, lost, at);
      if (gang->exchanges < at) break;  // it had done its work
      left += gang->kept() > 0 ? 1 : 0;
      const bool sharded = spec.parallel().shard() != v1::Parallel::SHARD_UNSPECIFIED;
      if (sharded || (lost[0] != 0 && !spec.checkpoint().has_best())) {
        EXPECT_GE(gang->kept(), gang->told()) << "no step that anybody has made is made again";
      }
      ExpectGoesOn(spec, root, *gang, whole);
      if (HasFailure()) break;
    }
    return left;
  }

  TempFolder folder_;
  int next_ranks_ = kRanks;
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
      const auto gang = Break(spec, root, {lost}, at);
      if (gang->exchanges < at) break;  // it had done its work
      const int64_t told = gang->told();
      EXPECT_GE(gang->kept(), lost == 0 ? told - 1 : told);
      EXPECT_LE(gang->kept(), told + 1);
      for (const absl::Status& ended : gang->ended) EXPECT_FALSE(ended.ok());
      ExpectGoesOn(spec, root, *gang, whole);
      if (HasFailure()) return;
    }
  }
}

// The update also moves buffers by moments that are exchanged before.
TEST_F(AfterLoss, RunningStatisticsAreLeft) {
  v1::JobSpec spec =
      Spec({"resnet", "model { resnet { depth: 18 stem: CIFAR width: 4 } }", Family::kImages}, 3);
  const OnRanks whole(spec, Root("whole"), Layout{.ranks = kRanks});
  EXPECT_GT(LoseRanksAt(25, 65, 1, {2}, spec, whole), 0);
}

// Of one of the best steps either the checkpoint is there, or the step is made again.
TEST_F(AfterLoss, TheBestStepsHaveTheirCheckpoints) {
  v1::JobSpec spec = Spec({"gpt", ""}, 6);
  spec.mutable_checkpoint()->mutable_best()->set_metric("loss");
  const OnRanks whole(spec, Root("whole"), Layout{.ranks = kRanks});
  whole.ExpectOk();
  EXPECT_GT(LoseRanksAt(20, 1'000, 5, {0}, spec, whole), 0);
}

// Where each rank has a share, of which there is a second owner: whichever exchange it was, and
// also if the two neighbours are lost of which one has made a step and the other has not.
class AfterLossOfShares : public AfterLoss {
 protected:
  v1::JobSpec Sharded(v1::Parallel::Shard shard, const Family& family, int ranks = 4) const {
    v1::JobSpec spec = Spec(family, 3, ranks);
    spec.mutable_parallel()->set_shard(shard);
    if (shard == v1::Parallel::PARAMETERS) spec.mutable_training()->clear_ema_decay();
    return spec;
  }
  // Loses `lost` at every stride-th exchange.
  void ExpectLeft(const v1::JobSpec& spec, const std::vector<int>& lost, int64_t stride) const {
    const OnRanks whole(spec, Root("whole"), Layout{.ranks = spec.resources().min_slots()});
    whole.ExpectOk();
    v1::JobSpec alone = spec;
    alone.mutable_parallel()->clear_second_owner();
    alone.mutable_parallel()->clear_shard();
    const OnRanks one(alone, Root("alone"), Layout{.ranks = 1});
    ExpectSameState(whole.seen.checkpoints.back(), one.seen.checkpoints.back());
    EXPECT_GT(LoseRanksAt(1, 10'000, stride, lost, spec, whole), 0);
  }
};

TEST_F(AfterLossOfShares, OfTheOptimizer) {
  next_ranks_ = 4;
  ExpectLeft(Sharded(v1::Parallel::OPTIMIZER, {"gpt", ""}), {1}, 2);
}

TEST_F(AfterLossOfShares, OfGradients) {
  ExpectLeft(Sharded(v1::Parallel::GRADIENTS, {"gpt", ""}), {0}, 3);
}

TEST_F(AfterLossOfShares, OfParameters) {
  next_ranks_ = 2;
  ExpectLeft(Sharded(v1::Parallel::PARAMETERS, {"gpt", ""}), {3}, 3);
}

TEST_F(AfterLossOfShares, OfTables) {
  const Family dlrm = {"dlrm", "model { dlrm { embedding_width: 4 bottom: 8 top: 6 } }",
                       Family::kClicks};
  ExpectLeft(Sharded(v1::Parallel::PARAMETERS, dlrm), {2}, 3);
}

// Half of an even number of ranks, neighbours, the last and the first among them; of an odd number
// as many.
TEST_F(AfterLossOfShares, OfNeighbours) {
  ExpectLeft(Sharded(v1::Parallel::OPTIMIZER, {"gpt", ""}), {1, 2}, 5);
}

TEST_F(AfterLossOfShares, OfTheFirstAndTheLast) {
  v1::JobSpec spec = Sharded(v1::Parallel::OPTIMIZER, {"gpt", ""}, 5);
  spec.mutable_training()->set_batch_size(16);
  spec.mutable_parallel()->set_logical_ranks(8);
  ExpectLeft(spec, {4, 0}, 7);
}

TEST_F(AfterLossOfShares, OfTwoOfThreeRanksThatEachHaveAll) {
  ExpectLeft(Sharded(v1::Parallel::OPTIMIZER, {"gpt", ""}, 3), {0, 1}, 3);
}

// Moments of batch norm, and matrices of which the optimizer takes the norm: some ranks have none.
TEST_F(AfterLossOfShares, WithRunningStatisticsAndWholeTensors) {
  v1::JobSpec spec = Sharded(
      v1::Parallel::OPTIMIZER,
      {"resnet", "model { resnet { depth: 18 stem: CIFAR width: 4 } } optimizer { lamb {} }",
       Family::kImages});
  ExpectLeft(spec, {2}, 11);
}

// Some rounds of logical ranks have none of some ranks; steps are skipped.
TEST_F(AfterLossOfShares, InUnevenRoundsOfHalfPrecision) {
  v1::JobSpec spec = Sharded(v1::Parallel::GRADIENTS, {"gpt", ""}, 5);
  spec.mutable_training()->set_batch_size(16);
  spec.mutable_parallel()->set_logical_ranks(8);
  spec.mutable_precision()->set_compute(v1::Precision::FP16);
  spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p40f);
  ExpectLeft(spec, {1}, 13);
}

TEST_F(AfterLossOfShares, NothingIsLeftOfAShareWithoutOwners) {
  const v1::JobSpec spec = Sharded(v1::Parallel::OPTIMIZER, {"gpt", ""});
  const auto gang = Break(spec, Root("both"), {1, 3}, 60);
  EXPECT_EQ(gang->kept(), 0);
  EXPECT_THAT(gang->seen[0].notices,
              ElementsAre(HasSubstr("both owners of a part of it were lost")));
  EXPECT_EQ(FaultOf(gang->ended[0]), Fault::kGang);
}

TEST_F(AfterLossOfShares, RanksThatWereToldOfOthersMeetOnceTheyAreToldOfTheSame) {
  const v1::JobSpec spec = Sharded(v1::Parallel::OPTIMIZER, {"gpt", ""});
  const auto gang = Break(spec, Root("misled"), {1}, 60, /*misled=*/3);
  EXPECT_GT(gang->kept(), 0);
  EXPECT_EQ(gang->misled, -1);
  for (const RecordingObserver& seen : gang->seen) EXPECT_THAT(seen.notices, IsEmpty());
}

TEST(ChooseSalvage, TakesTheNewestStepThatAllCanMake) {
  const auto chosen = [](std::vector<Remains> of_ranks) { return ChooseSalvage(of_ranks); };
  EXPECT_EQ(*chosen({{5, 0, 0}, {5, 0, 10}, {5, 0, 20}}), (Salvage{5, 2})) << "most room";
  EXPECT_EQ(*chosen({{4, 1, 90}, {5, 0, 10}}), (Salvage{5, 0}));
  EXPECT_EQ(*chosen({{4, 1, 10}, {5, 0, 10}}), (Salvage{5, 1}))
      << "it has made that step by itself";
  EXPECT_EQ(*chosen({{4, 1, 90}, {5, 0, 0}}), (Salvage{5, 0}));
  EXPECT_EQ(*chosen({{4, 1, 9}, {4, 1, 9}}), (Salvage{5, 0}))
      << "the one that is lost may have made 5";
  EXPECT_EQ(*chosen({{4, 1, 9}, {4, 0, 9}}), (Salvage{4, 0}));
  EXPECT_THAT(std::string(chosen({{4, 0, 9}, {5, 0, 9}}).status().message()),
              HasSubstr("can make no more than 4 steps, another one has made 5"));
  EXPECT_FALSE(chosen({{3, 1, 9}, {5, 0, 9}}).ok());
  EXPECT_THAT(std::string(chosen({{4, 0, 0}}).status().message()), HasSubstr("has memory for it"));
}

TEST(CheckSurvivors, WantsSomeOfTheGangInOrderAndTheRankItself) {
  EXPECT_TRUE(CheckSurvivors({1}, 1, 3).ok());
  EXPECT_TRUE(CheckSurvivors({0, 2}, 2, 3).ok());
  for (const std::vector<int>& bad :
       {std::vector<int>{}, {0}, {2, 1}, {1, 1}, {-1, 1}, {1, 3}, {0, 1, 2, 1}}) {
    EXPECT_EQ(CheckSurvivors(bad, 1, 3).code(), absl::StatusCode::kInvalidArgument);
  }
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
  const auto gang = Break(unasked, Root("unasked"), {1}, 60);
  EXPECT_FALSE(gang->ended[0].ok());
  EXPECT_EQ(FaultOf(gang->ended[0]), Fault::kGang);
  EXPECT_TRUE(gang->seen[0].left_alone.ok());
  EXPECT_EQ(gang->kept(), 0);
  const auto early = Break(Spec({"gpt", ""}, 3), Root("early"), {1}, 1);
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
