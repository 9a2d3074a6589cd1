#include "executor/plan/passes/host_shards.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/passes/share_rows.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// Goes over the ops in order, and knows of each tensor to whose shards it belongs.
class Hosting {
 public:
  Hosting(const ShardHost& host, const std::vector<const OfParameter*>& with_parameters,
          Graph& graph)
      : host_(host), graph_(graph), made_by_(graph.tensors.size(), kEveryRank) {
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      const Tensor& tensor = graph.tensors[i];
      if (tensor.shard) made_by_[i] = tensor.shard->HostOf(host.in_stage());
    }
    for (const OfParameter* others : with_parameters) {
      for (const auto& [parameter, other] : *others) made_by_[other] = made_by_[parameter];
    }
  }

  // Appends to `kept` what becomes of the op.
  void Host(Op& op, std::vector<Op>& kept) {
    std::visit([&](auto& o) { HostOp(o, kept); }, op);
  }

 private:
  bool mine(int64_t place) const { return place == kEveryRank || place == host_.place(); }

  // The number among all ranks that share a logical rank.
  int64_t RankAt(int64_t place) const { return host_.stage() * host_.in_stage() + place; }

  template <typename T>
  void HostOp(T& op, std::vector<Op>& kept) {
    int64_t place = kEveryRank;
    VisitOperands(op, [&](TensorId id, Access) {
      const int64_t its = made_by_[id];
      TY_CHECK(place == kEveryRank || its == kEveryRank || place == its, T::kName, " reads ",
               graph_[id].name, ", which another rank has than what else it reads");
      place = std::max(place, its);
    });
    VisitOperands(op, [&](TensorId id, Access access) {
      if (access != Access::kRead) made_by_[id] = place;
    });
    if (mine(place)) kept.push_back(std::move(op));
  }

  void HostOp(AddParts& op, std::vector<Op>& kept) {
    for (const TensorId part : op.parts) Exchange(part);
    kept.push_back(std::move(op));
  }

  // Of parts that others make, a rank is sent the rows that it adds up.
  void HostOp(AddRows& op, std::vector<Op>& kept) {
    AddRows own = op;
    own.made.clear();
    for (const TensorId part : op.made) {
      Exchange(part);
      const bool first = own.made.empty();
      if (mine(made_by_[part])) {
        if (first) own.first_made = static_cast<int64_t>(own.received.size());
        own.made.push_back(part);
      } else {
        graph_.tensors[part].dims = {op.rows, op.cols};
        own.received.push_back(part);
      }
    }
    kept.push_back(std::move(own));
  }

  void HostOp(CrossEntropyOfShards& op, std::vector<Op>& kept) {
    for (const TensorId statistics : op.statistics) Exchange(statistics);
    kept.push_back(std::move(op));
  }

  // `tensor` is read by every rank.
  void Exchange(TensorId id) {
    if (made_by_[id] == kEveryRank) return;
    Tensor& tensor = graph_.tensors[id];
    tensor.made_by = RankAt(made_by_[id]);
    if (!mine(made_by_[id])) tensor.kind = TensorKind::kReceived;
  }

  // The tables of `all` that the rank at `place` hosts, which lie one behind the other, and the
  // first row.
  struct Hosted {
    std::vector<TensorId> tables;
    int64_t first = 0;
  };
  Hosted HostedBy(int64_t place, const std::vector<TensorId>& all) const {
    Hosted hosted;
    for (const TensorId table : all) {
      if (made_by_[table] == place) {
        hosted.tables.push_back(table);
      } else if (hosted.tables.empty()) {
        hosted.first += graph_[table].dims[0];
      }
    }
    return hosted;
  }

  // Where rows are shared out, op.y has those of this rank alone.
  void HostOp(EmbeddingShardsForward& op, std::vector<Op>& kept) {
    std::vector<TensorId> parts;
    for (int64_t place = 0; place < host_.in_stage(); ++place) {
      const Hosted hosted = HostedBy(place, op.tables);
      if (hosted.tables.empty()) continue;
      Tensor rows = graph_[op.y];
      absl::StrAppend(&rows.name, " (of rank ", RankAt(place), ")");
      rows.dims = {op.places, op.width};
      const TensorId part = graph_.Add(std::move(rows));
      made_by_.push_back(place);
      parts.push_back(part);
      if (!mine(place)) continue;
      EmbeddingShardsForward own = op;
      own.y = part;
      own.tables = hosted.tables;
      own.first = hosted.first;
      kept.push_back(std::move(own));
    }
    const Run rows = RowsAt(host_, host_.place(), op.places);
    if (graph_[op.y].dims[0] == op.places) {
      AddParts all{.parts = std::move(parts), .y = op.y, .rows = op.places, .cols = op.width};
      return HostOp(all, kept);
    }
    AddRows all{.made = std::move(parts),
                .y = op.y,
                .rows = rows.size(),
                .cols = op.width,
                .first_row = rows.first};
    HostOp(all, kept);
  }

  void HostOp(EmbeddingShardsBackward& op, std::vector<Op>& kept) {
    Hosted hosted = HostedBy(host_.place(), op.gradients);
    if (hosted.tables.empty()) return;
    op.gradients = std::move(hosted.tables);
    op.first = hosted.first;
    kept.push_back(std::move(op));
  }

  const ShardHost host_;
  Graph& graph_;
  // By tensor: the place in the stage of the rank that has it; kEveryRank: all of the stage do.
  std::vector<int64_t> made_by_;
};

}  // namespace

