#include "kernels/ops/rotary.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

// cos and sin of every angle, each [time, head_dim / 2].
struct Angles {
  explicit Angles(const Rotary& op) {
    const int64_t half = op.head_dim / 2;
    for (int64_t t = 0; t < op.time; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double turn =
            std::pow(static_cast<double>(op.theta),
                     -2.0 * static_cast<double>(i) / static_cast<double>(op.head_dim));
        const double angle = (op.inverse ? -1.0 : 1.0) * static_cast<double>(t) * turn;
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  std::vector<float> cos, sin;
};

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const Rotary& op) {
  const DType type = op.x.dtype;
  absl::Status ok = CheckOperands("rotary", {{"x", op.x, type}, {"y", op.y, type}});
  if (ok.ok()) {
    ok = CheckSizes("rotary", {{"batch", op.batch},
                               {"time", op.time},
                               {"heads", op.heads},
                               {"rotated", op.rotated},
                               {"head_dim", op.head_dim}});
  }
  if (ok.ok() && (op.head_dim % 2 != 0 || op.rotated > op.heads)) {
    ok = absl::InvalidArgumentError(absl::StrCat("rotary: head_dim ", op.head_dim, ", ", op.rotated,
                                                 " of ", op.heads, " heads"));
  }
  if (!ok.ok()) return ok;
  // Shared by the copies of the launch.
  const auto angles = std::make_shared<const Angles>(op);
  return ForElement("rotary", type, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).rotate, threads = threads_, op, angles](Stream&) {
      const int64_t half = op.head_dim / 2, row = op.heads * op.head_dim;
      const int64_t grain = std::max<int64_t>(1, kSerialElements / row);
      ParallelRuns(threads, op.batch * op.time, grain, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* x = op.x.As<T>() + r * row;
          T* y = op.y.As<T>() + r * row;
          const int64_t at = r % op.time * half;
          for (int64_t h = 0; h < op.rotated; ++h) {
            run(x + h * op.head_dim, angles->cos.data() + at, angles->sin.data() + at,
                y + h * op.head_dim, half);
          }
          if (x != y)
            std::copy(x + op.rotated * op.head_dim, x + row, y + op.rotated * op.head_dim);
        }
      });
    }};
  });
}

}  // namespace trainyard::kernels
