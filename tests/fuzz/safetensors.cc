// Safetensors files: what is accepted names tensors that lie within the file, side by side, and can
// be read.

#include "executor/weights/safetensors.h"

#include <cstring>

#include "storage/base/status.h"

namespace trainyard::weights {
namespace {

class MemoryReader : public ObjectReader {
 public:
  MemoryReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  int64_t size() const override { return static_cast<int64_t>(size_); }
  absl::Status Read(int64_t offset, size_t bytes, void* to) override {
    TY_CHECK(offset >= 0 && static_cast<size_t>(offset) <= size_, offset);
    if (bytes > size_ - static_cast<size_t>(offset)) return absl::OutOfRangeError("ends");
    memcpy(to, data_ + offset, bytes);
    return absl::OkStatus();
  }

 private:
  const uint8_t* const data_;
  const size_t size_;
};

}  // namespace
}  // namespace trainyard::weights

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard::weights;
  const auto file = SafetensorsFile::Open(std::make_unique<MemoryReader>(data, size), "f");
  if (!file.ok()) return 0;
  int64_t bytes = 0;
  for (const auto& [name, entry] : file->header().tensors) {
    bytes += entry.bytes();
    std::string content(static_cast<size_t>(entry.bytes()), '\0');
    TY_CHECK(file->Read(entry, 0, content.size(), content.data()).ok(), name);
    const auto found = file->Find(name, entry.shape);
    TY_CHECK(found.ok() == (entry.dtype == "F32"), name);
  }
  TY_CHECK(bytes <= static_cast<int64_t>(size), bytes);
  return 0;
}
