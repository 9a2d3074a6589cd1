#pragma once

#include "kernels/ops/embedding_tables.h"

namespace trainyard::kernels {

// The steps of optimizer.h on only those rows of tables that a step looked up. Row ids[s, t] of
// table t has gradient grad[s, t, :]. Rows are distinct (MergeRows); id -1 stands for no row.
//   grad: [samples, count, width]; ids: [samples, count]
// SgdRows gives the same bits as SgdStep without momentum and weight decay, which leaves rows
// without a gradient as they are.
template <typename T>
struct SgdRowsOf {
  static constexpr const char* kName = "sgd_rows";
  T grad, ids;
  T grad_scale;  // [1] f32, optional
  T state;       // StepState: learning_rate
  TablesOf<T> tables;
  int64_t samples = 0, width = 0;
  float learning_rate_scale = 1;

  const char* Problem() const { return tables.list.Problem(); }
  TY_FIELDS(Read(grad), Read(ids, I32), Read(grad_scale, Optional()), Read(state, State),
            Update(tables), samples, width, learning_rate_scale)
};
using SgdRows = SgdRowsOf<Buffer>;

// AdamWStep on the rows that were looked up only: moments and weights of other rows do not decay.
template <typename T>
struct AdamWRowsOf {
  static constexpr const char* kName = "adamw_rows";
  T grad, ids;
  T grad_scale;              // [1] f32, optional
  T state;                   // StepState: learning_rate, updates
  TablesOf<T> tables, m, v;  // m and v lie as the tables do
  int64_t samples = 0, width = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0, learning_rate_scale = 1;

  const char* Problem() const { return tables.list.Problem(); }
  TY_FIELDS(Read(grad), Read(ids, I32), Read(grad_scale, Optional()), Read(state, State),
            Update(tables), Update(m), Update(v), samples, width, beta1, beta2, epsilon,
            weight_decay, learning_rate_scale)
};
using AdamWRows = AdamWRowsOf<Buffer>;

}  // namespace trainyard::kernels
