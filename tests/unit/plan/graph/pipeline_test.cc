#include "executor/plan/graph/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace trainyard::plan {
namespace {

using Action = StageAction::Kind;

bool IsPass(Action kind) {
  return kind == Action::kForward || kind == Action::kBackward || kind == Action::kBoth;
}

// Runs the actions of all stages as ranks do that wait for each other to send and to receive, and
// checks what they find.
class StagesAtWork {
 public:
  StagesAtWork(const Pipeline& pipeline, int64_t micro_batches) : pipeline_(pipeline) {
    for (int64_t stage = 0; stage < pipeline.stages; ++stage) {
      actions_.push_back(ActionsOf(pipeline, stage, micro_batches));
    }
    states_.resize(pipeline.pieces(), std::vector<State>(micro_batches));
    next_.resize(pipeline.stages);
  }

  // Until no stage can go on; the one with the last number first if `from_last`.
  void Run(bool from_last) {
    bool went_on = true;
    while (went_on) {
      went_on = false;
      for (int64_t i = 0; i < pipeline_.stages; ++i) {
        const int64_t stage = from_last ? pipeline_.stages - 1 - i : i;
        while (GoOn(stage)) went_on = true;
      }
    }
  }

  bool over() const {
    for (size_t stage = 0; stage < actions_.size(); ++stage) {
      if (next_[stage] < actions_[stage].size()) return false;
    }
    for (size_t piece = 0; piece < states_.size(); ++piece) {
      for (const State& state : states_[piece]) {
        if (!state.backward || (piece > 0 && !state.sent_before)) return false;
      }
    }
    return true;
  }

 private:
  struct State {
    bool received_forward = false, received_backward = false, forward = false, backward = false;
    bool sent_after = false, sent_before = false;
  };

  const StageAction* Next(int64_t stage) const {
    if (next_[stage] == actions_[stage].size()) return nullptr;
    return &actions_[stage][next_[stage]];
  }

  bool GoOn(int64_t stage) {
    const StageAction* const action = Next(stage);
    if (action == nullptr) return false;
    const int64_t piece = pipeline_.piece(action->chunk, stage);
    State& state = states_[piece][action->micro_batch];
    if (IsPass(action->kind)) {
      Pass(stage, *action, state);
      ++next_[stage];
      return true;
    }
    // A move is made when both ends are at it.
    const bool to_after = action->kind == Action::kSendToAfter;
    const bool to_before = action->kind == Action::kSendToBefore;
    if (!to_after && !to_before) return false;  // the sender makes it
    const int64_t other_piece = to_after ? piece + 1 : piece - 1;
    const int64_t other = pipeline_.stage_of(other_piece);
    const StageAction* const receives = Next(other);
    const Action expected = to_after ? Action::kReceiveFromBefore : Action::kReceiveFromAfter;
    if (receives == nullptr || receives->kind != expected) return false;
    EXPECT_EQ(receives->micro_batch, action->micro_batch);
    EXPECT_EQ(receives->chunk, pipeline_.chunk_of(other_piece));
    State& at_other = states_[other_piece][action->micro_batch];
    if (to_after) {
      EXPECT_TRUE(state.forward);
      state.sent_after = at_other.received_forward = true;
      Take(other, receives->flight, other_piece, action->micro_batch);
    } else {
      EXPECT_TRUE(state.backward);
      state.sent_before = at_other.received_backward = true;
      flights_[{stage, action->flight}].erase({piece, action->micro_batch});
    }
    ++next_[stage];
    ++next_[other];
    return true;
  }

