#include "executor/plan/gradient.h"

#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// Reverse-mode differentiation, one overload per op. `pending_[t]` is the gradient of t gathered so
// far by the ops after the present one; it is complete when the op that made t is reached.
class Backward {
 public:
  Backward(Graph& graph, const absl::flat_hash_map<TensorId, TensorId>& gradients, bool accumulate,
           const absl::flat_hash_map<TensorId, RowGradient>& rows)
      : graph_(graph), gradients_(gradients), rows_(rows), accumulate_(accumulate) {}

  void Run(const absl::flat_hash_map<TensorId, TensorId>& loss_gradient) {
    std::vector<Op> forward = graph_.ops;
    FindDependent(forward);
    for (const auto& [tensor, gradient] : loss_gradient) pending_[tensor] = gradient;
    for (auto op = forward.rbegin(); op != forward.rend(); ++op) {
      std::visit([this](const auto& o) { Differentiate(o); }, *op);
    }
    TY_CHECK(pending_.empty(), pending_.size(), " gradients reached no op that made their tensor");
  }

 private:
  // Tensors that depend on a parameter: only they have a gradient.
  void FindDependent(std::vector<Op>& forward) {
    for (Op& op : forward) {
      bool depends = false;
      std::visit(
          [&](auto& o) {
            VisitOperands(o, [&](TensorId id, Access access) {
              if (access == Access::kRead)
                depends |= gradients_.contains(id) || rows_.contains(id) || dependent_.contains(id);
            });
            if (!depends) return;
            VisitOperands(o, [&](TensorId id, Access access) {
              if (access != Access::kRead) dependent_.insert(id);
            });
          },
          op);
    }
  }

  // The finished gradient of an op's output; kNone: nothing after depends on it.
  TensorId Take(TensorId y) {
    const auto found = pending_.find(y);
    if (found == pending_.end()) return kNone;
    taken_ = found->second;
    pending_.erase(found);
    return taken_;
  }

  TensorId NewLike(TensorId x) {
    Tensor tensor = graph_[x];
    tensor.name = absl::StrCat("d(", tensor.name, ")");
    tensor.kind = TensorKind::kActivation;
    return graph_.Add(std::move(tensor));
  }

  template <typename T>
  void Emit(T op) {
    graph_.ops.push_back(std::move(op));
  }

  // Whether a parameter's gradient is added to what is there; notes that it is written now. A
  // parameter and its copy have the same gradient.
  bool ParameterAccumulates(TensorId parameter) {
    const bool first = written_.insert(GradientOf(parameter)).second;
    return accumulate_ || !first;
  }

  // `gradient` in the type of x.
  TensorId InTypeOf(TensorId x, TensorId gradient) {
    if (graph_[x].type == graph_[gradient].type) return gradient;
    Tensor tensor = graph_[gradient];
    tensor.type = graph_[x].type;
    const TensorId y = graph_.Add(std::move(tensor));
    Emit(Cast{.x = gradient, .y = y, .n = graph_[y].elements()});
    return y;
  }

  // The same for two parameters of one op, each absent or frozen or not.
  bool ParametersAccumulate(TensorId one, TensorId other) {
    if (!gradients_.contains(one)) return ParameterAccumulates(other);
    const bool accumulate = ParameterAccumulates(one);
    TY_CHECK(!gradients_.contains(other) || ParameterAccumulates(other) == accumulate,
             graph_[one].name, " goes with another parameter");
    return accumulate;
  }

  // kNone: there is no such parameter, or it is frozen.
  TensorId GradientOf(TensorId parameter) const {
    const auto found = gradients_.find(parameter);
    return found == gradients_.end() ? kNone : found->second;
  }

  // gradient of `bias` (+)= sum of the rows of dy. It may be the first of several rows of a table,
  // of which the others' gradient stays zero.
  void SumRows(TensorId dy, TensorId bias, int64_t rows, int64_t cols) {
    if (!gradients_.contains(bias)) return;
    const bool accumulate = ParameterAccumulates(bias) || graph_[bias].elements() > cols;
    Emit(ColumnSum{
        .x = dy, .y = GradientOf(bias), .rows = rows, .cols = cols, .accumulate = accumulate});
  }

