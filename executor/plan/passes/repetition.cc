#include "executor/plan/passes/repetition.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/ops/op.h"

namespace trainyard::plan {

namespace {

// Time of an op, in bytes moved: what it touches, and its products at so many FLOP to the byte.
// CPUs do about 12 per byte of memory bandwidth, GPUs 50 to 200 of narrow ones.
constexpr double kFlopsPerByte = 16;

OpView View(const Graph& graph, const std::vector<Place>& places, const Op& op) {
  OpView view{.cost = Flops(op) / kFlopsPerByte};
  for (const auto& [in, out] : InPlacePairs(op)) {
    if (in == kNone || out == kNone || places[in] < 0 || places[out] < 0) continue;
    if (graph[in].kind != TensorKind::kActivation) continue;
    view.in_place.emplace_back(places[in], places[out]);
  }
  VisitOperands(op, [&](TensorId id, Access access) {
    view.cost += static_cast<double>(graph[id].bytes());
    if (places[id] < 0) return;
    if (access != Access::kWrite) view.reads.push_back(places[id]);
    if (access != Access::kRead) view.writes.push_back(places[id]);
  });
  return view;
}

// The op that computes the same a second time; none: it would change more than activations, or need
// other ranks, which choose by themselves what they compute twice.
std::optional<Op> RecomputedForm(const Graph& graph, const Op& first) {
  if (std::holds_alternative<GatherRows>(first)) return std::nullopt;
  Op op = RecomputedOp(first);
  bool pure = true;
  VisitOperands(op, [&](TensorId id, Access access) {
    if (access == Access::kRead) return;
    pure &= access == Access::kWrite && graph[id].kind == TensorKind::kActivation;
  });
  if (!pure) return std::nullopt;
  return op;
}

}  // namespace

Repetition::Repetition(size_t forward, const Graph& graph, const MemoryBeside& beside)
    : graph_(graph), forward_(forward), beside_(beside) {
  std::vector<Place> places;
  for (const Tensor& tensor : graph.tensors) {
    const bool input = tensor.kind == TensorKind::kInput;
    const bool passes =
        input || tensor.kind == TensorKind::kActivation || tensor.kind == TensorKind::kReceived;
    places.push_back(passes ? static_cast<Place>(tensors_.size()) : -1);
    const bool is_apart = input && beside.flights.chunks.size() > 1;
    const int64_t bytes = is_apart ? 0 : Align(tensor.bytes());
    if (passes) tensors_.push_back({.bytes = bytes, .input = input});
  }
  chunk_of_.resize(graph.ops.size());
  for (size_t chunk = 0; chunk < beside.flights.chunks.size(); ++chunk) {
    for (const Run& run :
         {beside.flights.chunks[chunk].forward, beside.flights.chunks[chunk].backward}) {
      std::fill(chunk_of_.begin() + run.first, chunk_of_.begin() + run.end,
                static_cast<int32_t>(chunk));
    }
  }
  for (const TensorId sent : beside.flights.Sent()) tensors_[places[sent]].sent = true;
  producer_.assign(tensors_.size(), kNoProducer);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    views_.push_back(View(graph, places, graph.ops[i]));
    if (i >= forward) continue;
    again_.push_back(RecomputedForm(graph, graph.ops[i]));
    again_views_.push_back(again_.back() ? View(graph, places, *again_.back()) : OpView());
    for (const Place id : again_views_.back().writes) producer_[id] = static_cast<int>(i);
  }
}

void Repetition::Measure(const Choice& choice, Usage& usage) const {
  ScheduleOf(choice, usage.schedule);
  usage.live_ranges.assign(2 * tensors_.size(), {});
  usage.peak = usage.at = 0;
  const auto touch = [&](const ScheduledOp& at_work, int32_t at, Place id, bool written) {
    Usage::Span& range = usage.live_ranges[LiveRangeOf(choice, at_work, id, written)];
    if (range.first == Usage::kNever) range.first = tensors_[id].input ? -1 : at;
    range.last = at;
    range.chunk = chunk_of_[at_work.op];
    if (!at_work.again && at_work.op < forward_) {
      range.last_forward = at;
      return;
    }
    if (range.first_backward == Usage::kNever) range.first_backward = at;
    if (!at_work.again) range.last_derived = at;
  };
  for (size_t i = 0; i < usage.schedule.size(); ++i) {
    const ScheduledOp& at_work = usage.schedule[i];
    const auto at = static_cast<int32_t>(i);
    const OpView& view = ViewOf(at_work);
    for (const Place id : view.reads) touch(at_work, at, id, false);
    for (const Place id : view.writes) touch(at_work, at, id, true);
  }
  FindPeak(choice, usage);
}

