#include "executor/plan/graph/pipeline.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

using Kind = StageAction::Kind;

// How long a pass through a chunk takes.
constexpr int64_t kForwardTime = 1, kBackwardTime = 2;

// A pass over a micro-batch.
struct Pass {
  Kind kind = Kind::kForward;
  int64_t piece = 0;
  int64_t micro_batch = 0;
  int64_t begin = 0, end = 0;
};

// The passes of all stages, with their times. At every moment each stage that is free begins one
// that it may begin.
class Timetable {
 public:
  Timetable(const Pipeline& pipeline, int64_t micro_batches)
      : pipeline_(pipeline),
        micro_batches_(micro_batches),
        passes_(pipeline.stages),
        in_flight_(pipeline.stages),
        forward_(pipeline.pieces()),
        backward_(pipeline.pieces()) {
    const int64_t all = pipeline.stages * micro_batches * pipeline.chunks;
    for (int64_t time = 0, over = 0; over < all; ++time) {
      TY_CHECK(time <= 3 * all, "the stages wait for each other");
      for (int64_t stage = 0; stage < pipeline.stages; ++stage) over += BeginOne(stage, time);
    }
  }

  const Pipeline& pipeline() const { return pipeline_; }
  const std::vector<Pass>& passes(int64_t stage) const { return passes_[stage]; }
  const Pass& forward(int64_t piece, int64_t micro_batch) const {
    return forward_[piece][micro_batch];
  }
  const Pass& backward(int64_t piece, int64_t micro_batch) const {
    return backward_[piece][micro_batch];
  }
  int64_t end() const {
    int64_t end = 0;
    for (const std::vector<Pass>& passes : passes_) end = std::max(end, passes.back().end);
    return end;
  }

 private:
  bool IsLast(int64_t piece) const { return piece + 1 == pipeline_.pieces(); }

  // Micro-batches go through the chunks in groups of as many as there are stages: then the first
  // of a group is back at the first stage when its last has begun.
  int64_t GroupOf(int64_t micro_batch) const { return micro_batch / pipeline_.stages; }

  static bool IsOver(const std::vector<Pass>& passes, int64_t micro_batch, int64_t time) {
    return micro_batch < static_cast<int64_t>(passes.size()) && passes[micro_batch].end <= time;
  }

  bool CanGoForward(int64_t stage, int64_t piece, int64_t time) const {
    const auto next = static_cast<int64_t>(forward_[piece].size());
    if (next == micro_batches_) return false;
    if (piece > 0 && !IsOver(forward_[piece - 1], next, time)) return false;
    if (IsLast(piece)) return true;
    // So many that none of the stages behind waits once it has begun.
    const int64_t behind = pipeline_.stages - 1 - stage;
    const int64_t most = pipeline_.chunks == 1
                             ? behind + 1
                             : 2 * behind + (pipeline_.chunks - 1) * pipeline_.stages + 1;
    if (in_flight_[stage] >= most) return false;
    // Two groups of micro-batches at most have begun, and are not over.
    const auto over = static_cast<int64_t>(backward_[piece].size());
    return piece >= pipeline_.stages || next - over < 2 * pipeline_.stages;
  }

  bool CanGoBackward(int64_t piece, int64_t time) const {
    const auto next = static_cast<int64_t>(backward_[piece].size());
    return !IsLast(piece) && next < micro_batches_ && IsOver(backward_[piece + 1], next, time);
  }

  // Of the stage's pieces that can, the one whose next micro-batch is of the earliest group, and
  // of these the first one forwards, and the last one backwards.
  std::optional<int64_t> NextForward(int64_t stage, int64_t time) const {
    std::optional<int64_t> best;
    for (int64_t piece = stage; piece < pipeline_.pieces(); piece += pipeline_.stages) {
      if (!CanGoForward(stage, piece, time)) continue;
      if (!best || GroupOf(forward_[piece].size()) < GroupOf(forward_[*best].size())) best = piece;
    }
    return best;
  }
  std::optional<int64_t> NextBackward(int64_t stage, int64_t time) const {
    std::optional<int64_t> best;
    for (int64_t piece = stage; piece < pipeline_.pieces(); piece += pipeline_.stages) {
      if (!CanGoBackward(piece, time)) continue;
      if (!best || GroupOf(backward_[piece].size()) <= GroupOf(backward_[*best].size())) {
        best = piece;
      }
    }
    return best;
  }

