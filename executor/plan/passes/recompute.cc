#include "executor/plan/passes/recompute.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/flights.h"
#include "executor/plan/passes/layout.h"
#include "executor/plan/passes/repetition.h"
#include "executor/plan/passes/stages.h"

namespace trainyard::plan {

namespace {

// How finely the search proceeds, and how many ops it tries to keep again: what bounds its time.
constexpr int64_t kStepsToTarget = 32;
constexpr size_t kMostKept = 256;

class Search {
 public:
  explicit Search(const Repetition& ops) : ops_(ops) {}

  // Repeats more and more until at most `target` bytes are in use at once; false: nothing is left
  // that would help, and `choice` is the best there was.
  bool Reduce(int64_t target, Choice& choice) const {
    Choice at = choice, kept(ops_.forward());
    Usage usage;
    ops_.Measure(choice, usage);
    int64_t best = usage.peak;
    for (;;) {
      ops_.Measure(at, usage);
      if (usage.peak < best) best = usage.peak, choice = at;
      if (usage.peak <= target) break;
      if (!RepeatMore(usage, target, kept, at) && !KeepAfterAll(usage, kept, at)) return false;
    }
    KeepWhatFits(target, choice);
    return true;
  }

 private:
  // By how much not to keep a tensor for the backward pass lowers the highest use: by its bytes if
  // it spans that without touching anything there; and by those that micro-batches in flight have,
  // if it is of the chunk that keeps most.
  int64_t Freed(const Usage& usage, size_t id) const {
    const Usage::Span& range = usage.live_ranges[id];
    const bool spans = range.first_backward > usage.at && range.last_forward < usage.at &&
                       range.last_forward != Usage::kNever;
    const int64_t bytes = ops_.tensors()[id].bytes;
    if (!ops_.Stays(usage, id)) return spans ? bytes : 0;
    if (ops_.tensors()[id].sent || range.first_backward == Usage::kNever) return 0;
    if (range.chunk != usage.fullest) return 0;
    const bool touched = (range.first <= usage.at && usage.at <= range.last_forward) ||
                         (range.first_backward <= usage.at && usage.at <= range.last);
    return (ops_.flights() - (touched ? 1 : 0)) * bytes;
  }

