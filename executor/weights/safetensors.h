#pragma once

// The safetensors format: uint64 header bytes | JSON header | data, little-endian. The header maps
// each name to {"dtype", "shape", "data_offsets": [begin, end)}, offsets counted from the end of
// the header. https://github.com/huggingface/safetensors#format

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/objects/object_store.h"

namespace trainyard::weights {

struct TensorEntry {
  std::string dtype;  // "F32", …
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes from the start of the data

  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;  // by name
  std::map<std::string, std::string> metadata;
};

// What the format's reference refuses, and what could exhaust memory, is kDataLoss: a header that
// is too long or not JSON, a name twice, an unknown dtype, a shape that overflows or does not fit
// its bytes, offsets that overlap, leave a hole or do not cover `data_bytes` exactly. The message
// names the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes);

// The length and the header, padded with spaces to a multiple of 8 bytes. The data must follow in
// order of `begin`.
std::string SafetensorsPrefix(const SafetensorsHeader& header);

// A header over tensors whose dtype and shape are set: gives each its place, wider elements first
// and then by name, as the format's reference does, so that each is aligned.
SafetensorsHeader PackedHeader(std::map<std::string, TensorEntry> tensors);

// The names in order of their places.
std::vector<std::string> NamesByPlace(const SafetensorsHeader& header);

inline constexpr int64_t kLargestHeader = 100'000'000;  // bytes; the reference's limit

// Every file is treated as hostile. Thread-safe once open.
class SafetensorsFile {
 public:
  // `place` names the file in messages. kDataLoss: a header that is longer than `largest_header`,
  // or wrong.
  static absl::StatusOr<SafetensorsFile> Open(std::unique_ptr<ObjectReader> reader,
                                              const std::string& place,
                                              int64_t largest_header = kLargestHeader);

  const SafetensorsHeader& header() const { return header_; }
  int64_t header_bytes() const { return data_offset_ - 8; }

  // The entry, which must be F32 of exactly `shape`; kDataLoss says what was found.
  absl::StatusOr<TensorEntry> Find(const std::string& name,
                                   const std::vector<int64_t>& shape) const;

  // `offset` counts from the start of the tensor.
  absl::Status Read(const TensorEntry& entry, int64_t offset, size_t bytes, void* to) const;

 private:
  SafetensorsFile(std::unique_ptr<ObjectReader> reader, std::string place, SafetensorsHeader header,
                  int64_t data_offset)
      : reader_(std::move(reader)),
        place_(std::move(place)),
        header_(std::move(header)),
        data_offset_(data_offset) {}

  std::unique_ptr<ObjectReader> reader_;
  std::string place_;
  SafetensorsHeader header_;
  int64_t data_offset_ = 0;
};

}  // namespace trainyard::weights
