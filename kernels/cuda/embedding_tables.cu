#include "kernels/ops/embedding_tables.h"

#include <climits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/id_chunks.cuh"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

// A thread per element of y.
__global__ void __launch_bounds__(kThreads)
    EmbeddingTablesKernel(const int32_t* ids, const float* weights, float* y, TableList tables,
                          int64_t places, int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= places * width) return;
  const int64_t place = i / width, t = place % tables.count;
  const int32_t id = ids[place];
  if (id < 0 || id >= tables.rows[t]) __trap();  // the loader checked: an error of ours
  y[i] = weights[tables.start[t] + id * width + i % width];
}

// sorted: [count, chunks, kChunkPlaces]; a block per chunk of the samples of a table.
__global__ void __launch_bounds__(kChunkPlaces)
    SortTablesKernel(const int32_t* ids, uint64_t* sorted, int64_t samples, int64_t count,
                     int64_t chunks) {
  const int64_t t = blockIdx.x / chunks;
  const int64_t s = blockIdx.x % chunks * kChunkPlaces + threadIdx.x;
  uint64_t key = kNoPlace;
  if (s < samples) {
    const int32_t id = ids[s * count + t];
    if (id < 0) __trap();
    key = static_cast<uint64_t>(id) << 32 | threadIdx.x;
  }
  SortChunk(key, sorted + int64_t{blockIdx.x} * kChunkPlaces);
}

struct RowSums {
  int32_t* ids;            // [samples, count]
  float* grad;             // [samples, count, width]
  const uint64_t* sorted;  // [count, chunks, kChunkPlaces]
  int64_t samples, count, chunks, width;
  int64_t of_rank;  // samples of a logical rank
};

// What a thread adds up of one element of a row: the parts of a logical rank in order, the sums of
// several by the tree that MergeRows describes. Those that wait for a sibling are a stack. The
// heights at which two neighbours in it are folded fall towards its top.
class FoldedSum {
 public:
  __device__ FoldedSum(float first, int rank) : rank_(rank) { sums_[0] = first; }

  __device__ void Add(float part, int rank) {
    if (rank == rank_) {
      sums_[top_] += part;
      return;
    }
    const unsigned height = 1u << (32 - __clz(rank ^ rank_));
    while ((heights_ & (height - 1)) != 0) Fold();
    heights_ |= height;
    sums_[++top_] = part;
    rank_ = rank;
  }
  __device__ float Total() {
    while (top_ > 0) Fold();
    return sums_[0];
  }

 private:
  static constexpr int kMost = 18;  // of 65,536 logical ranks: a sum, and one for each height

  __device__ void Fold() {
    heights_ &= heights_ - 1;
    sums_[top_ - 1] += sums_[top_];
    --top_;
  }

  float sums_[kMost];
  unsigned heights_ = 0;  // a bit for each, the lowest that of the two on top
  int top_ = 0;
  int rank_;  // of the sum on top
};

class SumInOrder {
 public:
  __device__ SumInOrder(float first, int) : sum_(first) {}
  __device__ void Add(float part, int) { sum_ += part; }
  __device__ float Total() const { return sum_; }

 private:
  float sum_;
};

// The logical rank of a sample; there are fewer than 2^31 of either.
__device__ int RankOf(int64_t sample, int64_t of_rank) {
  return static_cast<int>(static_cast<uint32_t>(sample) / static_cast<uint32_t>(of_rank));
}

// Whether no sample before `sample` looked up the row whose keys lie in [low, high).
__device__ bool IsFirstOfRow(const uint64_t* chunks, int64_t sample, uint64_t low, uint64_t high) {
  const int64_t own = sample / kChunkPlaces;
  for (int64_t k = 0; k < own; ++k) {
    const int at = LowerBound(chunks + k * kChunkPlaces, low);
    if (at < kChunkPlaces && chunks[k * kChunkPlaces + at] < high) return false;
  }
  const uint64_t* mine = chunks + own * kChunkPlaces;
  return static_cast<uint32_t>(mine[LowerBound(mine, low)]) == sample % kChunkPlaces;
}

