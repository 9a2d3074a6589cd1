#include "executor/engine/read_tensor.h"

#include <algorithm>
#include <vector>

#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kReadAtOnce = int64_t{4} << 20;  // bytes

}  // namespace

absl::Status ReadTensor(const weights::SafetensorsFile& file, const std::string& prefix,
                        const plan::Tensor& parameter, Session& session, plan::TensorId id) {
  for (const plan::StoredTensor& stored : plan::Stored(parameter)) {
    TY_RETURN_IF_ERROR(ReadStored(file, prefix + stored.name, stored, session, id));
  }
  return absl::OkStatus();
}

absl::Status ReadStored(const weights::SafetensorsFile& file, const std::string& name,
                        const plan::StoredTensor& stored, Session& session, plan::TensorId id) {
  TY_ASSIGN_OR_RETURN(const weights::TensorEntry entry, file.Find(name, stored.dims));
  std::vector<char> chunk(std::min(kReadAtOnce, entry.bytes()));
  for (int64_t at = 0; at < entry.bytes(); at += kReadAtOnce) {
    const int64_t bytes = std::min(kReadAtOnce, entry.bytes() - at);
    TY_RETURN_IF_ERROR(file.Read(entry, at, bytes, chunk.data()));
    session.Write(id, chunk.data(), bytes, stored.offset + at);
    TY_RETURN_IF_ERROR(session.Synchronize());
  }
  return absl::OkStatus();
}

absl::Status ReadStoredShards(
    const weights::SafetensorsFile& file, const std::string& name,
    const plan::StoredInShards& tensor, Session& session,
    absl::FunctionRef<void(size_t position, int64_t offset, absl::Span<const float> run)> write) {
  TY_ASSIGN_OR_RETURN(const weights::TensorEntry entry, file.Find(name, tensor.stored.dims));
  constexpr int64_t kMost = kReadAtOnce / static_cast<int64_t>(sizeof(float));
  const int64_t elements = tensor.stored.elements();
  std::vector<float> chunk(std::min(kMost, elements));
  for (int64_t begin = 0; begin < elements; begin += kMost) {
    const int64_t count = std::min(kMost, elements - begin);
    TY_RETURN_IF_ERROR(
        file.Read(entry, begin * sizeof(float), count * sizeof(float), chunk.data()));
    plan::ForEachRun(tensor, begin, count,
                     [&](const plan::ShardPiece& piece, int64_t offset, int64_t at, int64_t n) {
                       write(piece.position, offset, {chunk.data() + at, static_cast<size_t>(n)});
                     });
    TY_RETURN_IF_ERROR(session.Synchronize());
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
