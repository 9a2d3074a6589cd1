#include "executor/plan/passes/recompute.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/plan/cost.h"
#include "executor/plan/memory.h"

namespace trainyard::plan {

namespace {

// Time of an op, in bytes moved: what it touches, and its products at so many FLOP to the byte.
// CPUs do about 12 per byte of memory bandwidth, GPUs 50 to 200 of narrow ones.
constexpr double kFlopsPerByte = 16;

// How finely the search proceeds, and how many ops it tries to keep again: what bounds its time.
constexpr int64_t kStepsToTarget = 32;
constexpr size_t kMostKept = 256;

// An op as the search sees it.
struct OpView {
  std::vector<TensorId> reads, writes;
  std::vector<std::pair<TensorId, TensorId>> in_place;
  double cost = 0;
};

OpView ViewOf(const Graph& graph, Op op) {
  OpView view{.in_place = InPlacePairs(op), .cost = Flops(graph.tensors, op) / kFlopsPerByte};
  std::visit(
      [&](auto& o) {
        o.Visit([&](TensorId id, Access access) {
          if (access != Access::kWrite) view.reads.push_back(id);
          if (access != Access::kRead) view.writes.push_back(id);
          view.cost += static_cast<double>(graph[id].bytes());
        });
      },
      op);
  return view;
}

// The op that computes the same a second time; none: it would change more than activations.
std::optional<Op> Again(const Graph& graph, Op op) {
  if (auto* const norm = std::get_if<BatchNormForward>(&op)) {
    norm->again = true;
    norm->running_mean = norm->running_var = kNone;
  }
  bool pure = true;
  std::visit(
      [&](auto& o) {
        o.Visit([&](TensorId id, Access access) {
          if (access == Access::kRead) return;
          pure &= access == Access::kWrite && graph[id].kind == TensorKind::kActivation;
        });
      },
      op);
  if (!pure) return std::nullopt;
  return op;
}

// What is repeated, by op of the forward pass.
using Choice = std::vector<bool>;

// An op in its turn, for the first or the second time.
struct Turn {
  size_t op = 0;
  bool again = false;
};

// What a choice needs. A tensor t that is computed a second time has a second life: that of tensor
// (number of tensors) + t.
struct Usage {
  static constexpr int64_t kNever = -2;
  struct Span {
    int64_t first = kNever, last = kNever;
    int64_t last_forward = kNever;    // use in the forward pass
    int64_t first_backward = kNever;  // use after it
  };
  std::vector<Span> lives;
  int64_t peak = 0;
  int64_t at = 0;  // the turn of the highest use
};

class Search {
 public:
  Search(size_t forward, const Graph& graph)
      : graph_(graph), forward_(forward), producer_(graph.tensors.size(), kNobody) {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      views_.push_back(ViewOf(graph, graph.ops[i]));
      if (i >= forward) continue;
      again_.push_back(Again(graph, graph.ops[i]));
      again_views_.push_back(again_.back() ? ViewOf(graph, *again_.back()) : OpView());
      for (const TensorId id : again_views_.back().writes) producer_[id] = static_cast<int>(i);
    }
  }

  // Repeats more and more until at most `target` bytes are in use at once; false: nothing is left
  // that would help, and `choice` is the best there was.
  bool Reduce(int64_t target, Choice& choice) const {
    Choice at = choice, kept(forward_);
    int64_t best = Measure(choice).peak;
    for (;;) {
      const Usage usage = Measure(at);
      if (usage.peak < best) best = usage.peak, choice = at;
      if (usage.peak <= target) break;
      if (!RepeatMore(usage, target, kept, at) && !KeepAfterAll(usage, kept, at)) return false;
    }
    KeepWhatFits(target, choice);
    return true;
  }

  Graph Rewrite(const Choice& choice) const {
    Graph graph;
    graph.tensors = graph_.tensors;
    std::vector<TensorId> second(graph_.tensors.size(), kNone);
    for (const Turn& turn : TurnsOf(choice)) {
      Op op = turn.again ? *again_[turn.op] : graph_.ops[turn.op];
      const auto redirect = [&](TensorId& id, Access access) {
        if (turn.again && access == Access::kWrite) {
          Tensor tensor = graph_[id];
          tensor.name = absl::StrCat(tensor.name, " again");
          second[id] = graph.Add(std::move(tensor));
        }
        if (second[id] != kNone) id = second[id];
      };
      std::visit([&](auto& o) { o.Visit(redirect); }, op);
      graph.ops.push_back(std::move(op));
    }
    return graph;
  }

