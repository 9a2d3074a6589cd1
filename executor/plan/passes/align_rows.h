#pragma once

// Rows that matrix units read fast. Logits [rows, vocabulary] of 50257 columns in 16 bits have rows
// that begin at odd multiples of 2 bytes, where neither 16-byte accesses nor TMA, whose strides are
// multiples of 16 bytes, can reach: cuBLASLt is then left with its slowest kernels for the product
// that makes the logits and for the two that read their gradient. PyTorch's compiler pads such
// products; here their rows are laid apart, and a GPU's products grow into the room between them
// (kernels/scratch/cuda.h).

#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

// Elements of 16 bits in 16 bytes: rows of such a multiple are left as they are.
inline constexpr int64_t kAlignedColumns = 8;
// Elements from row to row become a multiple of so many, 128 bytes of 16 bits: what NVIDIA's guide
// to matrix multiplication names for A100 and later, and rows that begin with a line of the cache.
inline constexpr int64_t kRowGrain = 64;
// Rows grow by one part in so many at most: a classifier of a few classes is left alone.
inline constexpr int64_t kMostPadding = 16;

// Lays the rows of `logits` apart where that helps: a product with a weight [classes, width] makes
// them, none of the ops of `graph` reads them (the loss and the gradient, which can, come later),
// and their columns are no multiple of kAlignedColumns. Changes no value.
void AlignLogits(TensorId logits, Graph& graph);

}  // namespace trainyard::plan
