#include <algorithm>
#include <cstring>

#include "kernels/cpu/bugs.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const EmbeddingForward& op) {
  return Kernel{[add = vectors_.f32.add, threads = threads_, op](Stream&) {
    const int32_t* ids = op.ids.As<int32_t>();
    const float* tokens = op.tokens.As<float>();
    const float* positions = op.positions.As<float>();
    float* y = op.y.As<float>();
    RequireInVocabulary("embedding", ids, op.batch * op.time, op.vocab);
    ParallelFor(threads, op.batch * op.time, GrainOf(op.width), [&](int64_t i) {
      const float* token = tokens + ids[i] * op.width;
      if (positions == nullptr) {
        std::memcpy(y + i * op.width, token, sizeof(float) * op.width);
      } else {
        add(token, positions + i % op.time * op.width, y + i * op.width, op.width);
      }
    });
  }};
}

// Each thread owns some columns of the tables and walks all places in order: no two write to one
// element, and the order of addition is that of the contract for any number of threads.
absl::StatusOr<Kernel> CpuDevice::Bind(const EmbeddingBackward& op) {
  return Kernel{[add = vectors_.f32.add, threads = threads_, op](Stream&) {
    constexpr int64_t kLine = 16;  // floats of a cache line: no line has two writers
    const int32_t* ids = op.ids.As<int32_t>();
    const float* dy = op.dy.As<float>();
    float* dtokens = op.dtokens.As<float>();
    float* dpositions = op.dpositions.As<float>();
    const int64_t places = op.batch * op.time;
    RequireInVocabulary("embedding", ids, places, op.vocab);
    const int64_t grain = std::max(kLine, kSerialElements / places / kLine * kLine);
    ParallelRuns(threads, op.width, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < places; ++i) {
        const float* from = dy + i * op.width + begin;
        float* token = dtokens + ids[i] * op.width + begin;
        add(token, from, token, end - begin);
        if (dpositions == nullptr) continue;
        float* position = dpositions + i % op.time * op.width + begin;
        add(position, from, position, end - begin);
      }
    });
  }};
}

}  // namespace trainyard::kernels
