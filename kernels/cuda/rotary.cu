#include "kernels/ops/rotary.h"

#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kMostPairs = 512;  // of a block
constexpr int kAtOnce = 2;       // packs of pairs that a thread loads at once

// x, y: [batch, time, heads, head_dim]; the first `moved` heads are written.
template <typename T>
struct RotaryArguments {
  const T* x;
  T* y;
  int64_t batch, time, heads, rotated, moved, half;
  int64_t batch_each;  // samples of a block
  int tiles;           // of kMostPairs pairs
  double theta, sign;
};

// A block per position, tile of pairs and batch_each samples. It computes the angles once for all
// heads of these, in double precision because positions reach millions of turns. A thread writes
// what it alone read.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads) RotaryKernel(RotaryArguments<T> a) {
  __shared__ float sines[kMostPairs], cosines[kMostPairs];
  const int64_t tile = blockIdx.x % a.tiles, place = blockIdx.x / a.tiles;
  const int64_t t = place % a.time, first_sample = place / a.time * a.batch_each;
  const int64_t first_pair = tile * kMostPairs;
  const int pairs = static_cast<int>(min(int64_t{kMostPairs}, a.half - first_pair));
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const double turn = pow(a.theta, -static_cast<double>(first_pair + i) / a.half);
    double sine, cosine;
    sincos(a.sign * static_cast<double>(t) * turn, &sine, &cosine);
    sines[i] = static_cast<float>(sine);
    cosines[i] = static_cast<float>(cosine);
  }
  __syncthreads();

  const int64_t samples = min(a.batch_each, a.batch - first_sample);
  const int packs = pairs / kPackSize, moved = static_cast<int>(a.moved);
  const int all = static_cast<int>(samples) * moved * packs;
  for (int first = threadIdx.x; first < all; first += kAtOnce * kThreads) {
    Pack<T, kPackSize> low[kAtOnce], high[kAtOnce];
    int64_t at[kAtOnce];
    int pair[kAtOnce];
    bool turns[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int item = min(first + k * kThreads, all - 1);  // a valid place also past the end
      const int row = item / packs, sample = row / moved, head = row - sample * moved;
      pair[k] = (item - row * packs) * kPackSize;
      turns[k] = head < a.rotated;
      at[k] = (((first_sample + sample) * a.time + t) * a.heads + head) * (2 * a.half) +
              first_pair + pair[k];
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * kThreads >= all) break;
      low[k].Load(a.x + at[k]);
      high[k].Load(a.x + at[k] + a.half);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * kThreads >= all) break;
      float new_low[kPackSize], new_high[kPackSize];
#pragma unroll
      for (int j = 0; j < kPackSize; ++j) {
        const float l = low[k][j], h = high[k][j];
        const float s = sines[pair[k] + j], c = cosines[pair[k] + j];
        new_low[j] = turns[k] ? l * c - h * s : l;
        new_high[j] = turns[k] ? h * c + l * s : h;
      }
      low[k].Set(new_low);
      low[k].Store(a.y + at[k]);
      high[k].Set(new_high);
      high[k].Store(a.y + at[k] + a.half);
    }
  }
}

// Enough blocks for any GPU, where there are as many samples and positions.
constexpr int64_t kRotaryBlocks = 2048;

template <typename T>
void LaunchRotary(Stream& stream, const Rotary& op) {
  RotaryArguments<T> a = {.x = op.x.As<T>(),
                          .y = op.y.As<T>(),
                          .batch = op.batch,
                          .time = op.time,
                          .heads = op.heads,
                          .rotated = op.rotated,
                          .half = op.head_dim / 2,
                          .theta = static_cast<double>(op.theta),
                          .sign = op.inverse ? -1.0 : 1.0};
  a.moved = a.x == a.y ? op.rotated : op.heads;  // in place, the other heads are there already
  a.tiles = static_cast<int>(CeilDiv(a.half, kMostPairs));
  const int64_t groups = std::clamp<int64_t>(kRotaryBlocks / (a.time * a.tiles), 1, a.batch);
  a.batch_each = CeilDiv(a.batch, groups);
  const int64_t blocks = CeilDiv(a.batch, a.batch_each) * a.time * a.tiles;
  const bool by_packs = a.half % kPack<T> == 0 && Aligned(kPackBytes, {a.x, a.y});
  Launch(stream, {.grid = Blocks(blocks)},
         by_packs ? RotaryKernel<T, kPack<T>> : RotaryKernel<T, 1>, a);
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const Rotary& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) { LaunchRotary<T>(stream, op); }};
  });
}

}  // namespace trainyard::kernels::cuda
