#include "kernels/cuda/agreement.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/runtime.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int64_t kMostAtAnEnd = int64_t{1} << 19;

float OfBits(DType type, const char* at) {
  if (type == DType::kF32) {
    float x;
    std::memcpy(&x, at, sizeof(x));
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  if (type == DType::kBF16) {
    const uint32_t upper = uint32_t{bits} << 16;
    float x;
    std::memcpy(&x, &upper, sizeof(x));
    return x;
  }
  const int exponent = bits >> 10 & 31, significand = bits & 1023;
  const float size = exponent == 31 ? std::numeric_limits<float>::quiet_NaN()
                     : exponent == 0
                         ? std::ldexp(static_cast<float>(significand), -24)
                         : std::ldexp(static_cast<float>(significand + 1024), exponent - 25);
  return bits >> 15 != 0 ? -size : size;
}

void ReadPart(Stream& stream, const Buffer& x, int64_t first, int64_t n, std::vector<float>& to) {
  const auto size = SizeOf(x.dtype);
  std::vector<char> bytes(static_cast<size_t>(n * size));
  const cudaStream_t on = CudaStream::From(stream).handle();
  cudaError_t error = cudaMemcpyAsync(bytes.data(), static_cast<char*>(x.data) + first * size,
                                      bytes.size(), cudaMemcpyDeviceToHost, on);
  if (error == cudaSuccess) error = cudaStreamSynchronize(on);
  for (int64_t i = 0; i < n; ++i) {
    to.push_back(error == cudaSuccess ? OfBits(x.dtype, bytes.data() + i * size)
                                      : std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace

std::vector<std::vector<float>> Read(Stream& stream, const std::vector<Computed>& results) {
  std::vector<std::vector<float>> numbers;
  for (const Computed& result : results) {
    std::vector<float>& of = numbers.emplace_back();
    const int64_t begin = std::min(result.n, kMostAtAnEnd);
    const int64_t end = std::min(result.n - begin, kMostAtAnEnd);
    ReadPart(stream, result.x, 0, begin, of);
    ReadPart(stream, result.x, result.n - end, end, of);
  }
  return numbers;
}

double Distance(const std::vector<std::vector<float>>& a,
                const std::vector<std::vector<float>>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    double apart = 0, size = 0;
    for (size_t j = 0; j < a[i].size(); ++j) {
      const double x = a[i][j], y = b[i][j];
      if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
      apart += (x - y) * (x - y);
      size += y * y;
    }
    largest = std::max(largest, apart == 0 ? 0 : std::sqrt(apart / size));
  }
  return largest;
}

}  // namespace trainyard::kernels::cuda