// A warp per place. The warp of the first place of a row in a table adds up all places of the row,
// in order of the samples, or as `Sum` does. With kMerge the sum stays at the first place; the warp
// clears the other gradients, and the warps of the other places set their ids to -1. Otherwise the
// sum goes into the row of `gradients`.
template <bool kMerge, typename Sum>
__global__ void __launch_bounds__(kThreads)
    SumRowsKernel(RowSums a, float* gradients, TableList tables) {
  const int64_t place = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (place >= a.samples * a.count) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t sample = place / a.count, t = place % a.count;
  const int32_t id = a.ids[place];
  const uint64_t low = static_cast<uint64_t>(id) << 32, high = low + (uint64_t{1} << 32);
  const uint64_t* chunks = a.sorted + t * a.chunks * kChunkPlaces;
  if (!IsFirstOfRow(chunks, sample, low, high)) {
    if (kMerge) {
      __syncwarp();  // all lanes have read it
      if (lane == 0) a.ids[place] = -1;
    }
    return;
  }

  for (int64_t c = lane; c < a.width; c += kWarp) {
    float* const to =
        kMerge ? a.grad + place * a.width + c : gradients + tables.start[t] + id * a.width + c;
    Sum sum(*to, RankOf(sample, a.of_rank));
    for (int64_t k = sample / kChunkPlaces; k < a.chunks; ++k) {
      const uint64_t* chunk = chunks + k * kChunkPlaces;
      for (int i = LowerBound(chunk, low); i < kChunkPlaces && chunk[i] < high; ++i) {
        const int64_t its = k * kChunkPlaces + static_cast<uint32_t>(chunk[i]);
        const int64_t other = its * a.count + t;
        if (kMerge && other == place) continue;
        sum.Add(a.grad[other * a.width + c], RankOf(its, a.of_rank));
        if (kMerge) a.grad[other * a.width + c] = 0;
      }
    }
    *to = sum.Total();
  }
}

// A thread per element of dy.
__global__ void __launch_bounds__(kThreads)
    KeepRowsKernel(const float* dy, const int32_t* ids, float* kept_dy, int32_t* kept_ids,
                   const StepState* state, int64_t samples, int64_t places, int64_t count,
                   int64_t width) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= places * width) return;
  const int64_t first = state->first_sample % samples * count;
  kept_dy[first * width + i] = dy[i];
  if (i % width == 0) kept_ids[first + i / width] = ids[i / width];
}

int64_t ChunksOf(int64_t samples) { return CeilDiv(samples, kChunkPlaces); }

// Sorts the ids of each table into the scratch (SortedIdBytes), then sums the rows.
template <bool kMerge>
void LaunchRowSums(Stream& stream, const Buffer& ids, const Buffer& grad, int64_t samples,
                   int64_t count, int64_t width, float* gradients, const TableList& tables,
                   int64_t logical_ranks = 1) {
  const int64_t chunks = ChunksOf(samples);
  uint64_t* sorted = static_cast<uint64_t*>(stream.scratch);
  Launch(stream, {.grid = Blocks(count * chunks), .block = dim3(kChunkPlaces)}, SortTablesKernel,
         ids.As<int32_t>(), sorted, samples, count, chunks);
  const RowSums sums = {.ids = ids.As<int32_t>(),
                        .grad = grad.As<float>(),
                        .sorted = sorted,
                        .samples = samples,
                        .count = count,
                        .chunks = chunks,
                        .width = width,
                        .of_rank = samples / logical_ranks};
  auto* kernel = SumRowsKernel<kMerge, SumInOrder>;
  if constexpr (kMerge) {
    if (logical_ranks > 1) kernel = SumRowsKernel<kMerge, FoldedSum>;
  }
  Launch(stream, {.grid = Blocks(CeilDiv(samples * count, kThreads / kWarp))}, kernel, sums,
         gradients, tables);
}

absl::Status CheckLimits(int64_t samples, int64_t count, int64_t width) {
  if (samples * count * width <= INT_MAX) return absl::OkStatus();
  return absl::UnimplementedError("cuda embedding tables: more than 2^31 - 1 elements");
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingTablesForward& op) {
  absl::Status ok = CheckLimits(op.batch, op.tables.list.count, op.width);
  if (!ok.ok()) return ok;
  return Kernel{.launch = [op](Stream& stream) {
    const int64_t places = op.batch * op.tables.list.count;
    Launch(stream, ThreadForEach(places * op.width), EmbeddingTablesKernel, op.ids.As<int32_t>(),
           op.tables.first.As<float>(), op.y.As<float>(), op.tables.list, places, op.width);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingTablesBackward& op) {
  absl::Status ok = CheckLimits(op.batch, op.gradients.list.count, op.width);
  if (!ok.ok()) return ok;
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchRowSums<false>(stream, op.ids, op.dy, op.batch, op.gradients.list.count,
                                           op.width, op.gradients.first.As<float>(),
                                           op.gradients.list);
                    },
                .scratch_bytes = op.gradients.list.count * SortedIdBytes(op.batch)};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const KeepRows& op) {
  return Kernel{.launch = [op](Stream& stream) {
    const int64_t places = op.batch * op.count;
    Launch(stream, ThreadForEach(places * op.width), KeepRowsKernel, op.dy.As<float>(),
           op.ids.As<int32_t>(), op.kept_dy.As<float>(), op.kept_ids.As<int32_t>(),
           StepStateOf(op.state), op.samples, places, op.count, op.width);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const MergeRows& op) {
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchRowSums<true>(stream, op.ids, op.grad, op.samples, op.count, op.width,
                                          nullptr, TableList(), op.logical_ranks);
                    },
                .scratch_bytes = op.count * SortedIdBytes(op.samples)};
}

}  // namespace trainyard::kernels::cuda