  void Pass(int64_t stage, const StageAction& action, State& state) {
    const int64_t piece = pipeline_.piece(action.chunk, stage), last = pipeline_.pieces() - 1;
    EXPECT_EQ(action.kind == Action::kBoth, piece == last);
    if (action.kind != Action::kBackward) {
      EXPECT_TRUE(piece == 0 || state.received_forward);
      Take(stage, action.flight, piece, action.micro_batch);
      state.forward = true;
    }
    std::set<int64_t>& batches = batches_[{stage, action.batch}];
    if (action.kind != Action::kBackward && action.chunk == 0) batches.insert(action.micro_batch);
    EXPECT_THAT(batches, ::testing::ElementsAre(action.micro_batch));
    if (action.kind == Action::kForward) return;
    EXPECT_TRUE(state.forward);
    EXPECT_TRUE(piece == last || (state.received_backward && state.sent_after));
    EXPECT_EQ(action.micro_batch, backward_[piece]++) << "gradients are added up in order";
    state.backward = true;
    if (piece == 0) flights_[{stage, action.flight}].erase({piece, action.micro_batch});
    if (action.chunk == 0) batches.erase(action.micro_batch);
  }

  // No other micro-batch is there that is not over, or not passed on.
  void Take(int64_t stage, int64_t flight, int64_t piece, int64_t micro_batch) {
    auto& there = flights_[{stage, flight}];
    there.insert({piece, micro_batch});
    EXPECT_EQ(there.size(), 1u) << "stage " << stage << ", number " << flight << " in flight";
  }

