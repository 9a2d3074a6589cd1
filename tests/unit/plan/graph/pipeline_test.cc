#include "executor/plan/graph/pipeline.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
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
class Pipeline {
 public:
  Pipeline(int64_t stages, int64_t micro_batches) {
    for (int64_t stage = 0; stage < stages; ++stage) {
      actions_.push_back(ActionsOf(stages, stage, micro_batches));
      states_.emplace_back(micro_batches);
    }
    next_.resize(stages);
  }

  // Until no stage can go on; the one with the last number first if `from_last`.
  void Run(bool from_last) {
    const auto stages = static_cast<int64_t>(actions_.size());
    bool went_on = true;
    while (went_on) {
      went_on = false;
      for (int64_t i = 0; i < stages; ++i) {
        const int64_t stage = from_last ? stages - 1 - i : i;
        while (GoOn(stage)) went_on = true;
      }
    }
  }

  bool over() const {
    for (size_t stage = 0; stage < actions_.size(); ++stage) {
      if (next_[stage] < actions_[stage].size()) return false;
      for (const State& state : states_[stage]) {
        if (!state.backward || (stage > 0 && !state.sent_before)) return false;
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
    State& state = states_[stage][action->micro_batch];
    if (IsPass(action->kind)) {
      Pass(stage, *action, state);
      ++next_[stage];
      return true;
    }
    // A move is made when both ends are at it.
    const bool to_after = action->kind == Action::kSendToAfter;
    const bool to_before = action->kind == Action::kSendToBefore;
    if (!to_after && !to_before) return false;  // the sender makes it
    const int64_t other = to_after ? stage + 1 : stage - 1;
    const StageAction* const receives = Next(other);
    const Action expected = to_after ? Action::kReceiveFromBefore : Action::kReceiveFromAfter;
    if (receives == nullptr || receives->kind != expected) return false;
    EXPECT_EQ(receives->micro_batch, action->micro_batch);
    State& at_other = states_[other][action->micro_batch];
    if (to_after) {
      EXPECT_TRUE(state.forward);
      state.sent_after = at_other.received_forward = true;
      Take(other, receives->flight, action->micro_batch);
    } else {
      EXPECT_TRUE(state.backward);
      state.sent_before = at_other.received_backward = true;
      flights_[{stage, action->flight}].erase(action->micro_batch);
    }
    ++next_[stage];
    ++next_[other];
    return true;
  }

  void Pass(int64_t stage, const StageAction& action, State& state) {
    const auto last = static_cast<int64_t>(actions_.size()) - 1;
    EXPECT_EQ(action.kind == Action::kBoth, stage == last);
    if (action.kind != Action::kBackward) {
      EXPECT_TRUE(stage == 0 || state.received_forward);
      Take(stage, action.flight, action.micro_batch);
      state.forward = true;
    }
    if (action.kind == Action::kForward) return;
    EXPECT_TRUE(state.forward);
    EXPECT_TRUE(stage == last || (state.received_backward && state.sent_after));
    EXPECT_EQ(action.micro_batch, backward_[stage]++) << "gradients are added up in order";
    state.backward = true;
    if (stage == 0) flights_[{stage, action.flight}].erase(action.micro_batch);
  }

  // No other micro-batch is there that is not over, or not passed on.
  void Take(int64_t stage, int64_t flight, int64_t micro_batch) {
    std::set<int64_t>& there = flights_[{stage, flight}];
    there.insert(micro_batch);
    EXPECT_EQ(there.size(), 1u) << "stage " << stage << ", number " << flight << " in flight";
  }

  std::vector<std::vector<StageAction>> actions_;
  std::vector<std::vector<State>> states_;  // by stage, by micro-batch
  std::vector<size_t> next_;
  std::map<int64_t, int64_t> backward_;  // by stage
  std::map<std::pair<int64_t, int64_t>, std::set<int64_t>> flights_;
};

TEST(Pipeline, EveryStageMakesAllPassesAndNoneWaitsForEver) {
  for (int64_t stages = 2; stages <= 8; ++stages) {
    for (const int64_t micro_batches : {1, 2, 3, 4, 5, 7, 8, 16, 33}) {
      for (const bool from_last : {false, true}) {
        Pipeline pipeline(stages, micro_batches);
        pipeline.Run(from_last);
        EXPECT_TRUE(pipeline.over()) << stages << " stages, " << micro_batches << " micro-batches";
      }
    }
  }
}

TEST(Pipeline, AsManyMicroBatchesAreInFlightAsPlanned) {
  for (int64_t stages = 2; stages <= 8; ++stages) {
    for (const int64_t micro_batches : {1, 2, 5, 8, 24, 25, 100}) {
      for (int64_t stage = 0; stage < stages; ++stage) {
        const int64_t planned = MostInFlight(stages, stage, micro_batches);
        int64_t most = 0;
        for (const StageAction& action : ActionsOf(stages, stage, micro_batches)) {
          most = std::max(most, action.flight + 1);
        }
        EXPECT_EQ(most, planned) << stages << ", " << stage << ", " << micro_batches;
        EXPECT_LE(planned, stages - stage + 1) << "however many there are";
      }
    }
  }
}

TEST(Pipeline, WaitsTheLessTheMoreMicroBatchesThereAre) {
  EXPECT_DOUBLE_EQ(BubbleShare(4, 1), 0.75);
  EXPECT_DOUBLE_EQ(BubbleShare(2, 8), 1.0 / 9);
}

}  // namespace
}  // namespace trainyard::plan