  // `gradient`, which exists already, is a term of x's gradient.
  void Give(TensorId x, TensorId gradient) {
    if (!dependent_.contains(x)) return;
    const auto [at, first] = pending_.try_emplace(x, gradient);
    if (first) return;
    const TensorId sum = NewLike(x);
    Emit(Add{.a = at->second, .b = gradient, .y = sum, .n = graph_[x].elements()});
    pending_[x] = sum;
  }

  // Only one tensor waits for this gradient and the op at hand does not read it, so that the op may
  // add into it: all others that read it have run.
  bool Exclusive(TensorId gradient) const {
    if (gradient == taken_) return false;
    int holders = 0;
    for (const auto& [tensor, held] : pending_) holders += held == gradient;
    return holders == 1;
  }

  // Calls write(dx, accumulate), which emits an op that writes or adds a term of x's gradient.
  template <typename F>
  void AddInto(TensorId x, F&& write) {
    if (!dependent_.contains(x)) return;
    const auto found = pending_.find(x);
    if (found != pending_.end() && Exclusive(found->second)) {
      write(found->second, true);
      return;
    }
    Overwrite(x, [&](TensorId dx) { write(dx, false); });
  }

  // The same for an op that can only overwrite: write(dx).
  template <typename F>
  void Overwrite(TensorId x, F&& write) {
    if (!dependent_.contains(x)) return;
    const TensorId dx = NewLike(x);
    write(dx);
    Give(x, dx);
  }

  // c = op(a) op(b): da = dc op(b)^T (or its transpose), db alike.
  void Differentiate(const Matmul& f) {
    TY_CHECK(!f.accumulate && !f.transpose_a, "forward matmuls neither accumulate nor transpose a");
    TensorId dc = Take(f.c);
    if (dc == kNone) return;
    const TensorId before = std::exchange(dc, InTypeOf(f.a, dc));
    const auto input = [&] {
      AddInto(f.a, [&](TensorId da, bool accumulate) {
        Emit(Matmul{.a = dc,
                    .b = f.b,
                    .c = da,
                    .m = f.m,
                    .n = f.k,
                    .k = f.n,
                    .transpose_b = !f.transpose_b,
                    .accumulate = accumulate});
      });
    };
    // A copy that only this step needs may be gone before its weight's gradient, twice its size,
    // comes.
    const bool input_first = graph_[f.b].kind == TensorKind::kWeightCopy && !accumulate_;
    if (input_first) input();
    if (gradients_.contains(f.b)) {
      WeightGradient(f, dc);
    } else {
      AddInto(f.b,
              [&](TensorId db, bool accumulate) { EmitWeightGradient(f, dc, db, accumulate); });
    }
    SumRows(before, f.bias, f.m, f.n);
    if (!input_first) input();
  }

  void WeightGradient(const Matmul& f, TensorId dc) {
    EmitWeightGradient(f, dc, GradientOf(f.b), ParameterAccumulates(f.b));
  }

  // b [k, n]: db = a^T dc. b [n, k]: db = dc^T a.
  void EmitWeightGradient(const Matmul& f, TensorId dc, TensorId db, bool accumulate) {
    const bool stored_nk = f.transpose_b;
    Emit(Matmul{.a = stored_nk ? dc : f.a,
                .b = stored_nk ? f.a : dc,
                .c = db,
                .m = stored_nk ? f.n : f.k,
                .n = stored_nk ? f.k : f.n,
                .k = f.m,
                .transpose_a = true,
                .accumulate = accumulate});
  }

  // y = base + s a b^T in some columns: da = s dy b and db = s dy^T a, of those columns of dy.
  void Differentiate(const AddProduct& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    if (gradients_.contains(f.b)) {
      Emit(Matmul{.a = dy,
                  .b = f.a,
                  .c = GradientOf(f.b),
                  .m = f.n,
                  .n = f.k,
                  .k = f.rows,
                  .transpose_a = true,
                  .accumulate = ParameterAccumulates(f.b),
                  .scale = f.scale,
                  .a_cols = f.cols,
                  .a_first = f.first});
    }
    AddInto(f.a, [&](TensorId da, bool accumulate) {
      Emit(Matmul{.a = dy,
                  .b = f.b,
                  .c = da,
                  .m = f.rows,
                  .n = f.k,
                  .k = f.n,
                  .accumulate = accumulate,
                  .scale = f.scale,
                  .a_cols = f.cols,
                  .a_first = f.first});
    });
    Give(f.base, dy);
  }

