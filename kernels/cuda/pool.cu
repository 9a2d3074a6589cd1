#include "kernels/ops/pool.h"

#include <cmath>
#include <type_traits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// PoolShape with what follows from it.
struct Pooling {
  int64_t height, width, out_height, out_width, channels, window, stride, pad;
};

// The first channel of a pack, and the pixel that it belongs to, in images of [height, width].
struct PixelPlace {
  int64_t image, row, col, channel;
};
template <int kCount>
__device__ PixelPlace PlaceOf(int64_t pack, int64_t height, int64_t width, int64_t channels) {
  const RowAndCol pixel = RowAndColOf(pack, channels / kCount);
  const RowAndCol line = RowAndColOf(pixel.row, width);
  const RowAndCol image = RowAndColOf(line.row, height);
  return {image.row, image.col, line.col, pixel.col * kCount};
}

// What a pack of channels has in `index`: a byte each, the first one lowest.
template <int kCount>
using PackedPlaces =
    std::conditional_t<kCount == 8, uint64_t, std::conditional_t<kCount == 4, uint32_t, uint8_t>>;

// A thread per pack of channels of y.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    MaxPoolKernel(const T* x, T* y, uint8_t* index, Pooling s, int64_t packs) {
  const int64_t pack = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pack >= packs) return;
  const PixelPlace at = PlaceOf<kCount>(pack, s.out_height, s.out_width, s.channels);
  const int64_t first_h = at.row * s.stride - s.pad, first_w = at.col * s.stride - s.pad;
  const T* const image = x + at.image * s.height * s.width * s.channels + at.channel;
  float best[kCount];
  PackedPlaces<kCount> places = 0;
#pragma unroll
  for (int c = 0; c < kCount; ++c) best[c] = -INFINITY;
  bool none = true;
  for (int i = 0; i < s.window; ++i) {
    for (int j = 0; j < s.window; ++j) {
      const int64_t h = first_h + i, w = first_w + j;
      if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
      Pack<T, kCount> read;
      read.Load(image + (h * s.width + w) * s.channels);
      const auto place = static_cast<PackedPlaces<kCount>>(i * s.window + j);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        // NaN is taken and stays, as in PyTorch.
        if (!none && !(read[c] > best[c]) && !isnan(read[c])) continue;
        best[c] = read[c];
        places &= ~(PackedPlaces<kCount>{255} << 8 * c);
        places |= place << 8 * c;
      }
      none = false;
    }
  }
  Pack<T, kCount> found;
  found.Set(best);
  found.Store(y + pack * kCount);
  StoreWhole(index + pack * kCount, places);
}

// A thread per pack of channels of dx gathers from the windows that cover it, in order.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    MaxPoolBackwardKernel(const T* dy, const uint8_t* index, T* dx, Pooling s, int64_t packs) {
  const int64_t pack = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pack >= packs) return;
  const PixelPlace at = PlaceOf<kCount>(pack, s.height, s.width, s.channels);
  const int64_t h = at.row + s.pad, w = at.col + s.pad;
  const int64_t first_oh = h < s.window ? 0 : (h - s.window) / s.stride + 1;
  const int64_t first_ow = w < s.window ? 0 : (w - s.window) / s.stride + 1;
  float gradient[kCount] = {};
  for (int64_t oh = first_oh; oh <= h / s.stride && oh < s.out_height; ++oh) {
    for (int64_t ow = first_ow; ow <= w / s.stride && ow < s.out_width; ++ow) {
      const int64_t from =
          ((at.image * s.out_height + oh) * s.out_width + ow) * s.channels + at.channel;
      const auto places = LoadWhole<PackedPlaces<kCount>>(index + from);
      Pack<T, kCount> read;
      read.Load(dy + from);
      const auto place = static_cast<uint8_t>((h - oh * s.stride) * s.window + w - ow * s.stride);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        if (static_cast<uint8_t>(places >> 8 * c) == place) gradient[c] += read[c];
      }
    }
  }
  Pack<T, kCount> written;
  written.Set(gradient);
  written.Store(dx + pack * kCount);
}

// launch.operator()<kCount>(), with packs where channels and places allow it.
template <typename T, typename F>
void WithChannels(const Buffer& x, const Buffer& y, const Buffer& index, int64_t channels,
                  const F& launch) {
  const bool by_packs = Aligned(kPackBytes, {x.data, y.data}) && Aligned(kPack<T>, {index.data});
  WithPack<T>(by_packs ? channels : 1, launch);
}

Pooling PoolingOf(const PoolShape& s) {
  return {.height = s.height,
          .width = s.width,
          .out_height = s.out_height(),
          .out_width = s.out_width(),
          .channels = s.channels,
          .window = s.window,
          .stride = s.stride,
          .pad = s.pad};
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const MaxPoolForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op, s = PoolingOf(op.shape)](Stream& stream) {
      WithChannels<T>(op.x, op.y, op.index, s.channels, [&]<int kCount>() {
        const int64_t packs = op.shape.batch * s.out_height * s.out_width * s.channels / kCount;
        Launch(stream, ThreadForEach(packs), MaxPoolKernel<T, kCount>, op.x.As<T>(), op.y.As<T>(),
               op.index.As<uint8_t>(), s, packs);
      });
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const MaxPoolBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Kernel{.launch = [op, s = PoolingOf(op.shape)](Stream& stream) {
      WithChannels<T>(op.dx, op.dy, op.index, s.channels, [&]<int kCount>() {
        const int64_t packs = op.shape.batch * s.height * s.width * s.channels / kCount;
        Launch(stream, ThreadForEach(packs), MaxPoolBackwardKernel<T, kCount>, op.dy.As<T>(),
               op.index.As<uint8_t>(), op.dx.As<T>(), s, packs);
      });
    }};
  });
}

}  // namespace trainyard::kernels::cuda
