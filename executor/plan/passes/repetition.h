#pragma once

// A graph some ops of whose forward pass run a second time: in which order, how long tensors live
// then, and how many bytes are in use at once. What recompute.cc measures its choices by.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "executor/plan/graph/graph.h"
#include "executor/plan/passes/flights.h"

namespace trainyard::plan {

// Activations and inputs, numbered without the tensors that live for ever.
using Place = int32_t;

struct Passing {
  int64_t bytes = 0;  // 0: it has its place whatever is repeated
  bool input = false;
  bool sent = false;  // to another stage of a pipeline
};

// An op as the search sees it.
struct OpView {
  std::vector<Place> reads, writes;
  std::vector<std::pair<Place, Place>> in_place;
  double cost = 0;
};

// What is repeated, by op of the forward pass.
using Choice = std::vector<bool>;

// An op at its place in the schedule, for the first or the second time.
struct ScheduledOp {
  size_t op = 0;
  bool again = false;
};

// What is in memory beside the micro-batch of a graph.
struct MemoryBeside {
  Flights flights;     // further micro-batches
  int64_t others = 0;  // bytes of lists of ops that take turns with the graph's
};

// What a choice needs. A tensor t that is computed a second time has a second live range: that of
// tensor (number of tensors) + t.
struct Usage {
  static constexpr int32_t kNever = -2;
  struct Span {
    int32_t first = kNever, last = kNever;
    int32_t last_forward = kNever;    // use in the forward pass
    int32_t first_backward = kNever;  // use after it
    int32_t last_derived = kNever;  // use by an op of the backward pass itself, repeated ones apart
    int32_t chunk = 0;              // of the stage, that uses it
  };
  std::vector<ScheduledOp> schedule;
  std::vector<Span> live_ranges;
  std::vector<int64_t>
      change;  // by place in the schedule: bytes that become live, less those that are gone
  int64_t peak = 0;
  // The place in the schedule where the most is live; its end: where others take turns.
  int64_t at = 0;
  // The chunk that keeps most of a micro-batch in flight: every place is as large as it needs.
  int32_t fullest = 0;
};

class Repetition {
 public:
  static constexpr int kNoProducer = -1;  // produces it, or nobody could do so again

  // Of `graph`, which must outlive it, the first `forward` ops are the forward pass.
  Repetition(size_t forward, const Graph& graph, const MemoryBeside& beside);

  size_t forward() const { return forward_; }
  const std::vector<Passing>& tensors() const { return tensors_; }  // by place
  // The op of the forward pass that can compute a tensor again.
  int producer(Place id) const { return producer_[id]; }
  // An op of the forward pass, the second time.
  const OpView& again(size_t op) const { return again_views_[op]; }
  const OpView& ViewOf(const ScheduledOp& at_work) const {
    return at_work.again ? again_views_[at_work.op] : views_[at_work.op];
  }
  bool Repeated(const Choice& choice, Place id) const {
    return producer_[id] != kNoProducer && choice[producer_[id]];
  }

  // Whether the live range number `s` of `usage` stays for as long as a micro-batch is in flight.
  // Every micro-batch in flight then has its bytes.
  bool Stays(const Usage& usage, size_t s) const;
  int64_t flights() const { return beside_.flights.count; }
  bool left_before_backward() const { return beside_.flights.left_before_backward(); }
  // The chunk of the stage of which an op is.
  int32_t chunk_of(size_t op) const { return chunk_of_[op]; }
  // How many micro-batches have what a chunk's forward pass keeps for its backward pass.
  int64_t flights_of(int32_t chunk) const { return at_once(chunk) ? 1 : flights(); }

  // What is in use when and at most. `usage` is written whole; its memory serves the next measure.
  void Measure(const Choice& choice, Usage& usage) const;

  // The graph in which the ops of `choice` run a second time, right before what needs them.
  Graph Rewrite(const Choice& choice) const;

 private:
  void ScheduleOf(const Choice& choice, std::vector<ScheduledOp>& schedule) const;
  size_t LiveRangeOf(const Choice& choice, const ScheduledOp& at_work, Place id,
                     bool written) const;
  void FindPeak(const Choice& choice, Usage& usage) const;
  int64_t SharedAt(const Choice& choice, const Usage& usage, size_t at) const;
  // Whether a chunk's backward pass follows its forward pass: that of the last piece.
  bool at_once(int32_t chunk) const {
    const std::vector<StageChunk>& chunks = beside_.flights.chunks;
    return !chunks.empty() && chunks[chunk].links.from_after == kNone;
  }

  const Graph& graph_;
  const size_t forward_;
  const MemoryBeside beside_;
  std::vector<Passing> tensors_;
  std::vector<OpView> views_;             // by op
  std::vector<OpView> again_views_;       // by forward op
  std::vector<std::optional<Op>> again_;  // by forward op
  std::vector<int> producer_;
  std::vector<int32_t> chunk_of_;  // by op
};

}  // namespace trainyard::plan
