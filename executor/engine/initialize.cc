#include "executor/engine/initialize.h"

#include <algorithm>
#include <vector>

#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kWrittenAtOnce = int64_t{1} << 18;

// FNV-1a, 64 bits.
uint64_t HashOf(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

uint64_t StreamOf(const std::string& name) {
  // The top bit keeps these apart from the draws inside a step, whose streams are small
  // (kernels/random.h).
  return HashOf(name) | uint64_t{1} << 63;
}

absl::Status InitializeTensor(Session& session, plan::TensorId id, uint64_t seed) {
  const plan::Tensor& tensor = session.plan().tensors[id];
  if (tensor.init_std > 0) {
    const std::string& drawn = tensor.shard ? tensor.shard->whole : tensor.name;
    return session.DrawNormal(id, seed, StreamOf(drawn), tensor.init_std);
  }
  const std::vector<float> values(std::min(kWrittenAtOnce, tensor.elements()),
                                  static_cast<float>(tensor.init_value));
  for (int64_t first = 0; first < tensor.elements(); first += kWrittenAtOnce) {
    const int64_t count = std::min(kWrittenAtOnce, tensor.elements() - first);
    session.Write(id, values.data(), count * sizeof(float), first * sizeof(float));
  }
  return session.Synchronize();
}

absl::Status InitializeParameter(Session& session, plan::TensorId id, uint64_t seed,
                                 ParameterShares& shares) {
  const plan::OwnedRun* const rows = session.plan().RowsOf(id);
  if (rows != nullptr) return InitializeTensor(session, rows->weights, seed);
  TY_RETURN_IF_ERROR(InitializeTensor(session, id, seed));
  shares.Keep(id);
  return absl::OkStatus();
}

absl::Status InitializeModel(Session& session, uint64_t seed) {
  ParameterShares shares(session);
  for (const plan::TensorId id : session.plan().parameters) {
    TY_RETURN_IF_ERROR(InitializeParameter(session, id, seed, shares));
  }
  for (const plan::TensorId id : session.plan().buffers) {
    TY_RETURN_IF_ERROR(InitializeTensor(session, id, seed));
  }
  return session.Synchronize();
}

}  // namespace trainyard::engine
