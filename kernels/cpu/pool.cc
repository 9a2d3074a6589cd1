#include "kernels/ops/pool.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const MaxPoolForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).max_pool, threads = threads_, op](Stream&) {
      const PoolShape& s = op.shape;
      const int64_t rows = s.out_height();
      const int64_t image_in = s.height * s.width * s.channels;
      const int64_t image_out = rows * s.out_width() * s.channels;
      const int64_t grain = GrainOf(s.width * s.channels * s.window);
      ParallelFor(threads, s.batch * rows, grain, [&](int64_t i) {
        run({.x = op.x.As<T>() + i / rows * image_in,
             .y = op.y.As<T>() + i / rows * image_out,
             .index = op.index.As<uint8_t>() + i / rows * image_out,
             .row = i % rows,
             .height = s.height,
             .width = s.width,
             .channels = s.channels,
             .window = s.window,
             .stride = s.stride,
             .pad = s.pad,
             .out_width = s.out_width()});
      });
    }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const MaxPoolBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).max_pool_backward, threads = threads_, op](Stream&) {
      const PoolShape& s = op.shape;
      const int64_t image_in = s.height * s.width * s.channels;
      const int64_t image_out = s.out_height() * s.out_width() * s.channels;
      ParallelFor(threads, s.batch * s.height, GrainOf(s.width * s.channels), [&](int64_t i) {
        const int64_t image = i / s.height;
        run({.dy = op.dy.As<T>() + image * image_out,
             .index = op.index.As<uint8_t>() + image * image_out,
             .dx = op.dx.As<T>() + image * image_in,
             .row = i % s.height,
             .out_height = s.out_height(),
             .width = s.width,
             .channels = s.channels,
             .window = s.window,
             .stride = s.stride,
             .pad = s.pad,
             .out_width = s.out_width()});
      });
    }};
  });
}

}  // namespace trainyard::kernels
