#include "executor/plan/passes/stages.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/ops/op.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// By tensor: the parameter that it is, or is the copy of; else kNone.
std::vector<TensorId> ParametersOf(const Graph& graph, const CopyOfWeight& copies) {
  std::vector<TensorId> parameters(graph.tensors.size(), kNone);
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if (graph.tensors[i].kind == TensorKind::kParameter) parameters[i] = static_cast<TensorId>(i);
  }
  for (const auto& [parameter, copy] : copies) parameters[copy] = parameter;
  return parameters;
}

// The ops before which a graph can be cut.
std::vector<size_t> PlacesToCut(const Graph& graph, const std::vector<TensorId>& parameter_of) {
  // Of activations: the op that writes it first, and those that read it first and last.
  constexpr size_t kNever = ~size_t{0};
  struct Use {
    size_t written = kNever, first_read = kNever, last_read = 0;
  };
  std::vector<Use> uses(graph.tensors.size());
  std::vector<bool> seen(graph.tensors.size());
  std::vector<bool> begins(graph.ops.size());  // with an op that reads a parameter that none before
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    VisitOperands(graph.ops[i], [&](TensorId id, Access access) {
      if (const TensorId parameter = parameter_of[id]; parameter != kNone) {
        if (!seen[parameter]) begins[i] = true;
        seen[parameter] = true;
      }
      if (graph[id].kind != TensorKind::kActivation) return;
      if (access != Access::kRead) uses[id].written = std::min(uses[id].written, i);
      if (access == Access::kWrite) return;
      uses[id].first_read = std::min(uses[id].first_read, i);
      uses[id].last_read = i;
    });
  }
  // How many activations go on across each place, and how many of them were read before it.
  std::vector<int> across(graph.ops.size() + 1), read_before(graph.ops.size() + 1);
  for (const Use& use : uses) {
    if (use.written == kNever || use.first_read == kNever) continue;
    for (size_t i = use.written + 1; i <= use.last_read; ++i) {
      ++across[i];
      if (use.first_read < i) ++read_before[i];
    }
  }
  std::vector<size_t> places;
  for (size_t i = 1; i < graph.ops.size(); ++i) {
    if (begins[i] && across[i] == 1 && read_before[i] == 0) places.push_back(i);
  }
  return places;
}

// The first ops of all pieces but the first: of `places` those that are nearest to equal shares.
std::vector<size_t> ChooseCuts(const std::vector<Op>& ops, const std::vector<size_t>& places,
                               int64_t pieces) {
  std::vector<double> before(ops.size() + 1);  // FLOPs of the ops before each
  for (size_t i = 0; i < ops.size(); ++i) before[i + 1] = before[i] + Flops(ops[i]);
  std::vector<size_t> cuts;
  size_t next = 0;  // of places
  for (int64_t piece = 1; piece < pieces; ++piece) {
    const double wanted = before.back() * static_cast<double>(piece) / static_cast<double>(pieces);
    const size_t last = places.size() - static_cast<size_t>(pieces - piece);  // leaves enough
    size_t best = next;
    for (size_t i = next; i <= last; ++i) {
      if (std::abs(before[places[i]] - wanted) < std::abs(before[places[best]] - wanted)) best = i;
    }
    cuts.push_back(places[best]);
    next = best + 1;
  }
  return cuts;
}

// The piece of each of the first `count` ops: that of the parameters that it reads, or else of the
// op before it.
std::vector<int64_t> PiecesOfForward(const Graph& graph, const std::vector<TensorId>& parameter_of,
                                     size_t count) {
  std::vector<int64_t> pieces;
  int64_t piece = 0;
  for (size_t i = 0; i < count; ++i) {
    VisitOperands(graph.ops[i], [&](TensorId id, Access) {
      if (parameter_of[id] != kNone) piece = std::max(piece, graph[parameter_of[id]].piece);
    });
    pieces.push_back(piece);
  }
  return pieces;
}

// Goes over the ops of all pieces in order, finds what goes from piece to piece, and keeps what is
// of one stage.
class StageHosting {
 public:
  StageHosting(const ShardHost& host, Graph& graph)
      : host_(host),
        pipeline_(host.pipeline()),
        graph_(graph),
        writer_(graph.tensors.size(), kNobody),
        first_(graph.tensors.size(), kNobody),
        links_(host.chunks) {}