  // Returns whether it begins with that the last of its passes over a micro-batch in a chunk.
  bool BeginOne(int64_t stage, int64_t time) {
    std::vector<Pass>& passes = passes_[stage];
    if (!passes.empty() && passes.back().end > time) return false;
    const std::optional<int64_t> forward = NextForward(stage, time);
    const std::optional<int64_t> backward = NextBackward(stage, time);
    if (!forward && !backward) return false;
    const bool turn = passes.empty() || passes.back().kind != Kind::kForward;
    Pass pass = {.begin = time, .end = time};
    if (forward && (!backward || turn)) {
      pass.piece = *forward;
      pass.kind = IsLast(pass.piece) ? Kind::kBoth : Kind::kForward;
      pass.micro_batch = static_cast<int64_t>(forward_[pass.piece].size());
    } else {
      pass.piece = *backward;
      pass.kind = Kind::kBackward;
      pass.micro_batch = static_cast<int64_t>(backward_[pass.piece].size());
    }
    if (pass.kind != Kind::kBackward) pass.end += kForwardTime;
    if (pass.kind != Kind::kForward) pass.end += kBackwardTime;
    if (pass.kind == Kind::kForward) ++in_flight_[stage];
    if (pass.kind == Kind::kBackward) --in_flight_[stage];
    if (pass.kind != Kind::kBackward) forward_[pass.piece].push_back(pass);
    if (pass.kind != Kind::kForward) backward_[pass.piece].push_back(pass);
    passes.push_back(pass);
    return pass.kind != Kind::kForward;
  }

  const Pipeline pipeline_;
  const int64_t micro_batches_;
  std::vector<std::vector<Pass>> passes_;              // by stage, in order
  std::vector<int64_t> in_flight_;                     // by stage: in one of its chunks
  std::vector<std::vector<Pass>> forward_, backward_;  // by piece, by micro-batch
};

// What passes between a stage and a neighbour. All such moves have one order: by the time at which
// the pass begins that needs it, and then by its piece. Every rank makes its own in that order, and
// before a pass all that are needed before its end: who needs one of them meanwhile would wait for
// that end. So the first of all that were not made waits for nothing but passes that need only
// moves before it.
struct Move {
  using Time = std::pair<int64_t, int64_t>;
  Time needed;  // when, and by which piece
  StageAction action;
};

Move::Time BeginOf(const Pass& pass) { return {pass.begin, pass.piece}; }

std::vector<Move> MovesOf(const Timetable& times, int64_t stage, int64_t micro_batches) {
  const Pipeline& pipeline = times.pipeline();
  std::vector<Move> moves;
  for (int64_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
    const int64_t piece = pipeline.piece(chunk, stage);
    for (int64_t i = 0; i < micro_batches; ++i) {
      const auto add = [&](const Pass& pass, int64_t by, Kind kind) {
        moves.push_back({{pass.begin, by}, {.kind = kind, .micro_batch = i, .chunk = chunk}});
      };
      if (piece > 0) {
        add(times.forward(piece, i), piece, Kind::kReceiveFromBefore);
        add(times.backward(piece - 1, i), piece - 1, Kind::kSendToBefore);
      }
      if (piece + 1 < pipeline.pieces()) {
        add(times.forward(piece + 1, i), piece + 1, Kind::kSendToAfter);
        add(times.backward(piece, i), piece, Kind::kReceiveFromAfter);
      }
    }
  }
  std::sort(moves.begin(), moves.end(),
            [](const Move& a, const Move& b) { return a.needed < b.needed; });
  return moves;
}

