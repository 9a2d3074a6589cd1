#include "executor/engine/checkpoint/tensor_view.h"

#include <algorithm>

#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kPiece = int64_t{1} << 18;  // elements of a piece, at least a row

// Adds scale * L R to a weight [rows, cols], with L [rows, rank] and R [rank, cols], of which whole
// rows are read: L R is B A for a weight [out, in], and its transpose for one that is [in, out].
class Merge {
 public:
  Merge(const TensorView& tensor, const LowRankTerm& term)
      : term_(term),
        weight_(reinterpret_cast<const float*>(tensor.bytes.data())),
        rows_(tensor.dims[0]),
        cols_(tensor.dims[1]),
        sums_(cols_) {
    if (!term.in_out) return;
    transposed_.resize(term.rank * cols_);  // B transposed, which is R then
    for (int64_t j = 0; j < cols_; ++j) {
      for (int64_t r = 0; r < term.rank; ++r)
        transposed_[r * cols_ + j] = term.b[j * term.rank + r];
    }
  }

  absl::Status Run(const std::function<absl::Status(absl::string_view)>& take) {
    const int64_t at_once = std::clamp<int64_t>(kPiece / cols_, 1, rows_);
    std::vector<float> piece(at_once * cols_);
    for (int64_t row = 0; row < rows_; row += at_once) {
      const int64_t n = std::min(at_once, rows_ - row);
      for (int64_t i = 0; i < n; ++i) WriteRow(row + i, piece.data() + i * cols_);
      TY_RETURN_IF_ERROR(take({reinterpret_cast<const char*>(piece.data()),
                               static_cast<size_t>(n * cols_) * sizeof(float)}));
    }
    return absl::OkStatus();
  }

 private:
  void WriteRow(int64_t row, float* to) {
    std::fill(sums_.begin(), sums_.end(), 0);
    for (int64_t r = 0; r < term_.rank; ++r) {
      const double left = term_.in_out ? term_.a[r * rows_ + row] : term_.b[row * term_.rank + r];
      const float* const right = (term_.in_out ? transposed_.data() : term_.a) + r * cols_;
      for (int64_t j = 0; j < cols_; ++j) sums_[j] += left * right[j];
    }
    const float* const weight = weight_ + row * cols_;
    for (int64_t j = 0; j < cols_; ++j) {
      to[j] = static_cast<float>(weight[j] + term_.scale * sums_[j]);
    }
  }

  const LowRankTerm& term_;
  const float* const weight_;
  const int64_t rows_, cols_;
  std::vector<double> sums_;
  std::vector<float> transposed_;
};

absl::Status ReadPieces(const TensorView& tensor,
                        const std::function<absl::Status(absl::string_view)>& take) {
  int64_t elements = 1;
  for (const int64_t dim : tensor.dims) elements *= dim;
  std::vector<float> piece(std::min(kPiece, elements));
  for (int64_t first = 0; first < elements; first += kPiece) {
    const absl::Span<float> to = absl::MakeSpan(piece).first(std::min(kPiece, elements - first));
    TY_RETURN_IF_ERROR(tensor.read(first, to));
    TY_RETURN_IF_ERROR(take({reinterpret_cast<const char*>(to.data()), to.size() * sizeof(float)}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ForEachPiece(const TensorView& tensor,
                          const std::function<absl::Status(absl::string_view)>& take) {
  if (tensor.read) return ReadPieces(tensor, take);
  if (!tensor.term) return take(tensor.bytes);
  TY_CHECK(tensor.dims.size() == 2, tensor.dims.size(), " dimensions");
  return Merge(tensor, *tensor.term).Run(take);
}

}  // namespace trainyard::engine
