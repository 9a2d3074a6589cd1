#include "executor/weights/safetensors.h"

#include <cstring>

#include "absl/strings/str_join.h"
#include "storage/base/status.h"

namespace trainyard::weights {

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(std::unique_ptr<ObjectReader> reader,
                                                      const std::string& place,
                                                      int64_t largest_header) {
  uint64_t header_bytes = 0;
  const int64_t size = reader->size();
  if (size < 8) {
    return absl::DataLossError(absl::StrCat(place, ": ", size, " bytes are no safetensors file"));
  }
  TY_RETURN_IF_ERROR(reader->Read(0, sizeof(header_bytes), &header_bytes));
  if (header_bytes > static_cast<uint64_t>(largest_header)) {
    return absl::DataLossError(absl::StrCat(place, ": a header of ", header_bytes,
                                            " bytes; at most ", largest_header, " are allowed"));
  }
  const int64_t data_offset = 8 + static_cast<int64_t>(header_bytes);
  if (data_offset > size) {
    return absl::DataLossError(
        absl::StrCat(place, ": a header of ", header_bytes, " bytes in a file of ", size));
  }
  std::string json(header_bytes, '\0');
  TY_RETURN_IF_ERROR(reader->Read(8, header_bytes, json.data()));
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, size - data_offset);
  if (!header.ok()) return Annotate(header.status(), place);
  return SafetensorsFile(std::move(reader), place, *std::move(header), data_offset);
}

absl::StatusOr<TensorEntry> SafetensorsFile::Find(const std::string& name,
                                                  const std::vector<int64_t>& shape) const {
  const auto it = header_.tensors.find(name);
  if (it == header_.tensors.end()) {
    return absl::DataLossError(absl::StrCat(place_, ": tensor '", name, "' is missing"));
  }
  const TensorEntry& entry = it->second;
  if (entry.dtype != "F32" || entry.shape != shape) {
    return absl::DataLossError(absl::StrCat(place_, ": tensor '", name, "' is ", entry.dtype, " [",
                                            absl::StrJoin(entry.shape, ", "), "]; expected F32 [",
                                            absl::StrJoin(shape, ", "), "]"));
  }
  return entry;
}

absl::Status SafetensorsFile::Read(const TensorEntry& entry, int64_t offset, size_t bytes,
                                   void* to) const {
  TY_CHECK(offset >= 0 && offset + static_cast<int64_t>(bytes) <= entry.bytes(), offset, " + ",
           bytes);
  return reader_->Read(data_offset_ + entry.begin + offset, bytes, to);
}

}  // namespace trainyard::weights
