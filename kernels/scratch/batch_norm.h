#pragma once

// Batch norm on the CPU. Rows go by in chunks that a core's cache holds; each leaves two partial
// results per column.

#include <algorithm>

#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::scratch {

struct BatchNormChunks {
  constexpr BatchNormChunks(int64_t rows, int64_t cols)
      : rows(rows),
        cols(cols),
        each(std::clamp<int64_t>(kElements / cols, 32, 1024)),
        count(Ceil(rows, each)) {}

  constexpr int64_t size(int64_t chunk) const { return std::min(each, rows - chunk * each); }
  constexpr int64_t begin(int64_t chunk) const { return chunk * each * cols; }  // its first element

  static constexpr int64_t kElements = 16384;
  int64_t rows, cols, each, count;
};

// The partial results of all chunks, and `factors` numbers per column.
constexpr int64_t BatchNorm(const BatchNormChunks& chunks, int64_t factors) {
  return kFloat * (2 * chunks.count + factors) * chunks.cols;
}
constexpr int64_t BatchNormForward(int64_t rows, int64_t cols) {
  return BatchNorm({rows, cols}, 1);
}
constexpr int64_t BatchNormBackward(int64_t rows, int64_t cols) {
  return BatchNorm({rows, cols}, 3);
}
constexpr int64_t BatchNormInference(int64_t cols) { return kFloat * cols; }

}  // namespace trainyard::kernels::scratch
