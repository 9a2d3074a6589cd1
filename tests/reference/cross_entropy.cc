#include "tests/reference/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace trainyard::reference {

CrossEntropyResult CrossEntropy(const Vec& logits, const std::vector<int32_t>& targets,
                                int64_t classes, double scale, double smoothing, double z_loss) {
  const int64_t rows = static_cast<int64_t>(targets.size());
  CrossEntropyResult out{Vec(rows, 0.0), Vec(rows, 0.0), Vec(rows * classes, 0.0), Vec(rows, 0.0)};
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[r] < 0) continue;
    const auto first = logits.begin() + r * classes, last = first + classes;
    const auto largest = std::max_element(first, last);
    double sum = 0;
    for (auto x = first; x != last; ++x) sum += std::exp(*x - *largest);
    const double lse = *largest + std::log(sum);
    out.z_losses[r] = z_loss * lse * lse;
    out.losses[r] = out.z_losses[r];
    out.correct[r] = largest - first == targets[r] ? 1 : 0;
    for (int64_t c = 0; c < classes; ++c) {
      const double t = (c == targets[r] ? 1 - smoothing : 0) + smoothing / classes;
      const double softmax = std::exp(first[c] - lse);
      out.losses[r] += t * (lse - first[c]);
      out.dlogits[r * classes + c] = scale * (softmax * (1 + 2 * z_loss * lse) - t);
    }
  }
  return out;
}

}  // namespace trainyard::reference