  void Differentiate(const ActivationForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    // Where a relu slopes can be read from its output, so that its input need not be kept.
    const bool relu = f.kind == ActivationKind::kRelu || f.kind == ActivationKind::kRelu6;
    const TensorId x = relu ? f.y : f.x;
    Overwrite(f.x, [&](TensorId dx) {
      Emit(ActivationBackward{.kind = f.kind, .x = x, .dy = dy, .dx = dx, .n = f.n});
    });
  }

  void Differentiate(const Add& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    for (const TensorId x : {f.a, f.b}) {
      if (dependent_.contains(x)) Give(x, InTypeOf(x, dy));
    }
  }

  void Differentiate(const Cast& f) {
    const TensorId dy = Take(f.y);
    if (dy != kNone && dependent_.contains(f.x)) Give(f.x, InTypeOf(f.x, dy));
  }

  void Differentiate(const AddBias& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Give(f.x, dy);
    SumRows(dy, f.bias, f.rows, f.cols);
  }

  void Differentiate(const Concat& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Split split{.x = dy, .rows = f.rows, .a_cols = f.a_cols, .b_cols = f.b_cols};
    if (f.repeat_a ? gradients_.contains(f.a) : dependent_.contains(f.a)) {
      split.a = graph_.Add(
          {.name = absl::StrCat("d(", graph_[f.a].name, ")"), .dims = {f.rows, f.a_cols}});
    }
    if (dependent_.contains(f.b)) split.b = NewLike(f.b);
    if (split.a == kNone && split.b == kNone) return;
    Emit(split);
    if (f.repeat_a) {
      SumRows(split.a, f.a, f.rows, f.a_cols);
    } else {
      Give(f.a, split.a);
    }
    Give(f.b, split.b);
  }

  void Differentiate(const Split& f) {
    TY_CHECK(f.b == kNone, "a forward split keeps its first part alone");
    const TensorId da = Take(f.a);
    if (da == kNone) return;
    Overwrite(f.x, [&](TensorId dx) {
      Emit(Concat{.a = da, .y = dx, .rows = f.rows, .a_cols = f.a_cols, .b_cols = f.b_cols});
    });
  }

  void Differentiate(const Dropout& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Overwrite(f.x, [&](TensorId dx) {
      Dropout backward = f;
      backward.x = dy;
      backward.y = dx;
      Emit(backward);
    });
  }

  void Differentiate(const Rotary& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Overwrite(f.x, [&](TensorId dx) {
      Rotary backward = f;
      backward.x = dy;
      backward.y = dx;
      backward.inverse = !f.inverse;
      Emit(backward);
    });
  }

  void Differentiate(const SwiGluForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Overwrite(f.x, [&](TensorId dx) {
      Emit(SwiGluBackward{.x = f.x, .dy = dy, .dx = dx, .rows = f.rows, .cols = f.cols});
    });
  }

  void Differentiate(const LayerNormForward& f) {
    TY_CHECK(f.residual == kNone, "sums go into norms when the backward pass is there");
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    const bool accumulate_params = ParametersAccumulate(f.gamma, f.beta);
    const auto write = [&](TensorId dx, bool accumulate_dx) {
      Emit(LayerNormBackward{.dy = dy,
                             .x = f.x,
                             .gamma = f.gamma,
                             .mean = f.mean,
                             .rstd = f.rstd,
                             .dx = dx,
                             .dgamma = GradientOf(f.gamma),
                             .dbeta = GradientOf(f.beta),
                             .rows = f.rows,
                             .cols = f.cols,
                             .accumulate_dx = accumulate_dx,
                             .accumulate_params = accumulate_params});
    };
    if (dependent_.contains(f.x)) {
      AddInto(f.x, write);
    } else {
      write(kNone, false);
    }
  }

  void Differentiate(const BatchNormForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    const bool accumulate = ParametersAccumulate(f.gamma, f.beta);
    const bool branches = f.residual != kNone && dependent_.contains(f.residual);
    const TensorId dx = dependent_.contains(f.x) ? NewLike(f.x) : kNone;
    // Without relu the gradient reaches the other branch as it is.
    const TensorId dresidual = branches && f.relu ? NewLike(f.residual) : kNone;
    const BatchNormBackward backward{.dy = dy,
                                     .x = f.x,
                                     .y = f.relu ? f.y : kNone,
                                     .gamma = f.gamma,
                                     .mean = f.mean,
                                     .rstd = f.rstd,
                                     .dx = dx,
                                     .dresidual = dresidual,
                                     .dgamma = GradientOf(f.gamma),
                                     .dbeta = GradientOf(f.beta),
                                     .rows = f.rows,
                                     .cols = f.cols,
                                     .accumulate_params = accumulate};
    const bool only_passes_on =
        dx == kNone && dresidual == kNone && backward.dgamma == kNone && backward.dbeta == kNone;
    if (!only_passes_on) Emit(backward);
    Give(f.x, dx);
    if (branches) Give(f.residual, f.relu ? dresidual : dy);
  }

