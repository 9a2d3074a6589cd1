#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/math.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// log(1 + e) for e in [0, 1], right to the last digits also where 1 + e rounds (Goldberg 1991,
// theorem 4). NaN stays NaN.
TRAINYARD_INLINE VecF LogOfOnePlus(VecF e) {
  const VecF u = 1.0f + e;
  return u == 1.0f ? e : LogOfPositive(u) * (e / (u - 1.0f));
}

void BinaryCrossEntropyOfRows(const BinaryCrossEntropyRows& r) {
  for (int64_t row = 0; row < r.rows; row += kLanes) {
    const int64_t n = r.rows - row < kLanes ? r.rows - row : kLanes;
    VecF click{};
    VecI counts{};
    for (int64_t i = 0; i < n; ++i) {
      click[i] = r.targets[row + i] > 0 ? 1.0f : 0.0f;
      counts[i] = r.targets[row + i] >= 0 ? -1 : 0;
    }
    const VecF x = LoadPart(r.logits + row, n);
    const VecF e = ExpOfNegative(-Abs(x));
    const VecF loss = (x > 0.0f ? x : VecF{}) - x * click + LogOfOnePlus(e);
    // A NaN logit gives a NaN loss.
    StorePart(r.losses + row, counts ? (x == x ? loss : x) : VecF{}, n);
    if (r.correct != nullptr) {
      const VecF guess = x > 0.0f ? Splat(1.0f) : VecF{};
      const VecF right = guess == click ? Splat(1.0f) : VecF{};
      StorePart(r.correct + row, counts ? right : VecF{}, n);
    }
    if (r.dlogits != nullptr) {
      StorePart(r.dlogits + row, counts ? (Sigmoid(x) - click) * r.scale : VecF{}, n);
    }
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
