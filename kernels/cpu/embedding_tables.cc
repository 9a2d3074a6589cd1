#include "kernels/ops/embedding_tables.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/scratch/merge_rows.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {
namespace {

// The loader checked the ids: one out of range is a bug, and reading past the table would hide it.
void RequireInTables(const int32_t* ids, int64_t batch, const TableList& tables) {
  for (int64_t b = 0; b < batch; ++b, ids += tables.count) {
    for (int64_t t = 0; t < tables.count; ++t) {
      if (ids[t] >= 0 && ids[t] < tables.rows[t]) continue;
      std::fprintf(stderr, "embedding_tables: id %d of table %lld in sample %lld; it has %lld\n",
                   ids[t], static_cast<long long>(t), static_cast<long long>(b),
                   static_cast<long long>(tables.rows[t]));
      std::abort();
    }
  }
}

}  // namespace

// Rows lie anywhere in memory: those of the sample after the next are prefetched.
absl::StatusOr<Kernel> CpuDevice::Bind(const EmbeddingTablesForward& op) {
  return Kernel{[threads = threads_, op](Stream&) {
    constexpr int64_t kAhead = 2;
    const TableList& tables = op.tables.list;
    const int32_t* ids = op.ids.As<int32_t>();
    const float* weights = op.tables.first.As<float>();
    float* y = op.y.As<float>();
    RequireInTables(ids, op.batch, tables);
    const auto row = [&](int64_t b, int64_t t) {
      return weights + tables.start[t] + ids[b * tables.count + t] * op.width;
    };
    const int64_t grain = std::max<int64_t>(1, kSerialElements / (op.width * tables.count));
    ParallelRuns(threads, op.batch, grain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        for (int64_t t = 0; t < tables.count; ++t) {
          if (b + kAhead < end) __builtin_prefetch(row(b + kAhead, t));
          std::memcpy(y + (b * tables.count + t) * op.width, row(b, t), sizeof(float) * op.width);
        }
      }
    });
  }};
}

// Each thread owns some tables and walks the samples in order.
absl::StatusOr<Kernel> CpuDevice::Bind(const EmbeddingTablesBackward& op) {
  return Kernel{[add = vectors_.f32.add, threads = threads_, op](Stream&) {
    const TableList& tables = op.gradients.list;
    const int64_t count = tables.count;
    const int32_t* ids = op.ids.As<int32_t>();
    RequireInTables(ids, op.batch, tables);
    ParallelRuns(threads, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        float* gradients = op.gradients.first.As<float>() + tables.start[t];
        for (int64_t b = 0; b < op.batch; ++b) {
          float* to = gradients + ids[b * count + t] * op.width;
          add(to, op.dy.As<float>() + (b * count + t) * op.width, to, op.width);
        }
      }
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const KeepRows& op) {
  return Kernel{[threads = threads_, op](Stream&) {
    const int64_t at = StepStateOf(op.state)->first_sample % op.samples * op.count;
    const int64_t places = op.batch * op.count;
    std::memcpy(op.kept_ids.As<int32_t>() + at, op.ids.As<int32_t>(), sizeof(int32_t) * places);
    float* to = op.kept_dy.As<float>() + at * op.width;
    ParallelRuns(threads, places * op.width, 16 * kSerialElements, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, op.dy.As<float>() + begin, sizeof(float) * (end - begin));
    });
  }};
}

// For each table a hash table maps a row to its first sample; it has at least twice as many slots
// as there are samples.
absl::StatusOr<Kernel> CpuDevice::Bind(const MergeRows& op) {
  const int64_t slots = scratch::MergeRowsSlots(op.samples);
  Kernel kernel;
  kernel.scratch_bytes = scratch::MergeRows(op.samples, threads_);
  kernel.launch = [add = vectors_.f32.add, threads = threads_, op, slots](Stream& stream) {
    constexpr int32_t kEmpty = -1;
    int32_t* ids = op.ids.As<int32_t>();
    float* grad = op.grad.As<float>();
    ParallelRuns(threads, op.count, 1, [&](int64_t begin, int64_t end) {
      int32_t* first = static_cast<int32_t*>(stream.scratch) + omp_get_thread_num() * slots;
      for (int64_t t = begin; t < end; ++t) {
        std::fill(first, first + slots, kEmpty);
        for (int64_t s = 0; s < op.samples; ++s) {
          int32_t& id = ids[s * op.count + t];
          // Fibonacci hashing, then the next free slot.
          uint64_t slot = (static_cast<uint32_t>(id) * 0x9E3779B97F4A7C15u >> 32) & (slots - 1);
          while (first[slot] != kEmpty && ids[first[slot] * op.count + t] != id) {
            slot = (slot + 1) & (slots - 1);
          }
          if (first[slot] == kEmpty) {
            first[slot] = static_cast<int32_t>(s);
            continue;
          }
          float* sum = grad + (first[slot] * op.count + t) * op.width;
          float* from = grad + (s * op.count + t) * op.width;
          add(sum, from, sum, op.width);
          std::fill(from, from + op.width, 0.0f);
          id = -1;
        }
      }
    });
  };
  return kernel;
}

}  // namespace trainyard::kernels