  // The next op, of a pass through `piece`.
  void Host(Op& op, int64_t piece, bool backward) {
    VisitOperands(op, [&](TensorId id, Access access) { Follow(id, access, piece); });
    if (!IsMine(piece)) {
      flops_elsewhere_ += Flops(op);
      return;
    }
    BeginPass(pipeline_.chunk_of(piece), backward);
    VisitOperands(op, [&](TensorId& id, Access) { id = Own(id, piece); });
    if (kept_.empty()) CheckBeginsWith(op, links_[0].from_before);
    kept_.push_back(std::move(op));
    if (!backward) forward_ = kept_.size();
  }

  HostedStage End() {
    for (const StageLinks& links : links_) {
      if (links.from_before != kNone) graph_.tensors[links.from_before].made_by = host_.before();
      if (links.to_after != kNone) graph_.tensors[links.to_after].made_by = host_.rank;
    }
    // What a pass needs of another piece is received before it, the first one apart.
    for (auto pass = passes_.rbegin(); pass != passes_.rend() && pass->begin > 0; ++pass) {
      const StageLinks& links = links_[pass->chunk];
      const TensorId arrives = pass->backward ? links.from_after : links.from_before;
      if (arrives == kNone) continue;
      kept_.insert(kept_.begin() + pass->begin, Arrive{.x = arrives});
      if (!pass->backward) ++forward_;
    }
    graph_.ops = std::move(kept_);
    return {.forward = forward_, .flops_elsewhere = flops_elsewhere_, .links = std::move(links_)};
  }

 private:
  static constexpr int64_t kNobody = -1;

  bool IsMine(int64_t piece) const { return pipeline_.stage_of(piece) == host_.stage(); }
  bool Passes(TensorId id) const {
    return graph_[id].kind == TensorKind::kActivation || graph_[id].kind == TensorKind::kReceived;
  }

  // What is received may be added to, and go on to the next piece.
  void Follow(TensorId id, Access access, int64_t piece) {
    if (!Passes(id)) return;
    const int64_t from = writer_[id] == kNobody ? piece : writer_[id];
    if (writer_[id] == kNobody || access != Access::kRead) writer_[id] = piece;
    if (from == piece) return;
    TY_CHECK(access != Access::kWrite && std::abs(from - piece) == 1, "piece ", piece, " touches ",
             graph_[id].name, ", which piece ", from, " makes");
    const bool onward = from < piece;
    if (IsMine(from)) {
      StageLinks& links = links_[pipeline_.chunk_of(from)];
      Link(onward ? links.to_after : links.to_before, Own(id, from));
    }
    if (!IsMine(piece)) return;
    StageLinks& links = links_[pipeline_.chunk_of(piece)];
    const TensorId own = Own(id, piece);
    Link(onward ? links.from_before : links.from_after, own);
    graph_.tensors[own].kind = TensorKind::kReceived;
  }

  void Link(TensorId& place, TensorId id) const {
    TY_CHECK(place == kNone || place == id, graph_[id].name, " and ", graph_[place].name,
             " go the same way between two pieces");
    place = id;
  }

  // What goes through several pieces of this stage, as a gradient may that all layers add to, is
  // another tensor in each.
  TensorId Own(TensorId id, int64_t piece) {
    if (!Passes(id)) return id;
    if (first_[id] == kNobody) first_[id] = piece;
    if (first_[id] == piece) return id;
    TensorId& own = own_.try_emplace({piece, id}, kNone).first->second;
    if (own == kNone) {
      Tensor tensor = graph_[id];
      absl::StrAppend(&tensor.name, " (piece ", piece, ")");
      tensor.kind = TensorKind::kActivation;
      own = graph_.Add(std::move(tensor));
    }
    return own;
  }

  // Unless the op before is of the same pass.
  void BeginPass(int64_t chunk, bool backward) {
    const auto begin = static_cast<std::ptrdiff_t>(kept_.size());
    if (!passes_.empty()) {
      const PassThrough& last = passes_.back();
      if (last.chunk == chunk && last.backward == backward) return;
      TY_CHECK(
          backward ? !last.backward || chunk < last.chunk : !last.backward && chunk > last.chunk,
          "chunk ", chunk, " behind chunk ", last.chunk);
    }
    passes_.push_back({.chunk = chunk, .backward = backward, .begin = begin});
  }