  const Pipeline pipeline_;
  std::vector<std::vector<StageAction>> actions_;
  std::vector<std::vector<State>> states_;  // by piece, by micro-batch
  std::vector<size_t> next_;
  std::map<int64_t, int64_t> backward_;  // by piece
  // By stage and number in flight: of which piece which micro-batch is there.
  std::map<std::pair<int64_t, int64_t>, std::set<std::pair<int64_t, int64_t>>> flights_;
  std::map<std::pair<int64_t, int64_t>, std::set<int64_t>> batches_;  // likewise, of uploads
};

TEST(Pipeline, EveryStageMakesAllPassesAndNoneWaitsForEver) {
  for (int64_t stages = 2; stages <= 8; ++stages) {
    for (const int64_t chunks : {1, 2, 3, 4}) {
      for (const int64_t micro_batches : {1, 2, 3, 4, 5, 7, 8, 16, 33}) {
        for (const bool from_last : {false, true}) {
          StagesAtWork at_work({.stages = stages, .chunks = chunks}, micro_batches);
          at_work.Run(from_last);
          EXPECT_TRUE(at_work.over()) << stages << " stages of " << chunks << " chunks, "
                                      << micro_batches << " micro-batches";
        }
      }
    }
  }
}

TEST(Pipeline, AsManyMicroBatchesAreInFlightAsPlanned) {
  for (int64_t stages = 2; stages <= 8; ++stages) {
    for (const int64_t chunks : {1, 2, 4}) {
      for (const int64_t micro_batches : {1, 2, 5, 8, 24, 25, 100}) {
        for (int64_t stage = 0; stage < stages; ++stage) {
          const Pipeline pipeline = {.stages = stages, .chunks = chunks};
          const MostInFlight planned = MostInFlightOf(pipeline, stage, micro_batches);
          MostInFlight most;
          for (const StageAction& action : ActionsOf(pipeline, stage, micro_batches)) {
            most.flights = std::max(most.flights, action.flight + 1);
            most.batches = std::max(most.batches, action.batch + 1);
          }
          EXPECT_EQ(most.flights, planned.flights) << stages << ", " << stage << ", " << chunks;
          EXPECT_EQ(most.batches, planned.batches) << stages << ", " << stage << ", " << chunks;
          if (chunks == 1) {
            EXPECT_LE(planned.flights, stages - stage + 1) << "however many there are";
          }
          EXPECT_LE(planned.batches, 2 * stages);
        }
      }
    }
  }
}

// When the last pass of a step ends where passes take as long as planned, a forward pass 1 and a
// backward pass 2, and what was sent waits for who receives it.
int64_t EndOfStep(const Pipeline& pipeline, int64_t micro_batches) {
  std::vector<std::vector<StageAction>> actions;
  for (int64_t stage = 0; stage < pipeline.stages; ++stage) {
    actions.push_back(ActionsOf(pipeline, stage, micro_batches));
  }
  std::vector<size_t> next(pipeline.stages);
  std::vector<int64_t> time(pipeline.stages);
  std::map<std::tuple<bool, int64_t, int64_t>, int64_t> sent;  // onward, from which piece, of which
  const auto go_on = [&](int64_t stage) {
    if (next[stage] == actions[stage].size()) return false;
    const StageAction& action = actions[stage][next[stage]];
    const int64_t piece = pipeline.piece(action.chunk, stage), i = action.micro_batch;
    switch (action.kind) {
      case Action::kForward:
        time[stage] += 1;
        break;
      case Action::kBackward:
        time[stage] += 2;
        break;
      case Action::kBoth:
        time[stage] += 3;
        break;
      case Action::kSendToAfter:
        sent[{true, piece, i}] = time[stage];
        break;
      case Action::kSendToBefore:
        sent[{false, piece, i}] = time[stage];
        break;
      default: {
        const bool onward = action.kind == Action::kReceiveFromBefore;
        const auto found = sent.find({onward, onward ? piece - 1 : piece + 1, i});
        if (found == sent.end()) return false;
        time[stage] = std::max(time[stage], found->second);
      }
    }
    ++next[stage];
    return true;
  };
  for (bool went_on = true; went_on;) {
    went_on = false;
    for (int64_t stage = 0; stage < pipeline.stages; ++stage) {
      while (go_on(stage)) went_on = true;
    }
  }
  return *std::max_element(time.begin(), time.end());
}

TEST(Pipeline, NothingIsSentLaterThanItIsNeeded) {
  for (const int64_t stages : {2, 3, 4, 8}) {
    for (const int64_t chunks : {1, 2, 4}) {
      for (const int64_t micro_batches : {1, 2, 5, 8, 24}) {
        const Pipeline pipeline = {.stages = stages, .chunks = chunks};
        const auto busy = static_cast<double>(3 * chunks * micro_batches);
        EXPECT_NEAR(busy / static_cast<double>(EndOfStep(pipeline, micro_batches)),
                    1 - BubbleShare(pipeline, micro_batches), 1e-9)
            << stages << " stages of " << chunks << " chunks, " << micro_batches;
      }
    }
  }
}

// A group of ranks that hosts fewer logical ranks than another has the plan of that one.
TEST(Pipeline, FewerMicroBatchesNeedNoMorePlaces) {
  for (const int64_t stages : {2, 3, 4}) {
    for (const int64_t chunks : {1, 2, 3}) {
      const Pipeline pipeline = {.stages = stages, .chunks = chunks};
      for (int64_t stage = 0; stage < stages; ++stage) {
        MostInFlight before;
        for (int64_t micro_batches = 1; micro_batches < 8 * stages; ++micro_batches) {
          const MostInFlight most = MostInFlightOf(pipeline, stage, micro_batches);
          EXPECT_GE(most.flights, before.flights);
          EXPECT_GE(most.batches, before.batches);
          before = most;
        }
      }
    }
  }
}

// Where the stages take turns in whole groups they wait as long as for one chunk at the beginning
// and the end of a step, in passes that are shorter.
TEST(Pipeline, ChunksShortenTheWait) {
  for (const int64_t stages : {2, 3, 4, 8}) {
    for (const int64_t chunks : {2, 4}) {
      for (const int64_t groups : {1, 2, 5}) {
        const int64_t micro_batches = groups * stages;
        EXPECT_DOUBLE_EQ(BubbleShare({.stages = stages, .chunks = chunks}, micro_batches),
                         static_cast<double>(stages - 1) /
                             static_cast<double>(chunks * micro_batches + stages - 1));
      }
    }
  }
  // Others wait longer, but less than without.
  EXPECT_LT(BubbleShare({.stages = 4, .chunks = 2}, 13), BubbleShare({.stages = 4}, 13));
}

TEST(Pipeline, WaitsTheLessTheMoreMicroBatchesThereAre) {
  EXPECT_DOUBLE_EQ(BubbleShare({.stages = 4}, 1), 0.75);
  EXPECT_DOUBLE_EQ(BubbleShare({.stages = 2}, 8), 1.0 / 9);
}

}  // namespace
}  // namespace trainyard::plan
