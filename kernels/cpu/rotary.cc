#include "kernels/ops/rotary.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
// cos and sin of every angle, each [time, head_dim / 2].
struct RotaryTable {
  explicit RotaryTable(const Rotary& op) {
    const int64_t half = op.head_dim / 2;
    cos.reserve(op.time * half);
    sin.reserve(op.time * half);
    for (int64_t t = 0; t < op.time; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double turn =
            std::pow(static_cast<double>(op.theta),
                     -2.0 * static_cast<double>(i) / static_cast<double>(op.head_dim));
        const double angle = static_cast<double>(t) * turn;
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  int64_t bytes() const { return static_cast<int64_t>((cos.size() + sin.size()) * sizeof(float)); }

  std::vector<float> cos, sin;
};

std::shared_ptr<const RotaryTable> CpuDevice::RotaryTableOf(const Rotary& op) {
  std::weak_ptr<const RotaryTable>& known = rotary_tables_[{op.theta, op.time, op.head_dim}];
  std::shared_ptr<const RotaryTable> table = known.lock();
  if (table == nullptr) known = table = std::make_shared<const RotaryTable>(op);
  return table;
}

int64_t CpuDevice::table_bytes() const {
  int64_t bytes = 0;
  for (const auto& [angles, known] : rotary_tables_) {
    if (const auto table = known.lock()) bytes += table->bytes();
  }
  return bytes;
}

absl::StatusOr<Kernel> CpuDevice::Bind(const Rotary& op) {
  const auto table = RotaryTableOf(op);
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).rotate, threads = threads_, op, table](Stream&) {
      const float turn = op.inverse ? -1 : 1;
      const int64_t half = op.head_dim / 2, row = op.heads * op.head_dim;
      ParallelFor(threads, op.batch * op.time, GrainOf(row), [&](int64_t r) {
        const T* x = op.x.As<T>() + r * row;
        T* y = op.y.As<T>() + r * row;
        const int64_t at = r % op.time * half;
        for (int64_t h = 0; h < op.rotated; ++h) {
          run(x + h * op.head_dim, table->cos.data() + at, table->sin.data() + at, turn,
              y + h * op.head_dim, half);
        }
        if (x != y) std::copy(x + op.rotated * op.head_dim, x + row, y + op.rotated * op.head_dim);
      });
    }};
  });
}

}  // namespace trainyard::kernels
