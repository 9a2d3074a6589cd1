#pragma once

// What the CUDA back end takes of a GPU to run an op: exactly, or at most, what its own kernels
// ask for, and the limits that it sets NVIDIA's libraries. No device is needed to know it.

#include <algorithm>
#include <cstddef>

#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::cuda {

// To which the workspaces of libraries, and the pieces of a batch, are aligned.
inline constexpr size_t kWorkspaceAlign = 256;
// Of a product: what NVIDIA advises for Hopper.
inline constexpr size_t kCublasWorkspace = size_t{32} << 20;
// Tensor cores are fed with 16 bytes, 8 elements of 16 bits, at a time. Where the columns of a
// product or the terms of its sums are no multiple of 8, cuBLASLt is left with its slowest kernels,
// even if the rows begin at multiples of 16 bytes: for the logits of GPT-2 on an H100, 25.8 ms
// instead of 4.2, and 18.9 instead of 3.6 for their gradient. If what must grow has room for it,
// such a product is made with n and k rounded up, and with a copy of b that ends in rows of zeros.
inline constexpr int64_t kProductGrain = 8;
struct ProductShape {
  int64_t n, k;
};
// b is [n, k] if `transpose_b`, else [k, n]. `a_stride` and `c_stride` are elements from row to row
// of padded buffers, 0 of others; a dense c grows by no column.
inline ProductShape PaddedProduct(int64_t n, int64_t k, bool transpose_a, bool transpose_b,
                                  int64_t a_stride, int64_t c_stride) {
  const auto grown = [](int64_t size, int64_t stride) {
    const int64_t to = scratch::RoundUp(size, kProductGrain);
    return stride >= to && stride % kProductGrain == 0 ? to : size;
  };
  if (transpose_b && k % kProductGrain == 0) return {grown(n, c_stride), k};
  if (!transpose_a && !transpose_b && n % kProductGrain == 0) return {n, grown(k, a_stride)};
  return {n, k};
}
// A copy of b with 16-bit elements, for a product that grew to `padded`.
inline size_t PaddedProductBytes(const ProductShape& padded) {
  return static_cast<size_t>(
      scratch::RoundUp(2 * padded.n * padded.k, static_cast<int64_t>(kWorkspaceAlign)));
}

inline constexpr size_t kMostConvolutionWorkspace = size_t{256} << 20;  // of cuDNN's
// Of the gradients of scores that cuDNN makes at once. All of a GPT-2's, 384 heads of 1024
// positions, took an H200 0.75 ms in pieces of 256 MiB, 0.67 in pieces of 512, and 0.63 in one
// piece, of 768.
inline constexpr size_t kMostScoreBytes = size_t{512} << 20;

// Sums over the rows of a matrix go by at most so many chunks of rows.
inline constexpr int64_t kMostRowChunks = 256;
inline size_t RowSumBytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(std::min(rows, kMostRowChunks) * cols) * sizeof(float);
}
// The same with the rows cut (kernels/ops/column_sum.h): the sum of each cut, and what the longest
// takes.
inline size_t CutSumBytes(int64_t rows, int64_t cols, int64_t cuts) {
  if (cuts == 1) return RowSumBytes(rows, cols);
  return static_cast<size_t>(cuts * cols) * sizeof(float) +
         RowSumBytes(scratch::Ceil(rows, cuts), cols);
}
// Batch norm has two such sums, its gradient three factors per column beside.
inline size_t BatchNormForwardBytes(int64_t rows, int64_t cols) {
  return 2 * RowSumBytes(rows, cols);
}
inline size_t BatchNormBackwardBytes(int64_t rows, int64_t cols) {
  return 2 * RowSumBytes(rows, cols) + 3 * static_cast<size_t>(cols) * sizeof(float);
}

// Sums of n elements in double precision: a partial sum per block, each of at least so many
// elements.
inline constexpr int64_t kElementsOfSumBlock = 4096, kMostSumBlocks = 1024;
inline int64_t SumBlocks(int64_t n) {
  return std::clamp<int64_t>(scratch::Ceil(n, kElementsOfSumBlock), 1, kMostSumBlocks);
}
inline size_t FixedSumBytes(int64_t n) { return SumBlocks(n) * sizeof(double); }

// Ids are sorted in chunks of so many, as 8 bytes each.
inline constexpr int kChunkPlaces = 1024;
inline size_t SortedIdBytes(int64_t places) {
  return static_cast<size_t>(scratch::RoundUp(places, kChunkPlaces)) * sizeof(uint64_t);
}

// A step of AdamW keeps the corrections of its moments there; one of LAMB that adapts has two sums,
// and its ratio beside the corrections.
inline constexpr size_t kCorrectionBytes = 8, kFoundBytes = 16;
inline size_t LambBytes(int64_t n, bool adapt) {
  return adapt ? 2 * FixedSumBytes(n) + kFoundBytes : 0;
}

// By our own kernels, a number per row and head.
inline size_t AttentionBackwardBytes(int64_t batch, int64_t heads, int64_t time) {
  return static_cast<size_t>(batch * heads * time) * sizeof(float);
}

}  // namespace trainyard::kernels::cuda
