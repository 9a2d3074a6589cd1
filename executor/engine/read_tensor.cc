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

absl::Status ReadStoredShards(const weights::SafetensorsFile& file, const std::string& name,
                              const plan::StoredInShards& tensor,
                              const std::vector<plan::TensorId>& places, Session& session) {
  constexpr int64_t kSize = sizeof(float);
  TY_ASSIGN_OR_RETURN(const weights::TensorEntry entry, file.Find(name, tensor.stored.dims));
  std::vector<char> chunk(std::min(kReadAtOnce, entry.bytes()));
  for (int64_t begin = 0; begin < entry.bytes(); begin += kReadAtOnce) {
    const int64_t bytes = std::min(kReadAtOnce, entry.bytes() - begin);
    TY_RETURN_IF_ERROR(file.Read(entry, begin, bytes, chunk.data()));
    plan::ForEachRun(tensor, begin / kSize, bytes / kSize,
                     [&](const plan::ShardPiece& piece, int64_t offset, int64_t at, int64_t n) {
                       if (places[piece.position] == plan::kNone) return;
                       session.Write(places[piece.position], chunk.data() + at * kSize, n * kSize,
                                     offset * kSize);
                     });
    TY_RETURN_IF_ERROR(session.Synchronize());
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