// Places that are taken for a while: the first that is free is given.
class Places {
 public:
  int64_t Take(const Move::Time& from, const Move::Time& until) {
    auto place = std::find_if(free_from_.begin(), free_from_.end(),
                              [&](const Move::Time& free) { return free < from; });
    if (place == free_from_.end()) place = free_from_.emplace(place);
    *place = until;
    return place - free_from_.begin();
  }
  int64_t count() const { return static_cast<int64_t>(free_from_.size()); }

 private:
  std::vector<Move::Time> free_from_;
};

// Which places each micro-batch has: of those of flights by chunk, of those of batches alone.
struct GivenPlaces {
  std::vector<std::vector<int64_t>> flights;
  std::vector<int64_t> batches;
  MostInFlight most;
};

GivenPlaces PlacesOf(const Timetable& times, int64_t stage, int64_t micro_batches) {
  const Pipeline& pipeline = times.pipeline();
  // What a pass leaves is free for whatever begins when it ends.
  constexpr int64_t kBeforeMoves = -1;
  const auto end_of = [&](const Pass& pass) { return Move::Time{pass.end, kBeforeMoves}; };
  std::vector<const Pass*> begun;  // forward passes, in order
  for (const Pass& pass : times.passes(stage)) {
    if (pass.kind != Kind::kBackward) begun.push_back(&pass);
  }
  GivenPlaces given = {.flights = std::vector<std::vector<int64_t>>(
                           pipeline.chunks, std::vector<int64_t>(micro_batches)),
                       .batches = std::vector<int64_t>(micro_batches)};
  Places flights, batches;
  for (const Pass* const pass : begun) {
    const int64_t i = pass->micro_batch;
    Move::Time until = end_of(times.backward(pass->piece, i));
    if (pass->piece > 0) until = std::max(until, BeginOf(times.backward(pass->piece - 1, i)));
    given.flights[pipeline.chunk_of(pass->piece)][i] = flights.Take(BeginOf(*pass), until);
    if (pass->piece != stage) continue;
    given.batches[i] = batches.Take(BeginOf(*pass), end_of(times.backward(stage, i)));
  }
  given.most = {.flights = flights.count(), .batches = batches.count()};
  return given;
}

// Once every stage is busy, what each does repeats itself.
int64_t EnoughMicroBatches(const Pipeline& pipeline, int64_t micro_batches) {
  const int64_t groups = pipeline.chunks == 1 ? 3 : 6;
  const int64_t left_over = micro_batches % pipeline.stages;
  return std::min(micro_batches, groups * pipeline.stages + left_over);
}

}  // namespace

std::vector<StageAction> ActionsOf(const Pipeline& pipeline, int64_t stage, int64_t micro_batches) {
  const Timetable times(pipeline, micro_batches);
  const GivenPlaces places = PlacesOf(times, stage, micro_batches);
  const std::vector<Move> moves = MovesOf(times, stage, micro_batches);
  std::vector<StageAction> actions;
  auto move = moves.begin();
  const auto add = [&](StageAction action) {
    action.flight = places.flights[action.chunk][action.micro_batch];
    action.batch = places.batches[action.micro_batch];
    actions.push_back(action);
  };
  for (const Pass& pass : times.passes(stage)) {
    for (; move != moves.end() && move->needed.first < pass.end; ++move) add(move->action);
    add({.kind = pass.kind,
         .micro_batch = pass.micro_batch,
         .chunk = pipeline.chunk_of(pass.piece)});
  }
  for (; move != moves.end(); ++move) add(move->action);
  return actions;
}

MostInFlight MostInFlightOf(const Pipeline& pipeline, int64_t stage, int64_t micro_batches) {
  const int64_t enough = EnoughMicroBatches(pipeline, micro_batches);
  return PlacesOf(Timetable(pipeline, enough), stage, enough).most;
}

double BubbleShare(const Pipeline& pipeline, int64_t micro_batches) {
  const int64_t of_one = (kForwardTime + kBackwardTime) * pipeline.chunks;
  const int64_t enough = EnoughMicroBatches(pipeline, micro_batches);
  const int64_t end = Timetable(pipeline, enough).end() + (micro_batches - enough) * of_one;
  return static_cast<double>(end - micro_batches * of_one) / static_cast<double>(end);
}

}  // namespace trainyard::plan
