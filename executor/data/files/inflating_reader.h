#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/data/files/regular_file.h"

namespace trainyard::data {

// Reads a file from front to back, through zlib when it begins like gzip (RFC 1952).
// Thread-compatible.
class InflatingReader {
 public:
  static absl::StatusOr<InflatingReader> Open(const std::string& uri);
  InflatingReader(InflatingReader&&) noexcept;
  ~InflatingReader();

  const std::string& path() const;

  // No file of this size can hold more (deflate shrinks at most 1032 times), so that a lying header
  // is refused before memory is asked for.
  int64_t most_bytes() const;

  // The share of the file that was delivered, in [0, 1].
  double progress() const;

  // Reads exactly `bytes`; kInvalidArgument "FILE: ends after …" or what is wrong with the gzip.
  absl::Status Read(void* to, int64_t bytes);

  // Reads at most `bytes` and at least one; 0 at the end.
  absl::StatusOr<int64_t> ReadSome(char* to, int64_t bytes);

  // OK when everything was read and, for gzip, its checksum held.
  absl::Status ExpectEnd();

 private:
  struct State;
  explicit InflatingReader(std::unique_ptr<State> state);
  absl::StatusOr<int64_t> InflateSome(char* to, int64_t bytes);
  absl::Status Refill();

  std::unique_ptr<State> state_;
};

}  // namespace trainyard::data