HostedOps HostShards(const ShardHost& host, const std::vector<const OfParameter*>& with_parameters,
                     size_t first, Graph& graph) {
  HostedOps hosted{.first = first};
  if (host.in_stage() == 1) return hosted;
  Hosting hosting(host, with_parameters, graph);
  std::vector<Op> kept;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const double flops = Flops(graph.ops[i]);
    const size_t before = kept.size();
    hosting.Host(graph.ops[i], kept);
    if (kept.size() == before) hosted.flops_elsewhere += flops;
    if (i + 1 == first) hosted.first = kept.size();
  }
  graph.ops = std::move(kept);
  return hosted;
}

std::vector<ShardExchange> ShardExchanges(const ShardHost& host, const std::vector<Tensor>& tensors,
                                          const std::vector<Op>& ops) {
  std::vector<int64_t> ranks;  // of the stage
  for (int64_t place = 0; place < host.in_stage() && host.stages > 1; ++place) {
    ranks.push_back(host.stage() * host.in_stage() + place);
  }
  const auto rows_of = [&](int64_t all) {
    std::vector<Run> rows;
    for (int64_t place = 0; place < host.in_stage(); ++place) {
      rows.push_back(RowsAt(host, place, all));
    }
    return rows;
  };
  std::vector<ShardExchange> exchanges;
  absl::flat_hash_set<TensorId> exchanged;  // what is summed a second time is there
  for (size_t i = 0; i < ops.size(); ++i) {
    ShardExchange exchange{.before_op = static_cast<int64_t>(i), .ranks = ranks};
    const auto add = [&](const std::vector<TensorId>& ids) {
      for (const TensorId id : ids) {
        if (tensors[id].made_by == kEveryRank || !exchanged.insert(id).second) continue;
        exchange.tensors.push_back(id);
      }
    };
    if (const auto* const sum = std::get_if<AddParts>(&ops[i])) add(sum->parts);
    if (const auto* const loss = std::get_if<CrossEntropyOfShards>(&ops[i])) add(loss->statistics);
    if (const auto* const sum = std::get_if<AddRows>(&ops[i])) {
      add(sum->made);
      add(sum->received);
      if (!sum->made.empty()) exchange.rows = rows_of(tensors[sum->made[0]].elements() / sum->cols);
    }
    if (const auto* const all = std::get_if<GatherRows>(&ops[i])) {
      exchange.tensors = {all->x};
      exchange.gathered = all->y;
      exchange.rows = rows_of(tensors[all->y].elements() / all->cols);
    }
    if (!exchange.tensors.empty()) exchanges.push_back(std::move(exchange));
  }
  return exchanges;
}

}  // namespace trainyard::plan
