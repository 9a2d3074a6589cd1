#include "kernels/ops/normalize_images.h"

#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kBytes = NormalizeImages::kBytes;
constexpr int kMostChannels = static_cast<int>(NormalizeImages::kMostChannels);
// Enough to fill any GPU; more would only load the table more often.
constexpr int64_t kMostImageBlocks = 1024;

// The value of each byte of each channel, computed on the host: 3 of the 4 KiB that arguments may
// take.
struct Table {
  static constexpr int kWords = kBytes / 4;  // of a channel
  float4 of[kMostChannels * kWords];
};

// Elements that are written at once.
template <typename T>
struct alignas(16) Piece {
  static constexpr int kElements = 16 / sizeof(T);
  T of[kElements];
};

// The word of x that holds the bytes of a piece.
template <int kElements>
struct WordOf {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint64_t;
};

// A thread reads 16 bytes a round, in as many pieces as it writes, so that neighbouring threads
// read and write neighbouring memory.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    NormalizeImagesKernel(const uint8_t* x, T* y, int64_t n, int channels, Table table) {
  constexpr int kElements = Piece<T>::kElements, kPieces = 16 / kElements;
  using Word = typename WordOf<kElements>::Type;
  __shared__ float4 words[kMostChannels * Table::kWords];
  for (int i = threadIdx.x; i < channels * Table::kWords; i += kThreads) words[i] = table.of[i];
  __syncthreads();
  const float* const value = reinterpret_cast<const float*>(words);

  const int64_t pieces = n / kElements, stride = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int step = static_cast<int>(stride * kElements % channels);
  // The channel that a piece begins with.
  int start = static_cast<int>(first * kElements % channels);
  for (int64_t piece = first; piece < pieces; piece += kPieces * stride) {
    Word in[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int64_t at = piece + j * stride;
      in[j] = at < pieces ? reinterpret_cast<const Word*>(x)[at] : 0;
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int64_t at = piece + j * stride;
      Piece<T> out;
      int c = start;
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        out.of[k] = FromFloat<T>(value[c * kBytes + static_cast<int>(in[j] >> 8 * k & 255)]);
        c = c + 1 == channels ? 0 : c + 1;
      }
      if (at < pieces) reinterpret_cast<Piece<T>*>(y)[at] = out;
      start += step;
      start -= start >= channels ? channels : 0;
    }
  }
  const int64_t last = pieces * kElements + first;  // less than a piece is left
  if (last < n) y[last] = FromFloat<T>(value[last % channels * kBytes + x[last]]);
}

// How images are cropped.
struct Cropped {
  const int32_t* places;  // [images, 3]
  int height, width;
};

// A thread takes a piece of the result at a time and gathers its bytes.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    CropImagesKernel(const uint8_t* x, Cropped crop, T* y, int64_t n, int channels, Table table) {
  constexpr int kElements = Piece<T>::kElements;
  __shared__ float4 words[kMostChannels * Table::kWords];
  for (int i = threadIdx.x; i < channels * Table::kWords; i += kThreads) words[i] = table.of[i];
  __syncthreads();
  const float* const value = reinterpret_cast<const float*>(words);

  const int64_t of_row = int64_t{crop.width} * channels, of_image = of_row * crop.height;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t piece = int64_t{blockIdx.x} * kThreads + threadIdx.x; piece * kElements < n;
       piece += stride) {
    const int64_t first = piece * kElements;
    const RowAndCol image = RowAndColOf(first, of_image), row = RowAndColOf(image.col, of_row);
    int64_t number = image.row;
    int r = static_cast<int>(row.row), col = static_cast<int>(row.col / channels);
    int channel = static_cast<int>(row.col % channels);
    int byte[kElements];
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      byte[k] = 0;
      if (first + k >= n) continue;
      const int32_t* const place = crop.places + number * NormalizeImages::kPlace;
      // Unsigned, so that every place is valid: a coordinate that wraps around lies outside.
      const auto from_row = static_cast<unsigned>(r) + static_cast<unsigned>(place[0]);
      const auto from_col = static_cast<unsigned>(place[2] != 0 ? crop.width - 1 - col : col) +
                            static_cast<unsigned>(place[1]);
      if (from_row < static_cast<unsigned>(crop.height) &&
          from_col < static_cast<unsigned>(crop.width)) {
        byte[k] = x[number * of_image + from_row * of_row + from_col * channels + channel];
      }
      byte[k] += channel * kBytes;
      if (++channel < channels) continue;
      channel = 0;
      if (++col < crop.width) continue;
      col = 0;
      if (++r < crop.height) continue;
      r = 0;
      ++number;
    }
    Piece<T> out;
#pragma unroll
    for (int k = 0; k < kElements; ++k) out.of[k] = FromFloat<T>(value[byte[k]]);
    if (first + kElements <= n) {
      reinterpret_cast<Piece<T>*>(y)[piece] = out;
    } else {
      for (int64_t k = first; k < n; ++k) y[k] = out.of[k - first];
    }
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const NormalizeImages& op) {
  Table table = {};
  for (int64_t c = 0; c < op.channels; ++c) {
    for (int v = 0; v < kBytes; v += 4) {
      table.of[c * Table::kWords + v / 4] = {op.ValueOf(c, v), op.ValueOf(c, v + 1),
                                             op.ValueOf(c, v + 2), op.ValueOf(c, v + 3)};
    }
  }
  return ForElement(op.y.dtype, [&]<typename T>() {
    const int64_t n = op.pixels * op.channels;
    const int64_t blocks = std::min(kMostImageBlocks, CeilDiv(n, int64_t{kThreads} * 16));
    if (op.places) {
      const Cropped crop = {.places = op.places.As<int32_t>(),
                            .height = static_cast<int>(op.height),
                            .width = static_cast<int>(op.width)};
      return Kernel{.launch = [=, x = op.x.As<uint8_t>(), y = op.y.As<T>(),
                               channels = static_cast<int>(op.channels)](Stream& stream) {
        Launch(stream, {.grid = Blocks(blocks)}, CropImagesKernel<T>, x, crop, y, n, channels,
               table);
      }};
    }
    return Kernel{.launch = [=, x = op.x.As<uint8_t>(), y = op.y.As<T>(),
                             channels = static_cast<int>(op.channels)](Stream& stream) {
      Launch(stream, {.grid = Blocks(blocks)}, NormalizeImagesKernel<T>, x, y, n, channels, table);
    }};
  });
}

}  // namespace trainyard::kernels::cuda
