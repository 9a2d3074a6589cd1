#include "kernels/ops/embedding_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/bugs.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/scratch/merge_rows.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {
namespace {

// The loader checked the ids.
void RequireInTables(const int32_t* ids, int64_t batch, const TableList& tables) {
  for (int64_t b = 0; b < batch; ++b, ids += tables.count) {
    for (int64_t t = 0; t < tables.count; ++t) {
      if (ids[t] >= 0 && ids[t] < tables.rows[t]) continue;
      AbortWith(absl::StrCat("embedding_tables: id ", ids[t], " of table ", t, " in sample ", b,
                             "; it has ", tables.rows[t]));
    }
  }
}

// The places of one table, as a chain for each row.
class RowsOfTable {
 public:
  // `scratch`: as MergeRows takes.
  RowsOfTable(const MergeRows& op, int64_t t, int32_t* scratch)
      : op_(op),
        table_(t),
        of_rank_(op.samples / op.logical_ranks),
        next_(scratch + scratch::MergeRowsSlots(op.samples)) {
    const int64_t slots = scratch::MergeRowsSlots(op.samples);
    int32_t* const first = scratch;  // by slot: the first sample of a row
    std::fill(first, first + slots, kNone);
    for (int64_t s = op.samples - 1; s >= 0; --s) {
      const int32_t id = IdOf(s);
      // Fibonacci hashing, then the next free slot.
      uint64_t slot = (static_cast<uint32_t>(id) * 0x9E3779B97F4A7C15u >> 32) & (slots - 1);
      while (first[slot] != kNone && IdOf(first[slot]) != id) slot = (slot + 1) & (slots - 1);
      next_[s] = first[slot];
      first[slot] = static_cast<int32_t>(s);
    }
  }

  // If sample `s` is the first with its row, adds all others to it: those of a logical rank in
  // order, their sums by the tree. Those that wait for a sibling are a stack, each at the first
  // sample of its rank. The heights at which two neighbours in it are folded fall towards its top.
  template <typename Add>
  void MergeInto(int64_t s, const Add& add) const {
    if (next_[s] == kNone || IdOf(s) < 0) return;
    int64_t stack[1 + kMostHeights];
    int top = 0;
    uint64_t heights = 0;  // a bit for each, the lowest that of the two on top
    int64_t rank = RankOf(s);
    stack[top] = s;
    const auto fold = [&] {
      heights &= heights - 1;
      AddTo(stack[top - 1], stack[top], add);
      --top;
    };
    for (int64_t other = next_[s]; other != kNone; other = next_[other]) {
      IdAt(other) = -1;
      const int64_t its = RankOf(other);
      if (its == rank) {
        AddTo(stack[top], other, add);
        continue;
      }
      const uint64_t height = std::bit_ceil(static_cast<uint64_t>((its ^ rank) + 1));
      while ((heights & (height - 1)) != 0) fold();
      heights |= height;
      stack[++top] = other;
      rank = its;
    }
    while (top > 0) fold();
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int kMostHeights = 32;  // samples are counted by int32

  int64_t RankOf(int64_t s) const { return s / of_rank_; }
  int32_t& IdAt(int64_t s) const { return op_.ids.As<int32_t>()[s * op_.count + table_]; }
  int32_t IdOf(int64_t s) const { return IdAt(s); }
  float* GradientOf(int64_t s) const {
    return op_.grad.As<float>() + (s * op_.count + table_) * op_.width;
  }
  template <typename Add>
  void AddTo(int64_t to, int64_t from, const Add& add) const {
    float *const sum = GradientOf(to), *const part = GradientOf(from);
    add(sum, part, sum, op_.width);
    std::fill(part, part + op_.width, 0.0f);
  }

  const MergeRows& op_;
  const int64_t table_;
  const int64_t of_rank_;  // samples
  int32_t* const next_;    // by sample: the next with the same row
};

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
    const int64_t grain = GrainOf(op.width * tables.count);
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
    ParallelFor(threads, count, 1, [&](int64_t t) {
      float* gradients = op.gradients.first.As<float>() + tables.start[t];
      for (int64_t b = 0; b < op.batch; ++b) {
        float* to = gradients + ids[b * count + t] * op.width;
        add(to, op.dy.As<float>() + (b * count + t) * op.width, to, op.width);
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

// A thread has a hash table, with at least twice as many slots as there are samples, and for each
// sample the next one with its row.
absl::StatusOr<Kernel> CpuDevice::Bind(const MergeRows& op) {
  const int64_t each = scratch::MergeRows(op.samples, 1) / static_cast<int64_t>(sizeof(int32_t));
  Kernel kernel;
  kernel.scratch_bytes = scratch::MergeRows(op.samples, threads_);
  kernel.launch = [add = vectors_.f32.add, threads = threads_, op, each](Stream& stream) {
    ParallelFor(threads, op.count, 1, [&](int64_t t) {
      int32_t* const scratch = static_cast<int32_t*>(stream.scratch) + omp_get_thread_num() * each;
      const RowsOfTable rows(op, t, scratch);
      for (int64_t s = 0; s < op.samples; ++s) rows.MergeInto(s, add);
    });
  };
  return kernel;
}

}  // namespace trainyard::kernels
