#include "executor/plan/passes/share_rows.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/passes/stages.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// The forms of a tensor that a rank has: its own rows, all rows, or both.
struct RowForms {
  int64_t rows = 0;        // of all ranks
  TensorId own = kNone;    // those of this rank; kNone: it has all or none
  TensorId whole = kNone;  // all of them
  bool gathered = false;   // `whole` came from all ranks
};

template <typename O>
inline constexpr bool kGoesRowByRow =
    std::is_same_v<O, Add> || std::is_same_v<O, Cast> || std::is_same_v<O, Dropout> ||
    std::is_same_v<O, LayerNormForward> || std::is_same_v<O, LayerNormBackward>;

// Goes over the ops in order, and knows of each tensor who has which rows.
class RowSharing {
 public:
  RowSharing(const ShardHost& host, Graph& graph) : host_(host), graph_(graph) {}

  void Share(Op& op) {
    std::visit([&](auto& o) { ShareOp(o); }, op);
  }

  // The tensor with all rows of `id`.
  TensorId Whole(TensorId id) {
    const auto found = forms_.find(id);
    if (found == forms_.end()) return id;
    RowForms& forms = found->second;
    if (forms.whole != kNone) return forms.whole;
    Tensor whole = graph_[id];
    absl::StrAppend(&whole.name, " (of all)");
    whole.kind = TensorKind::kActivation;
    whole.made_by = kEveryRank;
    forms.whole = graph_.Add(std::move(whole));
    forms.gathered = true;
    const Run rows = Own(forms.rows);
    ops_.push_back(GatherRows{.x = forms.own,
                              .y = forms.whole,
                              .rows = rows.size(),
                              .cols = graph_[id].elements() / forms.rows,
                              .first_row = rows.first});
    return forms.whole;
  }

  // What was gathered is not kept for the backward pass.
  void EndForward() {
    for (auto& [id, forms] : forms_) {
      if (forms.gathered) forms.whole = kNone, forms.gathered = false;
    }
  }

  size_t size() const { return ops_.size(); }
  std::vector<Op> TakeOps() { return std::move(ops_); }

 private:
  Run Own(int64_t rows) const { return RowsAt(host_, host_.place(), rows); }

  bool IsActivation(TensorId id) const {
    return graph_[id].kind == TensorKind::kActivation || graph_[id].kind == TensorKind::kReceived;
  }

  // What is like `id`, which has `rows` rows, with those of this rank alone.
  TensorId NewRows(TensorId id, int64_t rows) {
    Tensor own = graph_[id];
    TY_CHECK(own.elements() % rows == 0 && own.row_stride == 0, own.name, ": not ", rows, " rows");
    own.dims = {Own(rows).size(), own.elements() / rows};
    own.kind = TensorKind::kActivation;
    own.made_by = kEveryRank;
    absl::StrAppend(&own.name, " (own rows)");
    return graph_.Add(std::move(own));
  }

  TensorId OwnRows(TensorId id, int64_t rows) {
    RowForms& forms = forms_.try_emplace(id, RowForms{.rows = rows, .whole = id}).first->second;
    TY_CHECK(forms.rows == rows, graph_[id].name, ": ", forms.rows, " rows, not ", rows);
    if (forms.own != kNone) return forms.own;
    forms.own = NewRows(id, rows);
    ops_.push_back(TakeRows{.x = forms.whole,
                            .y = forms.own,
                            .rows = Own(rows).size(),
                            .cols = graph_[id].elements() / rows,
                            .first_row = Own(rows).first});
    return forms.own;
  }

  // How many rows an operand of `op` has of which there are the own rows alone; 0: none.
  template <typename O>
  int64_t RowsOf(const O& op) const {
    int64_t rows = 0;
    VisitOperands(op, [&](TensorId id, Access access) {
      const auto found = forms_.find(id);
      if (access == Access::kWrite || found == forms_.end()) return;
      if (found->second.whole == kNone) rows = found->second.rows;
    });
    return rows;
  }

  // Computes the own rows where an operand is there as these alone, else all rows.
  template <typename O>
  void ShareOp(O& op) {
    if constexpr (kGoesRowByRow<O>) {
      if (const int64_t rows = RowsOf(op); rows > 0) return ComputeOwnRows(op, rows);
    }
    VisitOperands(op, [&](TensorId& id, Access access) {
      const TensorId named = id;
      if (access != Access::kWrite) id = Whole(id);
      if (access == Access::kRead) return;
      const auto found = forms_.find(named);
      if (found == forms_.end()) return;
      found->second.own = kNone, found->second.gathered = false;
      if (access == Access::kWrite) forms_.erase(found);
    });
    ops_.push_back(std::move(op));
  }

  void ShareOp(AddParts& op) {
    if (op.rows < host_.in_stage()) {
      ops_.push_back(std::move(op));
      return;
    }
    const Run rows = Own(op.rows);
    ops_.push_back(AddRows{.made = std::move(op.parts),
                           .bias = op.bias,
                           .y = WrittenRows(op.y, op.rows),
                           .rows = rows.size(),
                           .cols = op.cols,
                           .first_row = rows.first});
  }