  void Differentiate(const EmbeddingForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    if (!gradients_.contains(f.tokens)) {
      return SumRows(dy, f.positions, f.batch, f.time * f.width);
    }
    ParameterAccumulates(f.tokens);
    if (gradients_.contains(f.positions)) ParameterAccumulates(f.positions);
    Emit(EmbeddingBackward{.dy = dy,
                           .ids = f.ids,
                           .dtokens = GradientOf(f.tokens),
                           .dpositions = GradientOf(f.positions),
                           .batch = f.batch,
                           .time = f.time,
                           .width = f.width,
                           .vocab = f.vocab});
  }

  void Differentiate(const EmbeddingTablesForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    if (const auto kept = rows_.find(f.tables.front()); kept != rows_.end()) {
      Emit(KeepRows{.dy = dy,
                    .ids = f.ids,
                    .kept_dy = kept->second.grad,
                    .kept_ids = kept->second.ids,
                    .state = kept->second.state,
                    .samples = graph_[kept->second.ids].dims[0],
                    .batch = f.batch,
                    .count = static_cast<int64_t>(f.tables.size()),
                    .width = f.width});
      return;
    }
    EmbeddingTablesBackward backward{.dy = dy, .ids = f.ids, .batch = f.batch, .width = f.width};
    for (const TensorId table : f.tables) {
      ParameterAccumulates(table);
      backward.gradients.push_back(GradientOf(table));
    }
    Emit(std::move(backward));
  }

  void Differentiate(const InteractionForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    const TensorId dx = dependent_.contains(f.x) ? NewLike(f.x) : kNone;
    const TensorId de = dependent_.contains(f.e) ? NewLike(f.e) : kNone;
    Emit(InteractionBackward{.dy = dy,
                             .x = f.x,
                             .e = f.e,
                             .dx = dx,
                             .de = de,
                             .batch = f.batch,
                             .count = f.count,
                             .width = f.width});
    Give(f.x, dx);
    Give(f.e, de);
  }

  void Differentiate(const AttentionForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Overwrite(f.qkv, [&](TensorId dqkv) {
      Emit(AttentionBackward{.dy = dy,
                             .qkv = f.qkv,
                             .y = f.y,
                             .lse = f.lse,
                             .dqkv = dqkv,
                             .batch = f.batch,
                             .time = f.time,
                             .heads = f.heads,
                             .kv_heads = f.kv_heads,
                             .head_dim = f.head_dim,
                             .scale = f.scale,
                             .causal = f.causal,
                             .lengths = f.lengths});
    });
  }

  void Differentiate(const ConvolutionForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    if (gradients_.contains(f.w)) {
      Emit(ConvolutionBackwardWeights{.x = f.x,
                                      .dy = dy,
                                      .dw = GradientOf(f.w),
                                      .dbias = GradientOf(f.bias),
                                      .shape = f.shape,
                                      .accumulate = ParametersAccumulate(f.w, f.bias)});
    } else {
      SumRows(dy, f.bias, graph_[dy].elements() / f.shape.out, f.shape.out);
    }
    Overwrite(f.x, [&](TensorId dx) {
      Emit(ConvolutionBackwardData{.dy = dy, .w = f.w, .dx = dx, .shape = f.shape});
    });
  }

  void Differentiate(const MaxPoolForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Overwrite(f.x, [&](TensorId dx) {
      Emit(MaxPoolBackward{.dy = dy, .index = f.index, .dx = dx, .shape = f.shape});
    });
  }

  void Differentiate(const MeanPoolForward& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Overwrite(f.x, [&](TensorId dx) {
      Emit(MeanPoolBackward{
          .dy = dy, .dx = dx, .batch = f.batch, .pixels = f.pixels, .channels = f.channels});
    });
  }

