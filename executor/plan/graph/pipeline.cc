#include "executor/plan/graph/pipeline.h"

#include <algorithm>
#include <tuple>

#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

using Kind = StageAction::Kind;

// A pass over a micro-batch, as if a forward pass took one unit of time and a backward pass two.
struct Pass {
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;
  int64_t begin = 0, end = 0;
};

int64_t TimeOf(Kind kind) { return kind == Kind::kForward ? 1 : kind == Kind::kBackward ? 2 : 3; }

// The passes of a stage in order. It begins with as many forward passes as there are stages behind
// it, so that none of those waits once it has begun.
std::vector<Pass> PassesOf(int64_t stages, int64_t stage, int64_t micro_batches) {
  std::vector<Pass> passes;
  const int64_t ahead = stages - 1 - stage;
  if (ahead == 0) {
    for (int64_t i = 0; i < micro_batches; ++i) passes.push_back({Kind::kBoth, i});
    return passes;
  }
  for (int64_t i = 0; i < micro_batches + ahead; ++i) {
    if (i < micro_batches) passes.push_back({Kind::kForward, i});
    if (i >= ahead) passes.push_back({Kind::kBackward, i - ahead});
  }
  return passes;
}

// Those of all stages, with their times.
class Timetable {
 public:
  Timetable(int64_t stages, int64_t micro_batches)
      : passes_(stages),
        next_(stages),
        forward_(stages, std::vector<Pass>(micro_batches)),
        backward_(forward_) {
    for (int64_t stage = 0; stage < stages; ++stage) {
      passes_[stage] = PassesOf(stages, stage, micro_batches);
    }
    bool went_on = true;
    while (went_on) {
      went_on = false;
      for (int64_t stage = 0; stage < stages; ++stage) {
        while (GoOn(stage)) went_on = true;
      }
    }
    for (int64_t stage = 0; stage < stages; ++stage) {
      TY_CHECK(next_[stage] == passes_[stage].size(), "stage ", stage, " waits for ever");
    }
  }

  int64_t stages() const { return static_cast<int64_t>(passes_.size()); }
  const std::vector<Pass>& passes(int64_t stage) const { return passes_[stage]; }
  const Pass& forward(int64_t stage, int64_t micro_batch) const {
    return forward_[stage][micro_batch];
  }
  const Pass& backward(int64_t stage, int64_t micro_batch) const {
    return backward_[stage][micro_batch];
  }

 private:
  // Gives the stage's next pass its time, if what it needs is known.
  bool GoOn(int64_t stage) {
    if (next_[stage] == passes_[stage].size()) return false;
    Pass& pass = passes_[stage][next_[stage]];
    const Pass* needed = nullptr;
    if (pass.kind == Kind::kBackward) {
      needed = &backward_[stage + 1][pass.micro_batch];
    } else if (stage > 0) {
      needed = &forward_[stage - 1][pass.micro_batch];
    }
    if (needed != nullptr && needed->end == 0) return false;
    const int64_t before = next_[stage] == 0 ? 0 : passes_[stage][next_[stage] - 1].end;
    pass.begin = std::max(before, needed == nullptr ? 0 : needed->end);
    pass.end = pass.begin + TimeOf(pass.kind);
    if (pass.kind != Kind::kBackward) forward_[stage][pass.micro_batch] = pass;
    if (pass.kind != Kind::kForward) backward_[stage][pass.micro_batch] = pass;
    ++next_[stage];
    return true;
  }

  std::vector<std::vector<Pass>> passes_;              // by stage, in order
  std::vector<size_t> next_;                           // by stage
  std::vector<std::vector<Pass>> forward_, backward_;  // by stage, by micro-batch; end 0: not known
};

// What passes between a stage and a neighbour. All such moves have one order: by the time at which
// the pass begins that needs it, and then by its stage. Every rank makes its own in that order, and
// before a pass all up to the time at which that begins. So the first of all that were not made
// waits for nothing but passes that need only moves before it.
struct Move {
  int64_t needed = 0;
  int64_t by_stage = 0;
  StageAction action;
};

std::vector<Move> MovesOf(const Timetable& times, int64_t stage, int64_t micro_batches) {
  std::vector<Move> moves;
  for (int64_t i = 0; i < micro_batches; ++i) {
    if (stage > 0) {
      moves.push_back({times.forward(stage, i).begin, stage, {Kind::kReceiveFromBefore, i}});
      moves.push_back({times.backward(stage - 1, i).begin, stage - 1, {Kind::kSendToBefore, i}});
    }
    if (stage + 1 < times.stages()) {
      moves.push_back({times.forward(stage + 1, i).begin, stage + 1, {Kind::kSendToAfter, i}});
      moves.push_back({times.backward(stage, i).begin, stage, {Kind::kReceiveFromAfter, i}});
    }
  }
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::tie(a.needed, a.by_stage) < std::tie(b.needed, b.by_stage);
  });
  return moves;
}

// Which place among those in flight each micro-batch has: the first that is free when it begins.
std::vector<int64_t> FlightsOf(const Timetable& times, int64_t stage, int64_t micro_batches) {
  std::vector<int64_t> flights, free_from;  // by micro-batch; by flight
  for (int64_t i = 0; i < micro_batches; ++i) {
    const int64_t begin = times.forward(stage, i).begin;
    int64_t over = times.backward(stage, i).end;
    if (stage > 0) over = std::max(over, times.backward(stage - 1, i).begin);
    const auto is_free = [&](int64_t from) { return from <= begin; };
    auto flight = std::find_if(free_from.begin(), free_from.end(), is_free);
    if (flight == free_from.end()) flight = free_from.insert(flight, 0);
    *flight = over;
    flights.push_back(flight - free_from.begin());
  }
  return flights;
}

}  // namespace

std::vector<StageAction> ActionsOf(int64_t stages, int64_t stage, int64_t micro_batches) {
  const Timetable times(stages, micro_batches);
  const std::vector<int64_t> flights = FlightsOf(times, stage, micro_batches);
  const std::vector<Move> moves = MovesOf(times, stage, micro_batches);
  std::vector<StageAction> actions;
  auto move = moves.begin();
  const auto add = [&](const StageAction& action) {
    actions.push_back(action);
    actions.back().flight = flights[action.micro_batch];
  };
  for (const Pass& pass : times.passes(stage)) {
    for (; move != moves.end() && move->needed <= pass.begin; ++move) add(move->action);
    add({pass.kind, pass.micro_batch});
  }
  for (; move != moves.end(); ++move) add(move->action);
  return actions;
}

int64_t MostInFlight(int64_t stages, int64_t stage, int64_t micro_batches) {
  // Once every stage is busy, what each does repeats itself.
  const int64_t enough = std::min(micro_batches, 3 * stages);
  const std::vector<int64_t> flights = FlightsOf(Timetable(stages, enough), stage, enough);
  return *std::max_element(flights.begin(), flights.end()) + 1;
}

double BubbleShare(int64_t stages, int64_t micro_batches) {
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

}  // namespace trainyard::plan