  // Adds what is cheapest for the bytes it frees at the highest use, up to a share of what is too
  // much there; false: nothing frees any.
  bool RepeatMore(const Usage& usage, int64_t target, const Choice& kept, Choice& choice) const {
    std::vector<std::pair<double, int>> candidates;  // worth, op
    for (size_t id = 0; id < ops_.tensors().size(); ++id) {
      const int producer = ops_.producer(id);
      if (producer == Repetition::kNoProducer || choice[producer] || kept[producer]) continue;
      if (Freed(usage, id) == 0) continue;
      const Group group = GroupOf(usage, choice, producer);
      if (group.freed > 0) candidates.emplace_back(group.worth(), producer);
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    const int64_t wanted = std::max<int64_t>(1, (usage.peak - target) / kStepsToTarget);
    int64_t freed = 0;
    for (const auto& [worth, op] : candidates) {
      if (choice[op]) continue;
      const Group group = GroupOf(usage, choice, op);
      for (const int member : group.ops) choice[member] = true;
      freed += group.freed;
      if (freed >= wanted) break;
    }
    return freed > 0;
  }

  // The highest use is where much is repeated at once, each from the one before: keeps, for good,
  // the one of them that lowers it most; false: none does.
  bool KeepAfterAll(const Usage& usage, Choice& kept, Choice& choice) const {
    const size_t n = ops_.tensors().size();
    std::vector<int64_t> least = LeastUseIfKept(usage, choice);
    AddFurtherFlights(usage, choice, least);
    std::vector<Place> trials;
    for (size_t id = 0; id < n; ++id) {
      const Usage::Span& again = usage.live_ranges[n + id];
      if (again.first == Usage::kNever || again.first > usage.at || again.last < usage.at) continue;
      if (least[ops_.producer(id)] < usage.peak) trials.push_back(static_cast<Place>(id));
    }
    // The most promising first, so that most need no measure; of equals the first tensor's.
    std::stable_sort(trials.begin(), trials.end(), [&](Place a, Place b) {
      return least[ops_.producer(a)] < least[ops_.producer(b)];
    });
    int64_t best = usage.peak;
    Place found = Repetition::kNoProducer;
    Usage trial;
    for (const Place id : trials) {
      const size_t op = ops_.producer(id);
      if (least[op] > best) break;
      if (least[op] == best && found != Repetition::kNoProducer && id > found) continue;
      choice[op] = false;
      ops_.Measure(choice, trial);
      choice[op] = true;
      const bool first = trial.peak == best && found != Repetition::kNoProducer && id < found;
      if (trial.peak < best || first) best = trial.peak, found = id;
    }
    if (found == Repetition::kNoProducer) return false;
    choice[ops_.producer(found)] = false, kept[ops_.producer(found)] = true;
    return true;
  }

  // By place in the schedule: bytes whose live range ends there, as `last` says, less what that op
  // may save; but for what stays in flight.
  std::vector<int64_t> BytesUntil(const Usage& usage, const std::vector<int64_t>& last) const {
    const size_t n = ops_.tensors().size();
    std::vector<int64_t> bytes(usage.schedule.size() + 1);
    for (size_t s = 0; s < 2 * n; ++s) {
      const int64_t first = usage.live_ranges[s].first;
      if (first == Usage::kNever || last[s] < first || ops_.Stays(usage, s)) continue;
      bytes[std::max<int64_t>(0, first)] += ops_.tensors()[s % n].bytes;
      bytes[last[s] + 1] -= ops_.tensors()[s % n].bytes;
    }
    std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
    for (size_t i = 0; i < usage.schedule.size(); ++i) {
      int64_t shared = 0;
      for (const auto& [in, out] : ops_.ViewOf(usage.schedule[i]).in_place) {
        shared = std::max(shared, ops_.tensors()[out].bytes);
      }
      bytes[i] -= shared;
    }
    return bytes;
  }

  // By live range: its last use by an op of the backward pass proper or by a repeated one that such
  // an op reads from: these run whatever else is kept.
  std::vector<int64_t> LastCertainUses(const Usage& usage, const Choice& choice) const {
    const size_t n = ops_.tensors().size();
    std::vector<int64_t> last(2 * n);
    for (size_t s = 0; s < 2 * n; ++s) last[s] = usage.live_ranges[s].last_derived;
    for (size_t i = ops_.forward(); i < usage.schedule.size(); ++i) {
      if (!usage.schedule[i].again || !IsRead(usage, usage.schedule[i].op)) continue;
      for (const Place id : ops_.ViewOf(usage.schedule[i]).reads) {
        int64_t& use = last[ops_.Repeated(choice, id) ? n + id : id];
        use = std::max(use, static_cast<int64_t>(i));
      }
    }
    return last;
  }

  bool IsRead(const Usage& usage, size_t op) const {
    const std::vector<Place>& writes = ops_.again(op).writes;
    return std::any_of(writes.begin(), writes.end(), [&](Place id) {
      return usage.live_ranges[ops_.tensors().size() + id].last_derived != Usage::kNever;
    });
  }

  // Adds to `least`, by op of `choice`, what micro-batches in flight have at the least when it is
  // kept: what they have whatever is repeated, and further ones its results.
  void AddFurtherFlights(const Usage& usage, const Choice& choice,
                         std::vector<int64_t>& least) const {
    if (!ops_.left_before_backward()) return;
    const size_t n = ops_.tensors().size();
    std::vector<int64_t> certain;  // by chunk
    for (size_t id = 0; id < n; ++id) {
      const bool stays =
          usage.live_ranges[id].last_derived != Usage::kNever || ops_.tensors()[id].sent;
      if (!stays || !ops_.Stays(usage, id)) continue;
      const auto chunk = static_cast<size_t>(usage.live_ranges[id].chunk);
      certain.resize(std::max(certain.size(), chunk + 1));
      certain[chunk] += ops_.tensors()[id].bytes;
    }
    for (size_t op = 0; op < ops_.forward(); ++op) {
      if (!choice[op]) continue;
      const auto chunk = static_cast<size_t>(ops_.chunk_of(op));
      int64_t bytes = 0;
      for (const Place id : ops_.again(op).writes) {
        const bool needed = usage.live_ranges[n + id].last_derived != Usage::kNever;
        if (needed) bytes += ops_.tensors()[id].bytes;
      }
      least[op] += (ops_.flights_of(ops_.chunk_of(op)) - 1) * bytes;
      if (chunk < certain.size()) least[op] += ops_.flights() * certain[chunk];
    }
  }

  // By forward op: what is in use at once, at the least, when this op of `choice` is kept. Then all
  // is repeated as before but for what it is made from, which may be scheduled later. So there are
  // still, in their order,
  //   up to the op that the kept one is repeated for: all that certainly runs later needs, but not
  //   the operands of the kept one for its sake; and its result;
  //   at the op for which the highest use is repeated: what is repeated after the kept one;
  //   later: all but what is repeated up to there; and where an op of the backward pass proper
  //   reads what was repeated before the kept one: all that this is made from, until its last use.
  std::vector<int64_t> LeastUseIfKept(const Usage& usage, const Choice& choice) const {
    const size_t n = ops_.tensors().size(), forward = ops_.forward();
    std::vector<int64_t> least(forward);
    size_t peak = usage.at;  // where that op is scheduled
    if (peak == usage.schedule.size()) return least;
    while (usage.schedule[peak].again) ++peak;
    if (usage.schedule[peak].op < forward) return least;
    std::vector<int64_t> derived(2 * n, Usage::kNever), any(2 * n, Usage::kNever);
    for (size_t s = 0; s < 2 * n; ++s) {
      const Usage::Span& range = usage.live_ranges[s];
      if (s < n) derived[s] = range.last_derived;
      if (s < n || range.first > static_cast<int64_t>(peak)) any[s] = range.last;
    }
    const std::vector<int64_t> kept = BytesUntil(usage, derived);
    const std::vector<int64_t> later = BytesUntil(usage, any);
    const std::vector<int64_t> certain = BytesUntil(usage, LastCertainUses(usage, choice));
    // Bytes of what an op repeats that are there at place `at` of the schedule, and of what it may
    // be the last to need.
    const auto there = [&](size_t op, size_t at) {
      int64_t bytes = 0;
      for (const Place id : ops_.again(op).writes) {
        const bool needed = usage.live_ranges[n + id].last_derived >= static_cast<int64_t>(at);
        if (needed) bytes += ops_.tensors()[id].bytes;
      }
      return bytes;
    };
    const auto operands = [&](size_t op, size_t at) {
      int64_t bytes = 0;
      for (const Place id : ops_.again(op).reads) {
        const Usage::Span& range = usage.live_ranges[ops_.Repeated(choice, id) ? n + id : id];
        if (range.last_derived < static_cast<int64_t>(at)) bytes += ops_.tensors()[id].bytes;
      }
      return bytes;
    };

    std::vector<size_t> order;  // of the ops that are repeated up to the peak
    int64_t before = 0, running = 0, last = 0;
    for (size_t i = forward; i < peak; ++i) {
      const auto [op, again] = usage.schedule[i];
      running = std::max(running, certain[i]);
      if (!again) before = running;
      if (again) least[op] = before + there(op, i) - operands(op, i), order.push_back(op);
    }
    int64_t after = kept[peak];
    for (size_t i = order.size(); i-- > 0;) {
      after += there(order[i], peak);
      least[order[i]] = std::max(least[order[i]], after);
    }

    std::vector<int64_t> highest(order.size() + 1);  // by how many of `order` come before it
    std::vector<size_t> position(forward, order.size()), mark(forward), made_from;
    for (size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
    for (size_t at = peak + 1; at < usage.schedule.size(); ++at) {
      last = std::max(last, later[at]);
      if (usage.schedule[at].again) continue;
      for (const Place id : ops_.ViewOf(usage.schedule[at]).reads) {
        if (!ops_.Repeated(choice, id) || position[ops_.producer(id)] == order.size()) continue;
        made_from.assign(1, ops_.producer(id));
        mark[ops_.producer(id)] = at;
        int64_t bytes = kept[at];
        for (size_t i = 0; i < made_from.size(); ++i) {
          bytes += there(made_from[i], at);
          for (const Place read : ops_.again(made_from[i]).reads) {
            if (!ops_.Repeated(choice, read) || mark[ops_.producer(read)] == at) continue;
            mark[ops_.producer(read)] = at;
            made_from.push_back(ops_.producer(read));
          }
        }
        int64_t& most = highest[position[ops_.producer(id)] + 1];
        most = std::max(most, bytes);
      }
    }
    for (size_t i = 0; i < order.size(); ++i) {
      last = std::max(last, highest[i]);
      least[order[i]] = std::max(least[order[i]], last);
    }
    return least;
  }

  // An op, repeated with those before it whose results are not kept.
  struct Group {
    std::vector<int> ops;
    int64_t freed = 0;  // bytes at the highest use
    double cost = 0;
    double worth() const { return static_cast<double>(freed) / cost; }
  };

  Group GroupOf(const Usage& usage, const Choice& choice, int op) const {
    Group group{.ops = {op}};
    for (size_t i = 0; i < group.ops.size(); ++i) {
      const OpView& view = ops_.again(group.ops[i]);
      group.cost += view.cost;
      for (const Place id : view.writes) {
        group.freed += Freed(usage, id);
      }
      for (const Place id : view.reads) {
        const int producer = ops_.producer(id);
        if (usage.live_ranges[id].first_backward != Usage::kNever || ops_.Repeated(choice, id))
          continue;
        if (producer == Repetition::kNoProducer) {  // to be kept for this alone
          const bool is_there_anyway = ops_.tensors()[id].input && !ops_.left_before_backward();
          const int64_t flights = ops_.flights_of(ops_.chunk_of(group.ops[i]));
          if (!is_there_anyway) group.freed -= flights * ops_.tensors()[id].bytes;
        } else if (std::find(group.ops.begin(), group.ops.end(), producer) == group.ops.end()) {
          group.ops.push_back(producer);
        }
      }
    }
    return group;
  }

  // Keeps again, the most expensive first, what need not be repeated.
  void KeepWhatFits(int64_t target, Choice& choice) const {
    std::vector<size_t> ops;
    for (size_t i = 0; i < ops_.forward(); ++i) {
      if (choice[i]) ops.push_back(i);
    }
    std::stable_sort(ops.begin(), ops.end(),
                     [&](size_t a, size_t b) { return ops_.again(a).cost > ops_.again(b).cost; });
    if (ops.size() > kMostKept) ops.resize(kMostKept);
    Usage trial;
    for (const size_t op : ops) {
      choice[op] = false;
      ops_.Measure(choice, trial);
      choice[op] = trial.peak > target;
    }
  }

  const Repetition& ops_;
};

// What PackActivations gives to graph.ops and to what is `beside` them.
int64_t BytesWith(const MemoryBeside& beside, const Graph& graph) {
  std::vector<int64_t> offsets(graph.tensors.size());
  const Flights flights = beside.flights.In(graph.ops);
  const std::vector<int64_t> stays = StaysInFlight(flights, graph.tensors, graph.ops);
  const int64_t alone =
      PackActivations(PackedWhere(graph.tensors, stays, kForOnePass), graph.ops, {}, offsets);
  const int64_t flight = PackFlight(flights, graph.tensors, graph.ops, stays, offsets);
  return std::max(alone, beside.others) + flights.count * flight;
}

// Rewrites graph.ops so that BytesWith gives at most `budget`, or as little as was found.
void Recompute(size_t forward, int64_t budget, const MemoryBeside& beside, Graph& graph) {
  int64_t least = BytesWith(beside, graph);
  if (least <= budget) return;
  const Repetition ops(forward, graph, beside);
  const Search search(ops);
  Graph best = graph;
  // Returns what a layout needs at most `target` bytes in use at once; 0: that cannot be reached.
  const auto attempt = [&](int64_t target) {
    Choice choice(forward);
    const bool reached = search.Reduce(target, choice);
    Graph rewritten = ops.Rewrite(choice);
    const int64_t bytes = BytesWith(beside, rewritten);
    if (bytes < least) least = bytes, best = std::move(rewritten);
    return reached ? bytes : 0;
  };
  // A layout may need a little more than is in use at once: then that much less must be.
  constexpr int kAttempts = 8;
  int64_t target = std::max<int64_t>(budget, 1);
  bool least_tried = false;
  for (int i = 0; i < kAttempts && least > budget && target > 0; ++i) {
    const int64_t bytes = attempt(target);
    least_tried |= target == 1;
    if (bytes == 0) break;
    target -= std::max(bytes - budget, budget / 64);
  }
  if (least > budget && !least_tried) attempt(1);
  graph = std::move(best);
}

// What other lists of ops than plan.micro need, which take turns with it.
int64_t BytesOfOthers(const Plan& plan) {
  std::vector<int64_t> offsets(plan.tensors.size());
  return std::max(PackActivations(plan.tensors, plan.evaluate, EvaluationResults(plan), offsets),
                  PackActivations(plan.tensors, plan.end, {}, offsets));
}

// What is uploaded, where it stays for all passes of its micro-batch.
int64_t BytesOfBatches(const Flights& flights, const Plan& plan) {
  const std::vector<int64_t> stays = StaysInFlight(flights, plan.tensors, plan.micro);
  int64_t bytes = 0;
  for (size_t i = 0; i < stays.size(); ++i) {
    if (stays[i] == kForAllPasses) bytes += Align(plan.tensors[i].bytes());
  }
  return flights.batches * bytes;
}

}  // namespace

void RecomputeWithin(int64_t bytes, const std::vector<TensorId>& scalars, size_t forward,
                     Plan& plan) {
  int64_t fixed = 0;
  for (const std::vector<TensorId>* ids :
       {&scalars, &std::as_const(plan.unread), &std::as_const(plan.received)}) {
    for (const TensorId id : *ids) fixed += Align(plan.tensors[id].bytes());
  }
  if (plan.leaves != kNone) fixed += Align(plan.tensors[plan.leaves].bytes());
  FindPasses(forward, plan);
  const MemoryBeside all = {.flights = FlightsIn(plan), .others = BytesOfOthers(plan)};
  fixed += BytesOfBatches(all.flights, plan);
  const int64_t budget = bytes - fixed;
  MemoryBeside counted = all;
  // Without micro-batches in between, to go below what takes turns helps too: activations lie in
  // the memory of gradients, of which others may take more. What is beyond the budget hides
  // nothing.
  if (!all.flights.left_before_backward() || all.others > budget) counted.others = 0;
  v1::PassSummary& pass = *plan.summary.add_passes();
  pass.set_name("recompute");
  pass.set_ops_before(static_cast<int32_t>(plan.micro.size()));

  Graph graph{.tensors = std::move(plan.tensors), .ops = std::move(plan.micro)};
  pass.set_bytes_before(BytesWith(all, graph));
  Recompute(forward, budget, counted, graph);
  pass.set_bytes_after(BytesWith(all, graph));
  plan.tensors = std::move(graph.tensors);
  plan.micro = std::move(graph.ops);
  pass.set_ops_after(static_cast<int32_t>(plan.micro.size()));
}

}  // namespace trainyard::plan