  void Differentiate(const Transpose& f) {
    const TensorId dy = Take(f.y);
    if (dy == kNone) return;
    Overwrite(f.x, [&](TensorId dx) {
      Emit(Transpose{.x = dy, .y = dx, .batch = f.batch, .rows = f.cols, .cols = f.rows});
    });
  }

  // Nothing that is trained comes before the bytes of an image.
  void Differentiate(const NormalizeImages& f) {
    TY_CHECK(Take(f.y) == kNone, graph_[f.y].name, " has a gradient");
  }

  // What no forward graph holds. Listed one by one, so that a new op must be decided upon.
  void Differentiate(const ActivationBackward&) { NotForward("activation backward"); }
  void Differentiate(const AdamWRows&) { NotForward("adamw rows"); }
  void Differentiate(const AdamWStep&) { NotForward("adamw"); }
  void Differentiate(const AttentionBackward&) { NotForward("attention backward"); }
  void Differentiate(const BatchNormBackward&) { NotForward("batch norm backward"); }
  void Differentiate(const BatchNormInference&) { NotForward("batch norm of running statistics"); }
  void Differentiate(const BinaryCrossEntropy&) {
    NotForward("binary cross-entropy: makes its gradient itself");
  }
  void Differentiate(const ClipScale&) { NotForward("clip scale"); }
  void Differentiate(const ColumnSum&) { NotForward("column sum"); }
  void Differentiate(const ConvolutionBackwardData&) { NotForward("convolution backward"); }
  void Differentiate(const ConvolutionBackwardWeights&) { NotForward("convolution backward"); }
  void Differentiate(const CopyIfTaken&) { NotForward("copy if taken"); }
  void Differentiate(const CountTargets&) { NotForward("count targets"); }
  void Differentiate(const CrossEntropy&) {
    NotForward("cross-entropy: makes its gradient itself");
  }
  void Differentiate(const DivideByNorm&) { NotForward("divide by norm"); }
  void Differentiate(const EmaStep&) { NotForward("ema"); }
  void Differentiate(const EmbeddingBackward&) { NotForward("embedding backward"); }
  void Differentiate(const EmbeddingTablesBackward&) { NotForward("embedding tables backward"); }
  void Differentiate(const InteractionBackward&) { NotForward("interaction backward"); }
  void Differentiate(const KeepRows&) { NotForward("keep rows"); }
  void Differentiate(const LambStep&) { NotForward("lamb"); }
  void Differentiate(const LayerNormBackward&) { NotForward("layer norm backward"); }
  void Differentiate(const MaxPoolBackward&) { NotForward("max pool backward"); }
  void Differentiate(const MeanPoolBackward&) { NotForward("mean pool backward"); }
  void Differentiate(const MergeRows&) { NotForward("merge rows"); }
  void Differentiate(const MuonMomentum&) { NotForward("muon"); }
  void Differentiate(const MuonStep&) { NotForward("muon"); }
  void Differentiate(const NewtonSchulz&) { NotForward("newton-schulz"); }
  void Differentiate(const SgdRows&) { NotForward("sgd rows"); }
  void Differentiate(const SgdStep&) { NotForward("sgd"); }
  void Differentiate(const SquaredNorm&) { NotForward("squared norm"); }
  void Differentiate(const Sum&) { NotForward("sum"); }
  void Differentiate(const SwiGluBackward&) { NotForward("swiglu backward"); }
  void Differentiate(const Zero&) { NotForward("zero"); }
  static void NotForward(const char* op) { TY_CHECK(false, op, " is no op of a forward graph"); }

  Graph& graph_;
  const absl::flat_hash_map<TensorId, TensorId>& gradients_;  // parameter -> gradient
  const absl::flat_hash_map<TensorId, RowGradient>& rows_;    // by the first table
  const bool accumulate_;
  absl::flat_hash_set<TensorId> dependent_;
  absl::flat_hash_set<TensorId> written_;            // gradients of parameters that have a writer
  absl::flat_hash_map<TensorId, TensorId> pending_;  // activation -> gradient so far
  TensorId taken_ = kNone;                           // what the op at hand reads
};

}  // namespace

void AppendBackward(Graph& graph, const absl::flat_hash_map<TensorId, TensorId>& loss_gradient,
                    const absl::flat_hash_map<TensorId, TensorId>& gradients, bool accumulate,
                    const absl::flat_hash_map<TensorId, RowGradient>& rows) {
  Backward(graph, gradients, accumulate, rows).Run(loss_gradient);
}

}  // namespace trainyard::plan
