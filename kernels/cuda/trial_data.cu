#include "kernels/cuda/trial_data.h"

#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// The finalizer of SplitMix64 (Steele et al. 2014).
__device__ uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// In [-1, 1).
__device__ float Draw(uint64_t seed, int64_t i) {
  const uint64_t bits = Mix((seed << 56) + static_cast<uint64_t>(i) + 1);
  return static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31f;
}

struct Drawn {
  int64_t rows, cols, step, terms;
  bool terms_in_rows;
  bool cancels;   // terms of the second half are those of the first
  bool negative;  // and have the other sign
  uint64_t seed;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) OperandKernel(T* x, Drawn of, float scale) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= of.rows * of.cols) return;
  const int64_t row = i / of.cols, col = i % of.cols;
  const int64_t term = of.terms_in_rows ? row : col, other = of.terms_in_rows ? col : row;
  const int64_t half = of.terms / 2;
  float sign = 1;
  int64_t drawn = term;
  if (of.cancels && term >= half) {
    drawn = term - half;
    sign = term == 2 * half ? 0 : of.negative ? -1 : 1;  // an odd one out has no partner
  }
  x[row * of.step + col] = FromFloat<T>(sign * scale * Draw(of.seed, other * of.terms + drawn));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) TrialDataKernel(T* x, int64_t n, float scale) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < n) x[i] = FromFloat<T>(scale * Draw(0, i));
}

template <typename T>
__device__ uint64_t BitsOf(T value) {
  static_assert(sizeof(T) <= sizeof(uint32_t));
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}

// Each thread takes elements of its own and each block writes one part: integers, whose sum does
// not depend on the order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DigestKernel(const T* c, int64_t rows, int64_t cols, int64_t step, uint64_t* parts) {
  const int64_t n = rows * cols;
  uint64_t sum = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n;
       i += gridDim.x * int64_t{kThreads}) {
    const T value = c[i / cols * step + i % cols];
    sum += Mix((static_cast<uint64_t>(i) << 32) + BitsOf(value));
  }
  sum = BlockSum<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

}  // namespace

void LaunchTrialOperands(Stream& stream, const TrialOperand& a, const TrialOperand& b, float scale,
                         bool cancel) {
  for (const TrialOperand* operand : {&a, &b}) {
    const Drawn of = {.rows = operand->rows,
                      .cols = operand->cols,
                      .step = operand->step,
                      .terms = operand->terms(),
                      .terms_in_rows = operand->terms_in_rows,
                      .cancels = cancel,
                      .negative = operand == &b,
                      .seed = operand == &b ? 2u : 1u};
    ForElement(operand->x.dtype, [&]<typename T>() {
      Launch(stream, ThreadForEach(of.rows * of.cols), OperandKernel<T>, operand->x.As<T>(), of,
             scale);
    });
  }
}

void LaunchTrialData(Stream& stream, const Buffer& x, int64_t n, float scale) {
  ForElement(x.dtype, [&]<typename T>() {
    Launch(stream, ThreadForEach(n), TrialDataKernel<T>, x.As<T>(), n, scale);
  });
}

int64_t LaunchDigest(Stream& stream, const Buffer& c, int64_t rows, int64_t cols, int64_t step,
                     uint64_t* parts) {
  const int64_t count = std::min(kMostDigestParts, CeilDiv(rows * cols, kThreads));
  ForElement(c.dtype, [&]<typename T>() {
    Launch(stream, {.grid = Blocks(count)}, DigestKernel<T>, static_cast<const T*>(c.As<T>()), rows,
           cols, step, parts);
  });
  return count;
}

}  // namespace trainyard::kernels::cuda
