#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Tables of one width, in one run of memory; table t is [rows[t], width] and begins start[t] floats
// after the first.
struct TableList {
  static constexpr int64_t kMost = 128;
  int64_t count = 0;
  int64_t start[kMost] = {};
  int64_t rows[kMost] = {};
};

// y[b, t, :] = table t [ids[b, t], :]
//   ids: [batch, tables.count] i32, ids[b, t] in [0, rows[t]); y: [batch, tables.count, width]
// The loader checked the ids; an id out of range aborts on the CPU.
struct EmbeddingTablesForward {
  Buffer ids, weights, y;
  TableList tables;
  int64_t batch = 0, width = 0;
};

// gradients: like the tables. Row ids[b, t] of table t += dy[b, t, :], in order of b.
struct EmbeddingTablesBackward {
  Buffer dy, ids, gradients;
  TableList tables;
  int64_t batch = 0, width = 0;
};

// The same gradient kept by place, for an optimizer that touches only the rows of a step: notes dy
// and ids of a micro-batch where its samples lie in the step.
//   dy: [batch, count, width], ids: [batch, count]; kept_dy, kept_ids: the same for `samples`, a
//   multiple of batch; b goes to place (state.first_sample + b) mod samples
struct KeepRows {
  Buffer dy, ids, kept_dy, kept_ids;
  const void* state = nullptr;  // StepState
  int64_t samples = 0, batch = 0, count = 0, width = 0;
};

// Makes the rows kept of a step distinct, in place: per table, the first place of a row gets the
// sum over all its places, in order of the samples; those after it get gradient 0 and id -1.
//   grad: [samples, count, width]; ids: [samples, count], each in [0, 2^31)
struct MergeRows {
  Buffer grad, ids;
  int64_t samples = 0, count = 0, width = 0;
};

}  // namespace trainyard::kernels