 private:
  static constexpr int kNobody = -1;  // produces it, or nobody could do so again

  bool Repeated(const Choice& choice, TensorId id) const {
    return producer_[id] != kNobody && choice[producer_[id]];
  }

  // The forward pass, then the backward pass with the repeated ops where they are needed first.
  std::vector<Turn> TurnsOf(const Choice& choice) const {
    std::vector<Turn> turns;
    for (size_t i = 0; i < forward_; ++i) turns.push_back({.op = i});
    std::vector<bool> done(forward_);
    std::vector<size_t> open;  // ops to repeat, each after those above it
    const auto demand = [&](const std::vector<TensorId>& reads) {
      for (const TensorId id : reads) {
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
        if (!done[op]) turns.push_back({.op = op, .again = true});
        done[op] = true;
      }
      turns.push_back({.op = i});
    }
    return turns;
  }

  Usage Measure(const Choice& choice) const {
    const std::vector<Turn> turns = TurnsOf(choice);
    const size_t n = graph_.tensors.size();
    Usage usage{.lives = std::vector<Usage::Span>(2 * n)};
    // Which of its lives a tensor is in.
    const auto slot = [&](const Turn& turn, TensorId id, bool written) {
      const bool backward = turn.again || turn.op >= forward_;
      const bool second = turn.again && written ? true : backward && Repeated(choice, id);
      return second ? n + id : static_cast<size_t>(id);
    };
    const auto touch = [&](const Turn& turn, int64_t at, TensorId id, bool written) {
      const TensorKind kind = graph_[id].kind;
      if (kind != TensorKind::kActivation && kind != TensorKind::kInput) return;
      Usage::Span& life = usage.lives[slot(turn, id, written)];
      if (life.first == Usage::kNever) life.first = kind == TensorKind::kInput ? -1 : at;
      life.last = at;
      if (!turn.again && turn.op < forward_) {
        life.last_forward = at;
      } else if (life.first_backward == Usage::kNever) {
        life.first_backward = at;
      }
    };
    for (size_t at = 0; at < turns.size(); ++at) {
      const Turn& turn = turns[at];
      const OpView& view = turn.again ? again_views_[turn.op] : views_[turn.op];
      for (const TensorId id : view.reads) touch(turn, static_cast<int64_t>(at), id, false);
      for (const TensorId id : view.writes) touch(turn, static_cast<int64_t>(at), id, true);
    }
    FindPeak(turns, slot, usage);
    return usage;
  }

  template <typename Slot>
  void FindPeak(const std::vector<Turn>& turns, const Slot& slot, Usage& usage) const {
    const size_t n = graph_.tensors.size();
    const auto bytes = [&](size_t s) { return Align(graph_.tensors[s % n].bytes()); };
    std::vector<int64_t> change(turns.size() + 1), shared(turns.size());
    for (size_t s = 0; s < 2 * n; ++s) {
      const Usage::Span& life = usage.lives[s];
      if (life.first == Usage::kNever) continue;
      change[std::max<int64_t>(0, life.first)] += bytes(s);
      change[life.last + 1] -= bytes(s);
    }
    for (size_t i = 0; i < turns.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const OpView& view = turns[i].again ? again_views_[turns[i].op] : views_[turns[i].op];
      for (const auto& [in, out] : view.in_place) {
        if (in == kNone || out == kNone) continue;
        const size_t from = slot(turns[i], in, false), to = slot(turns[i], out, true);
        const bool joined = usage.lives[from].last == at && usage.lives[to].first == at &&
                            graph_[in].kind == TensorKind::kActivation && bytes(from) == bytes(to);
        if (!joined) continue;
        shared[i] += bytes(to);
        break;
      }
    }
    int64_t live = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
      live += change[i];
      if (live - shared[i] <= usage.peak) continue;
      usage.peak = live - shared[i];
      usage.at = static_cast<int64_t>(i);
    }
  }

