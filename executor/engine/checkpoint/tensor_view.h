#pragma once

// A tensor as a checkpoint is to hold it.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard::engine {

// scale * B A, with A [rank, in] and B [out, rank] in memory that someone else owns.
struct LowRankTerm {
  const float* a = nullptr;
  const float* b = nullptr;
  int64_t rank = 0;
  bool in_out = false;  // the tensor that it is added to is [in, out], else [out, in]
  double scale = 1;
};

// Where a tensor lies in memory that someone else owns.
struct TensorView {
  const char* dtype = "F32";  // as safetensors names it
  std::vector<int64_t> dims;
  absl::string_view bytes;
  // Of a tensor that does not lie in memory here: reads elements from `first` on; `bytes` is empty.
  std::function<absl::Status(int64_t first, absl::Span<float> to)> read = nullptr;
  // What is added to it, each element in double precision and rounded once.
  std::optional<LowRankTerm> term = std::nullopt;
};

// Calls `take` with the bytes of the tensor, its term added, piece by piece in order, until one
// call is not OK. The sum is never held in memory as a whole.
absl::Status ForEachPiece(const TensorView& tensor,
                          const std::function<absl::Status(absl::string_view)>& take);

}  // namespace trainyard::engine
