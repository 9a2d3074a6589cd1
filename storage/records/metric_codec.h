#pragma once

// The encoding of columns of metrics as bytes. Pure. Decoding damaged or hostile bytes returns
// kDataLoss, never crashes, and takes no more memory than `count` values need.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// No column holds more values than this.
inline constexpr size_t kMostColumnValues = size_t{1} << 20;

// Integers that grow nearly evenly (steps, sequences, times): the differences of their differences
// as zigzag varints. A run of zeros is written as one zero and the length of the run.
std::string EncodeIntegers(const std::vector<int64_t>& values);
absl::StatusOr<std::vector<int64_t>> DecodeIntegers(absl::string_view bytes, size_t count);

// Doubles, without loss: each as the XOR with the one before it, of which only the bits between the
// leading and the trailing zeros are written (T. Pelkonen and others, "Gorilla: a fast, scalable,
// in-memory time series database", VLDB 2015). Compared with zlib over transposed bytes: zlib needs
// at most a seventh less space for losses and times and half as much for a learning rate, but seven
// to eleven times as long.
std::string EncodeDoubles(const std::vector<double>& values);
absl::StatusOr<std::vector<double>> DecodeDoubles(absl::string_view bytes, size_t count);

// Append a number or a byte string, for encodings that are made of several parts.
void PutVarint(uint64_t value, std::string& bytes);
void PutPiece(absl::string_view piece, std::string& bytes);  // its length, then itself

// Reads what PutVarint and PutPiece wrote. Once something is missing, everything that is read is 0
// or empty, and `ok` is false.
class PieceReader {
 public:
  explicit PieceReader(absl::string_view bytes) : rest_(bytes) {}

  uint64_t Varint();
  absl::string_view Piece();
  absl::string_view Rest();  // all that is left

  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

}  // namespace trainyard
