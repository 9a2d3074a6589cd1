#pragma once

// The backward pass of a graph: reverse-mode differentiation, op by op from the last to the first.

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

// Where the gradient of a list of tables is kept by place instead of by row (kernels/ops): a sample
// of the step after the other.
struct RowGradient {
  TensorId grad = kNone;   // [samples, tables, width]
  TensorId ids = kNone;    // i32 [samples, tables]
  TensorId state = kNone;  // StepState
};

// Appends to `graph.ops` the gradient of the forward ops there now.
//   loss_gradient    maps what the ops after the forward pass left: tensor -> its gradient (logits)
//   gradients        parameter, or its copy in 16 bits -> the kGradient tensor that receives its
//                    gradient; those that are in no map are frozen: nothing is computed that only
//                    they need
//   accumulate       gradients of parameters are added to what is there, from the first writer on
//                    (several micro-batches); otherwise the first writer overwrites where it can.
//   rows             first of a list of tables -> where their gradient is kept; such tables are in
//                    no other map
//   token_cuts       cuts of sums over rows of what no shard has a part of
//   (kernels/ops/column_sum.h):
//                    who has some of the tokens alone makes the sums of a cut
//
// Each tensor is written once but for two cases: gradients of parameters, and gradients of
// activations that a later op adds into because it can (layer norm, matmul). The gradient of an
// activation has its type, that of a parameter the type of the tensor that `gradients` maps to:
// fp32, or what the one product that writes it computes in. An op's gradient reads only tensors
// that no op before it in the backward pass has overwritten. Inputs get no gradient.
//
// Returns for each op that it appends the number of the forward op whose gradient it is a part of.
std::vector<size_t> AppendBackward(Graph& graph,
                                   const absl::flat_hash_map<TensorId, TensorId>& loss_gradient,
                                   const absl::flat_hash_map<TensorId, TensorId>& gradients,
                                   bool accumulate,
                                   const absl::flat_hash_map<TensorId, RowGradient>& rows = {},
                                   int64_t token_cuts = 1);

// What the rules of ops write their gradients with (ops/rules.h), while the ops of the forward pass
// go by from the last to the first.
class Gradient {
 public:
  Gradient(Graph& graph, const absl::flat_hash_map<TensorId, TensorId>& gradients, bool accumulate,
           const absl::flat_hash_map<TensorId, RowGradient>& rows, int64_t token_cuts)
      : graph_(graph),
        gradients_(gradients),
        rows_(rows),
        accumulate_(accumulate),
        token_cuts_(token_cuts) {}

  // Returns what AppendBackward does.
  std::vector<size_t> Run(const absl::flat_hash_map<TensorId, TensorId>& loss_gradient);

  const Graph& graph() const { return graph_; }
  // Whether an activation depends on something that is trained: only then has it a gradient.
  bool Depends(TensorId x) const { return dependent_.contains(x); }
  bool IsTrained(TensorId parameter) const { return gradients_.contains(parameter); }
  // Whether the gradients of parameters are added to what is there.
  bool accumulates() const { return accumulate_; }
  int64_t token_cuts() const { return token_cuts_; }

  template <typename T>
  void Emit(T op) {
    graph_.ops.push_back(std::move(op));
  }

  // A new tensor for the gradient of activation x, or for a gradient of shape `dims` in fp32.
  TensorId NewLike(TensorId x);
  TensorId NewOf(TensorId x, std::vector<int64_t> dims);
  // `gradient` in the type of x, cast if need be.
  TensorId InTypeOf(TensorId x, TensorId gradient);

  // `gradient`, which exists already, is a term of the gradient of x: it is the first, or added to
  // those that there are.
  void Accumulate(TensorId x, TensorId gradient);

  // Calls write(dx), which emits an op that overwrites dx with a term of the gradient of x; not at
  // all where x has none.
  template <typename F>
  void Overwrite(TensorId x, F&& write) {
    if (!Depends(x)) return;
    const TensorId dx = NewLike(x);
    write(dx);
    Accumulate(x, dx);
  }

  // The same for an op that can add to what is there: write(dx, accumulate).
  template <typename F>
  void AddInto(TensorId x, F&& write) {
    if (!Depends(x)) return;
    if (const auto found = pending_.find(x); found != pending_.end() && Exclusive(found->second)) {
      write(found->second, true);
      return;
    }
    Overwrite(x, [&](TensorId dx) { write(dx, false); });
  }

  // The finished gradient of `y`, of which nothing more is needed then; kNone: it has none. What
  // the rules of an op are given of the first of several results, they take of the others.
  TensorId Consume(TensorId y);

  // Where the gradient of a parameter goes; kNone: there is no such parameter, or it is frozen.
  TensorId OfParameter(TensorId parameter) const;
  // Whether a parameter's gradient is added to what is there; notes that it is written now. A
  // parameter and its copy have the same gradient.
  bool ParameterAccumulates(TensorId parameter);
  // The same for two parameters of one op, each absent or frozen or not.
  bool ParametersAccumulate(TensorId one, TensorId other);
  // The gradient of `bias` (+)= the sum of the rows of dy [rows, cols]. It may be the first of
  // several rows of a table, of which the others' gradient stays zero.
  void SumRows(TensorId dy, TensorId bias, int64_t rows, int64_t cols, int64_t cuts = 1);
  // Where the gradient of a list of tables is kept by place; null: it is not.
  const RowGradient* OfRows(TensorId first_table) const;

 private:
  void FindDependent(const std::vector<Op>& forward);
  bool Exclusive(TensorId gradient) const;

  Graph& graph_;
  const absl::flat_hash_map<TensorId, TensorId>& gradients_;  // parameter -> gradient
  const absl::flat_hash_map<TensorId, RowGradient>& rows_;    // by the first table
  const bool accumulate_;
  const int64_t token_cuts_;
  absl::flat_hash_set<TensorId> dependent_;
  absl::flat_hash_set<TensorId> written_;            // gradients of parameters that have a writer
  absl::flat_hash_map<TensorId, TensorId> pending_;  // activation -> gradient so far
  TensorId consumed_ = kNone;                        // what the gradient of the op at hand reads
};

}  // namespace trainyard::plan
