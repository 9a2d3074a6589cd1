#pragma once

#include "kernels/ops/embedding_tables.h"

namespace trainyard::kernels {

// The steps of optimizer.h on the rows of tables that a step touched, those of other rows being
// nothing. Row ids[s, t] of table t has gradient grad[s, t, :]; rows are distinct (MergeRows), -1
// is none.
//   grad: [samples, count, width]; ids: [samples, count]; w, m, v: like the tables
// SgdRows: the bits of SgdStep without momentum and weight decay, for which a row without gradient
// stays as it is.
struct SgdRows {
  Buffer w, grad, ids;
  Buffer grad_scale;            // [1] f32, optional
  const void* state = nullptr;  // StepState: learning_rate
  TableList tables;
  int64_t samples = 0, width = 0;
  float learning_rate_scale = 1;
};

// AdamWStep on the touched rows alone: moments and weights of others do not decay.
struct AdamWRows {
  Buffer w, grad, ids, m, v;
  Buffer grad_scale;            // [1] f32, optional
  const void* state = nullptr;  // StepState: learning_rate, updates
  TableList tables;
  int64_t samples = 0, width = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0, learning_rate_scale = 1;
};

}  // namespace trainyard::kernels
