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
// Of cuDNN's convolutions, and of the gradients of scores that it makes at once.
inline constexpr size_t kMostConvolutionWorkspace = size_t{256} << 20;
inline constexpr size_t kMostScoreBytes = size_t{256} << 20;

// Sums over the rows of a matrix go by at most so many chunks of rows.
inline constexpr int64_t kMostRowChunks = 256;
inline size_t RowSumBytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(std::min(rows, kMostRowChunks) * cols) * sizeof(float);
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
