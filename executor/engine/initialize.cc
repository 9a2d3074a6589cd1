#include "executor/engine/initialize.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <thread>
#include <vector>

#include "kernels/random.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kDrawnAtOnce = int64_t{1} << 18;  // elements drawn, then copied to the device
constexpr int64_t kPerThread = int64_t{1} << 14;    // fewer are not worth a thread

// FNV-1a, 64 bits.
uint64_t HashOf(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// In (0, 1), 53 bits.
double OpenUniform(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

// Runs f(first, count) over [0, n) on at most `threads` threads. Every piece begins at an even
// place.
void Split(int64_t n, int threads, const std::function<void(int64_t, int64_t)>& f) {
  const int64_t pieces = std::clamp<int64_t>(n / kPerThread, 1, std::max(threads, 1));
  const int64_t size = ((n + pieces - 1) / pieces + 1) / 2 * 2;
  std::vector<std::thread> running;
  for (int64_t first = size; first < n; first += size) {
    running.emplace_back([=, &f] { f(first, std::min(size, n - first)); });
  }
  f(0, std::min(size, n));
  for (std::thread& thread : running) thread.join();
}

}  // namespace

void DrawNormal(uint64_t seed, const std::string& name, double init_std, int64_t first,
                int64_t count, float* out) {
  // The top bit of the last counter keeps these apart from the draws inside a step, whose streams
  // are small (kernels/random.h).
  const uint64_t hash = HashOf(name);
  const auto low = static_cast<uint32_t>(hash);
  const auto high = static_cast<uint32_t>(hash >> 32) | 0x80000000u;
  for (int64_t pair = first / 2; 2 * pair < first + count; ++pair) {
    // Box & Muller (1958) make two from one draw of four words.
    const kernels::Random4 r = kernels::Philox4x32(seed, static_cast<uint32_t>(pair),
                                                   static_cast<uint32_t>(pair >> 32), low, high);
    const double radius = init_std * std::sqrt(-2 * std::log(OpenUniform(r.v[0], r.v[1])));
    const double angle = 2 * std::numbers::pi * OpenUniform(r.v[2], r.v[3]);
    const double sine = std::sin(angle), cosine = std::cos(angle);
    const int64_t at = 2 * pair - first;
    if (at >= 0) out[at] = static_cast<float>(radius * cosine);
    if (at + 1 < count) out[at + 1] = static_cast<float>(radius * sine);
  }
}

absl::Status InitializeTensor(Session& session, plan::TensorId id, uint64_t seed, int threads) {
  std::vector<float> chunk;
  const plan::Tensor& tensor = session.plan().tensors[id];
  for (int64_t first = 0; first < tensor.elements(); first += kDrawnAtOnce) {
    const int64_t count = std::min(kDrawnAtOnce, tensor.elements() - first);
    chunk.assign(count, static_cast<float>(tensor.init_value));
    if (tensor.init_std > 0) {
      Split(count, threads, [&](int64_t at, int64_t n) {
        DrawNormal(seed, tensor.name, tensor.init_std, first + at, n, chunk.data() + at);
      });
    }
    session.Write(id, chunk.data(), count * sizeof(float), first * sizeof(float));
    TY_RETURN_IF_ERROR(session.Synchronize());
  }
  return absl::OkStatus();
}

absl::Status InitializeModel(Session& session, uint64_t seed, int threads) {
  for (const auto* ids : {&session.plan().parameters, &session.plan().buffers}) {
    for (const plan::TensorId id : *ids) {
      TY_RETURN_IF_ERROR(InitializeTensor(session, id, seed, threads));
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