  // HostShards makes an AddRows of it.
  void ShareOp(EmbeddingShardsForward& op) {
    if (op.places >= host_.in_stage()) op.y = WrittenRows(op.y, op.places);
    ops_.push_back(std::move(op));
  }

  TensorId WrittenRows(TensorId id, int64_t rows) {
    return (forms_[id] = {.rows = rows, .own = NewRows(id, rows)}).own;
  }

  template <typename O>
  void ComputeOwnRows(O& op, int64_t rows) {
    VisitOperands(op, [&](TensorId& id, Access access) {
      if (!IsActivation(id)) return;
      if (access == Access::kWrite) {
        id = WrittenRows(id, rows);
        return;
      }
      const TensorId own = OwnRows(id, rows);
      if (access == Access::kUpdate) forms_[id] = {.rows = rows, .own = own};
      id = own;
    });
    Shrink(op, rows);
    Emit(op);
  }

  template <typename O>
  requires requires(O& op) { op.n; }
  void Shrink(O& op, int64_t rows) const { op.n = op.n / rows * Own(rows).size(); }
  template <typename O>
  requires requires(O& op) { op.epsilon; }
  void Shrink(O& op, int64_t rows) const { op.rows = Own(rows).size(); }
  void Shrink(LayerNormBackward& op, int64_t rows) const { op.rows = Own(rows).size(); }
  void Shrink(Dropout& op, int64_t rows) const {
    op.cols = op.all_cols = op.samples * op.per_sample / rows;
    op.rows = Own(rows).size();
    op.first_row = Own(rows).first;
  }

  template <typename O>
  void Emit(const O& op) {
    ops_.push_back(op);
  }

  // The sums over the rows are parts of sums over all rows.
  void Emit(LayerNormBackward op) {
    const bool accumulate = std::exchange(op.accumulate_params, false);
    op.cuts = 1;
    const TensorId dgamma = op.dgamma, dbeta = op.dbeta;
    std::vector<TensorId> dgammas, dbetas;
    if (dgamma != kNone) op.dgamma = PartsOf(dgamma, dgammas);
    if (dbeta != kNone) op.dbeta = PartsOf(dbeta, dbetas);
    ops_.push_back(op);
    if (dgamma != kNone) AddUp(std::move(dgammas), dgamma, accumulate);
    if (dbeta != kNone) AddUp(std::move(dbetas), dbeta, accumulate);
  }

  // One of each rank of the stage, in the order of their rows; returns that of this rank.
  TensorId PartsOf(TensorId sum, std::vector<TensorId>& parts) {
    TensorId own = kNone;
    for (int64_t place = host_.in_stage() - 1; place >= 0; --place) {
      const int64_t rank = host_.stage() * host_.in_stage() + place;
      const bool mine = place == host_.place();
      parts.push_back(graph_.Add({.name = absl::StrCat(graph_[sum].name, " (of rank ", rank, ")"),
                                  .dims = graph_[sum].dims,
                                  .kind = mine ? TensorKind::kActivation : TensorKind::kReceived,
                                  .made_by = rank}));
      if (mine) own = parts.back();
    }
    return own;
  }

  void AddUp(std::vector<TensorId> parts, TensorId sum, bool accumulate) {
    const int64_t n = graph_[sum].elements();
    TensorId y = sum;
    if (accumulate) {
      y = graph_.Add({.name = absl::StrCat(graph_[sum].name, " (of all)"), .dims = {n}});
    }
    ops_.push_back(AddParts{.parts = std::move(parts), .y = y, .rows = 1, .cols = n});
    if (accumulate) ops_.push_back(Add{.a = sum, .b = y, .y = sum, .n = n});
  }

  const ShardHost host_;
  Graph& graph_;
  absl::flat_hash_map<TensorId, RowForms> forms_;  // of others each rank has all rows
  std::vector<Op> ops_;
};

}  // namespace

Run RowsAt(const ShardHost& host, int64_t place, int64_t rows) {
  // As ShardOf::HostOf: the first rank has the last shards.
  const int64_t ranks = host.in_stage(), cut = ranks - 1 - place;
  return {rows * cut / ranks, rows * (cut + 1) / ranks};
}

size_t ShareRows(const ShardHost& host, size_t forward, std::vector<StageLinks>& links,
                 Graph& graph) {
  std::vector<StageChunk> chunks(links.size());
  for (size_t c = 0; c < links.size(); ++c) chunks[c].links = links[c];
  FindPasses(forward, graph.ops, chunks);
  RowSharing sharing(host, graph);
  size_t now = 0;
  const auto send_whole = [&](TensorId& link) {
    if (link == kNone) return;
    const int64_t made_by = graph[link].made_by;
    link = sharing.Whole(link);
    graph.tensors[link].made_by = made_by;
  };
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    sharing.Share(graph.ops[i]);
    const auto next = static_cast<int64_t>(i) + 1;
    for (size_t c = 0; c < links.size(); ++c) {
      if (next == std::min(chunks[c].forward.end, static_cast<int64_t>(forward))) {
        send_whole(links[c].to_after);
        sharing.EndForward();
      }
      if (next == chunks[c].backward.end) send_whole(links[c].to_before);
    }
    if (i + 1 == forward) now = sharing.size();
  }
  graph.ops = sharing.TakeOps();
  return now;
}

}  // namespace trainyard::plan