  // It is received before all ops, and its memory is its own from the first one on that reads it.
  void CheckBeginsWith(const Op& op, TensorId received) const {
    bool reads = received == kNone;
    VisitOperands(op, [&](TensorId id, Access) { reads |= id == received; });
    TY_CHECK(reads, "the first op of stage ", host_.stage(), " reads no ", graph_[received].name);
  }

  const ShardHost host_;
  const Pipeline pipeline_;
  Graph& graph_;
  std::vector<int64_t> writer_;  // by activation: the last piece that wrote it
  std::vector<int64_t> first_;   // by activation: the first piece of this stage that touches it
  absl::flat_hash_map<std::pair<int64_t, TensorId>, TensorId> own_;  // of the further ones
  std::vector<StageLinks> links_;
  struct PassThrough {
    int64_t chunk = 0;
    bool backward = false;
    std::ptrdiff_t begin = 0;  // the place of its first op among those that are kept
  };
  std::vector<PassThrough> passes_;
  std::vector<Op> kept_;
  size_t forward_ = 0;
  double flops_elsewhere_ = 0;
};

// The first op from `from` on that says that `id` has arrived.
int64_t ArrivalOf(TensorId id, const std::vector<Op>& ops, int64_t from) {
  const auto arrives = [id](const Op& op) {
    const auto* const arrive = std::get_if<Arrive>(&op);
    return arrive != nullptr && arrive->x == id;
  };
  const auto found = std::find_if(ops.begin() + from, ops.end(), arrives);
  TY_CHECK(found != ops.end(), "tensor ", static_cast<int64_t>(id), " never arrives");
  return found - ops.begin();
}

}  // namespace

absl::Status AssignPieces(const Pipeline& pipeline, const CopyOfWeight& copies, Graph& graph) {
  if (pipeline.stages == 1) return absl::OkStatus();
  const std::vector<TensorId> parameter_of = ParametersOf(graph, copies);
  const std::vector<size_t> places = PlacesToCut(graph, parameter_of);
  if (static_cast<int64_t>(places.size()) < pipeline.pieces() - 1) {
    const std::string at = "spec.parallel.layout.";
    return absl::InvalidArgumentError(absl::StrCat(
        at,
        pipeline.chunks == 1
            ? absl::StrCat("pipeline: ", pipeline.stages, " stages")
            : absl::StrCat("chunks: ", pipeline.stages, " stages of ", pipeline.chunks, " chunks"),
        " are more than the model can be cut into; expected at most ", places.size() + 1));
  }
  const std::vector<size_t> cuts = ChooseCuts(graph.ops, places, pipeline.pieces());
  std::vector<bool> seen(graph.tensors.size());
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const auto piece = std::upper_bound(cuts.begin(), cuts.end(), i) - cuts.begin();
    VisitOperands(graph.ops[i], [&](TensorId id, Access) {
      const TensorId parameter = parameter_of[id];
      if (parameter == kNone) return;
      TY_CHECK(!seen[parameter] || graph[parameter].piece == piece, graph[parameter].name,
               " is read by pieces ", graph[parameter].piece, " and ", piece);
      seen[parameter] = true;
      graph.tensors[parameter].piece = piece;
    });
  }
  return absl::OkStatus();
}

HostedStage HostStage(const ShardHost& host, const CopyOfWeight& copies, const StagedGraph& staged,
                      Graph& graph) {
  if (host.stages == 1) return {.forward = staged.forward, .links = {StageLinks()}};
  const std::vector<int64_t> of_forward =
      PiecesOfForward(graph, ParametersOf(graph, copies), staged.forward);
  std::vector<int64_t> piece_of = of_forward;
  piece_of.resize(staged.forward + staged.loss, host.pipeline().pieces() - 1);
  for (const size_t op : staged.gradient_of) piece_of.push_back(of_forward[op]);
  TY_CHECK(piece_of.size() == graph.ops.size(), piece_of.size(), " of ", graph.ops.size(), " ops");
  StageHosting hosting(host, graph);
  std::vector<Op> ops = std::move(graph.ops);
  for (size_t i = 0; i < ops.size(); ++i) {
    hosting.Host(ops[i], piece_of[i], /*backward=*/i >= staged.forward);
  }
  return hosting.End();
}

