#include "kernels/ops/embedding_shards.h"

#include <algorithm>

#include "kernels/cpu/bugs.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

// Where the row `id` begins, null if no table has it.
float* RowOf(const Tables& tables, int64_t id, int64_t first, int64_t width) {
  int64_t row = id - first;
  if (row < 0) return nullptr;
  for (int64_t t = 0; t < tables.list.count; ++t) {
    if (row < tables.list.rows[t]) {
      return tables.first.As<float>() + tables.list.start[t] + row * width;
    }
    row -= tables.list.rows[t];
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const EmbeddingShardsForward& op) {
  return Kernel{[threads = threads_, op](Stream&) {
    const int32_t* const ids = op.ids.As<int32_t>();
    float* const y = op.y.As<float>();
    RequireInVocabulary("embedding_shards", ids, op.places, op.vocab);
    ParallelFor(threads, op.places, GrainOf(op.width), [&](int64_t i) {
      const float* const row = RowOf(op.tables, ids[i], op.first, op.width);
      float* const to = y + i * op.width;
      for (int64_t j = 0; j < op.width; ++j) to[j] = row == nullptr ? 0.0f : row[j] + 0.0f;
    });
  }};
}

// Each thread owns some columns, as in EmbeddingBackward.
absl::StatusOr<Kernel> CpuDevice::Bind(const EmbeddingShardsBackward& op) {
  return Kernel{[add = vectors_.f32.add, threads = threads_, op](Stream&) {
    constexpr int64_t kLine = 16;  // floats of a cache line: no line has two writers
    const int32_t* const ids = op.ids.As<int32_t>();
    const float* const dy = op.dy.As<float>();
    RequireInVocabulary("embedding_shards", ids, op.places, op.vocab);
    const int64_t grain = std::max(kLine, kSerialElements / op.places / kLine * kLine);
    ParallelRuns(threads, op.width, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < op.places; ++i) {
        float* const row = RowOf(op.gradients, ids[i], op.first, op.width);
        if (row != nullptr) add(row + begin, dy + i * op.width + begin, row + begin, end - begin);
      }
    });
  }};
}

}  // namespace trainyard::kernels
