#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

template <typename Op>
absl::Status CheckShape(const char* name, const Op& op) {
  absl::Status ok = CheckSizes(name, {{"batch", op.batch},
                                      {"height", op.height},
                                      {"width", op.width},
                                      {"channels", op.channels},
                                      {"window", op.window}});
  if (!ok.ok()) return ok;
  // The place within a window is a byte.
  if (op.window > 15) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": window is ", op.window, "; at most 15"));
  }
  return CheckSizes(
      name, {{"height / window", op.height / op.window}, {"width / window", op.width / op.window}});
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const MaxPoolForward& op) {
  absl::Status ok =
      CheckOperands("max_pool", {{"x", op.x}, {"y", op.y}, {"index", op.index, DType::kU8}});
  if (ok.ok()) ok = CheckShape("max_pool", op);
  if (!ok.ok()) return ok;
  return Kernel{[run = vectors_.max_pool, threads = threads_, op](Stream&) {
    const int64_t rows = op.height / op.window;
    const int64_t in_row = op.width * op.channels;
    const int64_t out_row = op.width / op.window * op.channels;
    const int64_t grain = std::max<int64_t>(1, kSerialElements / (in_row * op.window));
    ParallelRuns(threads, op.batch * rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = i / rows * op.height + i % rows * op.window;
        run({.x = op.x.As<float>() + from * in_row,
             .y = op.y.As<float>() + i * out_row,
             .index = op.index.As<uint8_t>() + i * out_row,
             .rows = 1,
             .width = op.width,
             .channels = op.channels,
             .window = op.window});
      }
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const MaxPoolBackward& op) {
  absl::Status ok = CheckOperands("max_pool backward",
                                  {{"dy", op.dy}, {"index", op.index, DType::kU8}, {"dx", op.dx}});
  if (ok.ok()) ok = CheckShape("max_pool backward", op);
  if (!ok.ok()) return ok;
  return Kernel{[run = vectors_.max_pool_backward, threads = threads_, op](Stream&) {
    const int64_t rows = op.height / op.window;
    const int64_t in_row = op.width * op.channels;
    const int64_t out_row = op.width / op.window * op.channels;
    const bool uncovered = op.width % op.window != 0;
    ParallelRuns(threads, op.batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) {
        float* dx = op.dx.As<float>() + image * op.height * in_row;
        const int64_t covered_rows = uncovered ? 0 : rows * op.window;
        std::memset(dx + covered_rows * in_row, 0,
                    sizeof(float) * (op.height - covered_rows) * in_row);
        run({.dy = op.dy.As<float>() + image * rows * out_row,
             .index = op.index.As<uint8_t>() + image * rows * out_row,
             .dx = dx,
             .rows = rows,
             .width = op.width,
             .channels = op.channels,
             .window = op.window});
      }
    });
  }};
}

}  // namespace trainyard::kernels