Graph Repetition::Rewrite(const Choice& choice) const {
  Graph graph;
  graph.tensors = graph_.tensors;
  std::vector<TensorId> second(graph_.tensors.size(), kNone);
  std::vector<ScheduledOp> schedule;
  ScheduleOf(choice, schedule);
  for (const ScheduledOp& at_work : schedule) {
    Op op = at_work.again ? *again_[at_work.op] : graph_.ops[at_work.op];
    const auto redirect = [&](TensorId& id, Access access) {
      if (at_work.again && access == Access::kWrite) {
        Tensor tensor = graph_[id];
        tensor.name = absl::StrCat(tensor.name, " again");
        tensor.made_by = kEveryRank;  // others have what was made the first time
        second[id] = graph.Add(std::move(tensor));
      }
      if (second[id] != kNone) id = second[id];
    };
    VisitOperands(op, redirect);
    graph.ops.push_back(std::move(op));
  }
  return graph;
}

// The forward pass, then the backward pass with the repeated ops where they are needed first.
void Repetition::ScheduleOf(const Choice& choice, std::vector<ScheduledOp>& schedule) const {
  schedule.clear();
  for (size_t i = 0; i < forward_; ++i) schedule.push_back({.op = i});
  Choice done(forward_);
  std::vector<size_t> open;  // ops to repeat, each after those above it
  const auto demand = [&](const std::vector<Place>& reads) {
    for (const Place id : reads) {
      if (Repeated(choice, id) && !done[producer_[id]]) open.push_back(producer_[id]);
    }
  };
  for (size_t i = forward_; i < views_.size(); ++i) {
    demand(views_[i].reads);
    while (!open.empty()) {
      const size_t op = open.back(), before = open.size();
      if (!done[op]) demand(again_views_[op].reads);
      if (open.size() > before) continue;
      open.pop_back();
      if (!done[op]) schedule.push_back({.op = op, .again = true});
      done[op] = true;
    }
    schedule.push_back({.op = i});
  }
}

// Which of its live ranges a tensor is in.
size_t Repetition::LiveRangeOf(const Choice& choice, const ScheduledOp& at_work, Place id,
                               bool written) const {
  const bool backward = at_work.again || at_work.op >= forward_;
  const bool second = at_work.again && written ? true : backward && Repeated(choice, id);
  return second ? tensors_.size() + id : static_cast<size_t>(id);
}

bool Repetition::Stays(const Usage& usage, size_t s) const {
  const Usage::Span& range = usage.live_ranges[s];
  if (range.first == Usage::kNever) return false;
  if (s < tensors_.size() && tensors_[s].sent) return true;
  const auto cut = static_cast<int64_t>(forward_);
  return left_before_backward() && !at_once(range.chunk) && range.first < cut && range.last >= cut;
}

void Repetition::FindPeak(const Choice& choice, Usage& usage) const {
  const size_t n = tensors_.size();
  usage.change.assign(usage.schedule.size() + 1, 0);
  std::vector<int64_t> kept(std::max<size_t>(1, beside_.flights.chunks.size()));
  for (size_t s = 0; s < 2 * n; ++s) {
    const Usage::Span& range = usage.live_ranges[s];
    if (range.first == Usage::kNever) continue;
    const int64_t bytes = tensors_[s < n ? s : s - n].bytes;
    if (Stays(usage, s)) {
      kept[range.chunk] += bytes;
      continue;
    }
    usage.change[std::max(0, range.first)] += bytes;
    usage.change[range.last + 1] -= bytes;
  }
  const auto fullest = std::max_element(kept.begin(), kept.end());
  usage.fullest = static_cast<int32_t>(fullest - kept.begin());
  const int64_t in_flight = flights() * *fullest;
  usage.peak = in_flight + beside_.others;
  usage.at = static_cast<int64_t>(usage.schedule.size());
  int64_t live = in_flight;
  for (size_t i = 0; i < usage.schedule.size(); ++i) {
    live += usage.change[i];
    if (live <= usage.peak) continue;
    const int64_t used = live - SharedAt(choice, usage, i);
    if (used <= usage.peak) continue;
    usage.peak = used;
    usage.at = static_cast<int64_t>(i);
  }
}

// What a scheduled op saves by writing over an operand that ends there.
int64_t Repetition::SharedAt(const Choice& choice, const Usage& usage, size_t i) const {
  const ScheduledOp& at_work = usage.schedule[i];
  const auto at = static_cast<int32_t>(i);
  for (const auto& [in, out] : ViewOf(at_work).in_place) {
    const size_t from = LiveRangeOf(choice, at_work, in, false);
    const size_t to = LiveRangeOf(choice, at_work, out, true);
    const bool joined = usage.live_ranges[from].last == at && usage.live_ranges[to].first == at &&
                        tensors_[in].bytes == tensors_[out].bytes;
    if (joined && !Stays(usage, from) && !Stays(usage, to)) return tensors_[out].bytes;
  }
  return 0;
}

}  // namespace trainyard::plan