  // Whether `life` spans the highest use without touching anything there: not to keep the tensor
  // would lower it.
  static bool Waits(const Usage& usage, const Usage::Span& life) {
    return life.first_backward > usage.at && life.last_forward < usage.at &&
           life.last_forward != Usage::kNever;
  }

  // Adds what is cheapest for the bytes it frees at the highest use, up to a share of what is too
  // much there; false: nothing frees any.
  bool RepeatMore(const Usage& usage, int64_t target, const Choice& kept, Choice& choice) const {
    std::vector<std::pair<double, int>> candidates;  // worth, op
    for (size_t id = 0; id < graph_.tensors.size(); ++id) {
      const int producer = producer_[id];
      if (producer == kNobody || choice[producer] || kept[producer]) continue;
      if (!Waits(usage, usage.lives[id])) continue;
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
    int64_t best = usage.peak;
    std::optional<size_t> op;
    for (size_t id = 0; id < graph_.tensors.size(); ++id) {
      const Usage::Span& again = usage.lives[graph_.tensors.size() + id];
      if (again.first == Usage::kNever || again.first > usage.at || again.last < usage.at) continue;
      Choice trial = choice;
      trial[producer_[id]] = false;
      const int64_t peak = Measure(trial).peak;
      if (peak < best) best = peak, op = producer_[id];
    }
    if (op) choice[*op] = false, kept[*op] = true;
    return op.has_value();
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
      const OpView& view = again_views_[group.ops[i]];
      group.cost += view.cost;
      for (const TensorId id : view.writes) {
        if (Waits(usage, usage.lives[id])) group.freed += Align(graph_[id].bytes());
      }
      for (const TensorId id : view.reads) {
        const int producer = producer_[id];
        if (usage.lives[id].first_backward != Usage::kNever || Repeated(choice, id)) continue;
        if (producer == kNobody) {  // to be kept for this alone
          if (graph_[id].kind == TensorKind::kActivation) group.freed -= Align(graph_[id].bytes());
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
    for (size_t i = 0; i < forward_; ++i) {
      if (choice[i]) ops.push_back(i);
    }
    std::stable_sort(ops.begin(), ops.end(), [&](size_t a, size_t b) {
      return again_views_[a].cost > again_views_[b].cost;
    });
    if (ops.size() > kMostKept) ops.resize(kMostKept);
    for (const size_t op : ops) {
      choice[op] = false;
      choice[op] = Measure(choice).peak > target;
    }
  }

  const Graph& graph_;
  const size_t forward_;
  std::vector<OpView> views_;             // by op
  std::vector<OpView> again_views_;       // by forward op: of the second time
  std::vector<std::optional<Op>> again_;  // by forward op
  std::vector<int> producer_;             // by tensor: the forward op that can compute it again
};

int64_t BytesOf(const Graph& graph) {
  std::vector<int64_t> offsets(graph.tensors.size());
  return PackActivations(graph.tensors, graph.ops, {}, offsets);
}

}  // namespace

int64_t Recompute(size_t forward, int64_t budget, Graph& graph) {
  int64_t least = BytesOf(graph);
  if (least <= budget) return least;
  const Search search(forward, graph);
  Graph best = graph;
  // Returns what a layout needs at most `target` bytes in use at once; 0: that cannot be reached.
  const auto attempt = [&](int64_t target) {
    Choice choice(forward);
    const bool reached = search.Reduce(target, choice);
    Graph rewritten = search.Rewrite(choice);
    const int64_t bytes = BytesOf(rewritten);
    if (bytes < least) least = bytes, best = std::move(rewritten);
    return reached ? bytes : 0;
  };
  // A layout may need a little more than is in use at once: then that much less must be.
  constexpr int kAttempts = 8;
  int64_t target = std::max<int64_t>(budget, 1);
  for (int i = 0; i < kAttempts && least > budget && target > 0; ++i) {
    const int64_t bytes = attempt(target);
    if (bytes == 0) break;
    target -= std::max(bytes - budget, budget / 64);
  }
  if (least > budget) attempt(1);
  graph = std::move(best);
  return least;
}

}  // namespace trainyard::plan
