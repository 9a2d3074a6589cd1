#pragma once

// The IDX format of MNIST (http://yann.lecun.com/exdb/mnist): big-endian u32 magic 0x0000 08
// <dims>, then a u32 per dimension, then unsigned bytes. Plain or gzip.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace trainyard::data {

struct IdxImages {
  int64_t count = 0, height = 0, width = 0;
  std::vector<uint8_t> pixels;  // [count, height, width]; empty when only the header was read
};

// kInvalidArgument: "FILE: found …, expected …".
absl::StatusOr<IdxImages> ReadIdxImages(const std::string& uri, bool header_only);
absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& uri);

}  // namespace trainyard::data
