#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Tables of one width, in one run of memory; table t is [rows[t], width] and begins start[t] floats
// after the first.
struct TableList {
  static constexpr int64_t kMost = 128;
  int64_t count = 0;
  int64_t start[kMost] = {};
  int64_t rows[kMost] = {};

  const char* Problem() const {
    return count >= 1 && count <= kMost ? nullptr : "the number of tables is not in [1, 128]";
  }
};

// The tables, or buffers laid out like them (gradients, moments), in device memory; `first` is
// where the first table begins.
struct Tables {
  Buffer first;
  TableList list;

  // Starts are counted in 4 bytes, whatever the type.
  Buffer At(int64_t t) const {
    return {static_cast<char*>(first.data) + 4 * list.start[t], first.dtype};
  }
};
template <>
struct TableListFor<Buffer> {
  using Type = Tables;
};
template <typename T>
using TablesOf = typename TableListFor<T>::Type;

// y[b, t, :] = table t [ids[b, t], :]
//   ids: [batch, count] i32, count the number of tables, ids[b, t] in [0, rows[t]); y: [batch,
//   count, width]
// The loader checked the ids; an id out of range aborts on the CPU.
template <typename T>
struct EmbeddingTablesForwardOf {
  static constexpr const char* kName = "embedding_tables";
  T ids, y;
  TablesOf<T> tables;
  int64_t batch = 0, width = 0;

  const char* Problem() const { return tables.list.Problem(); }
  TY_FIELDS(Read(ids, I32), Read(tables), Write(y), batch, width)
};
using EmbeddingTablesForward = EmbeddingTablesForwardOf<Buffer>;

// gradients: laid out like the tables. Row ids[b, t] of table t's gradient += dy[b, t, :], in order
// of b.
template <typename T>
struct EmbeddingTablesBackwardOf {
  static constexpr const char* kName = "embedding_tables_backward";
  T dy, ids;
  TablesOf<T> gradients;
  int64_t batch = 0, width = 0;

  const char* Problem() const { return gradients.list.Problem(); }
  TY_FIELDS(Read(dy), Read(ids, I32), Update(gradients), batch, width)
};
using EmbeddingTablesBackward = EmbeddingTablesBackwardOf<Buffer>;

// Keeps the same gradient by place, for an optimizer that updates only the rows that a step looked
// up: copies dy and ids of a micro-batch to the places of its samples in the step.
//   dy: [batch, count, width], ids: [batch, count]; kept_dy, kept_ids: the same for `samples`, a
//   multiple of batch; b goes to place (state.first_sample + b) mod samples
template <typename T>
struct KeepRowsOf {
  static constexpr const char* kName = "keep_rows";
  T dy, ids, kept_dy, kept_ids;
  T state;  // StepState
  int64_t samples = 0, batch = 0, count = 0, width = 0;

  const char* Problem() const {
    return samples % batch == 0 ? nullptr : "samples is no multiple of batch";
  }
  TY_FIELDS(Read(dy), Read(ids, I32), Update(kept_dy), Update(kept_ids, I32), Read(state, State),
            samples, batch, count, width)
};
using KeepRows = KeepRowsOf<Buffer>;

// Merges the kept rows of a step that are the same, in place: in each table the first place of a
// row gets the sum over all its places; later places get gradient 0 and id -1.
//   grad: [samples, count, width]; ids: [samples, count], each in [0, 2^31)
// The samples are those of `logical_ranks` ranks, as many of each, side by side. Those of one are
// added in order; the sums of several by the tree of executor/plan/graph/fold_tree.h, to which a
// rank without the row adds nothing. Two ranks i < j are folded at height bit_width(i xor j).
template <typename T>
struct MergeRowsOf {
  static constexpr const char* kName = "merge_rows";
  T grad, ids;
  int64_t samples = 0, count = 0, width = 0, logical_ranks = 1;

  const char* Problem() const {
    return samples % logical_ranks == 0 ? nullptr : "logical_ranks does not divide the samples";
  }
  TY_FIELDS(Update(grad), Update(ids, I32), samples, count, width, logical_ranks)
};
using MergeRows = MergeRowsOf<Buffer>;

}  // namespace trainyard::kernels
