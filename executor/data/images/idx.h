#pragma once

// The IDX format of MNIST (http://yann.lecun.com/exdb/mnist): big-endian u32 magic 0x0000 08
// <dims>, then a u32 per dimension, then unsigned bytes. Plain or gzip.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace trainyard::data {

struct IdxImages {
  int64_t count = 0, height = 0, width = 0;
  std::vector<uint8_t> pixels;  // [count, height, width]; empty when only the header was read
};

// kInvalidArgument: "FILE: found …, expected …".
absl::StatusOr<IdxImages> ReadIdxImages(const std::string& uri, bool header_only);
absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& uri);

// What a file of labels holds.
struct IdxLabelCount {
  int64_t count = 0;
  int64_t largest = 0;
  int64_t first_over = -1;  // the first label of at least `classes`; -1: none
  int64_t label_over = 0;   // that label

  // Counts more labels, which follow those before.
  void Add(absl::Span<const uint8_t> labels, int64_t classes);
};

// Reads all labels, of which few are in memory at a time; or the header alone, when it declares
// others than `expected` labels.
absl::StatusOr<IdxLabelCount> CountIdxLabels(const std::string& uri, int64_t expected,
                                             int64_t classes);

}  // namespace trainyard::data