std::vector<int64_t> FirstOps(const std::vector<StageLinks>& links, const std::vector<Op>& ops) {
  std::vector<int64_t> first = {0};
  for (size_t chunk = 1; chunk < links.size(); ++chunk) {
    first.push_back(ArrivalOf(links[chunk].from_before, ops, first.back()));
  }
  return first;
}

void FindPasses(size_t forward, const std::vector<Op>& ops, std::vector<StageChunk>& chunks) {
  const auto end = static_cast<int64_t>(ops.size());
  std::vector<StageLinks> links;
  for (const StageChunk& chunk : chunks) links.push_back(chunk.links);
  const std::vector<int64_t> first = FirstOps(links, ops);
  auto next = static_cast<int64_t>(forward);
  for (size_t c = chunks.size(); c-- > 0;) {
    const bool last = c + 1 == chunks.size();
    const TensorId ends_with = c == 0 ? kNone : links[c - 1].from_after;
    const int64_t over = ends_with == kNone ? end : ArrivalOf(ends_with, ops, next);
    chunks[c].forward = {first[c], last ? static_cast<int64_t>(forward) : first[c + 1]};
    chunks[c].backward = {next, over};
    // Of the last piece the one begins where the other ends.
    const bool at_once = last && links[c].from_after == kNone;
    if (at_once) chunks[c].forward.end = chunks[c].backward.first = over;
    next = over;
  }
}

void FindPasses(size_t forward, Plan& plan) {
  const bool at_once = plan.chunks.size() == 1 && plan.chunks[0].links.from_after == kNone;
  plan.backward_from = static_cast<int64_t>(at_once ? plan.micro.size() : forward);
  FindPasses(forward, plan.micro, plan.chunks);
}

void AddStageExchanges(const std::vector<StageLinks>& links, const std::vector<TensorId>& results,
                       Plan& plan) {
  const ShardHost& host = plan.host;
  if (host.stages == 1) return;
  const auto end = static_cast<int64_t>(plan.evaluate.size());
  const std::vector<int64_t> first = FirstOps(links, plan.evaluate);
  std::vector<ShardExchange> exchanges;
  for (size_t chunk = 0; chunk < links.size(); ++chunk) {
    const StageLinks& of = links[chunk];
    if (of.from_before != kNone) {
      exchanges.push_back({first[chunk], {of.from_before}, {host.before(), host.rank}});
    }
    if (of.to_after != kNone) {
      const int64_t over = chunk + 1 == links.size() ? end : first[chunk + 1];
      exchanges.push_back({over, {of.to_after}, {host.rank, host.after()}});
    }
  }
  // Before what shards exchange at the first op of a chunk.
  absl::c_move(plan.evaluate_exchanges, std::back_inserter(exchanges));
  absl::c_stable_sort(exchanges, [](const ShardExchange& a, const ShardExchange& b) {
    return a.before_op < b.before_op;
  });
  exchanges.push_back({end, results});
  plan.evaluate_exchanges = std::move(exchanges);
}

absl::Status CheckStagesTrain(const Graph& graph, const Plan& plan) {
  const Pipeline pipeline = plan.host.pipeline();
  std::vector<bool> trains(pipeline.pieces());
  for (size_t i = 0; i < plan.trained_of_group; ++i) trains[graph[plan.of_group[i]].piece] = true;
  const auto idle = std::find(trains.begin(), trains.end(), false);
  if (idle == trains.end()) return absl::OkStatus();
  const std::string pieces =
      pipeline.chunks == 1
          ? absl::StrCat(pipeline.stages, " stages of spec.parallel.layout.pipeline")
          : absl::StrCat(pipeline.pieces(), " chunks of the stages of spec.parallel.layout");
  return absl::InvalidArgumentError(
      absl::StrCat("spec.optimizer.groups: of the ", pieces, " number ", idle - trains.begin() + 1,
                   " has frozen parameters alone; expected some to train in each: use fewer ",
                   pipeline.chunks == 1 ? "stages" : "chunks or stages"));
}

}  // namespace trainyard::plan
