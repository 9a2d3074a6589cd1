#include "tests/reference/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace trainyard::reference {

CrossEntropyResult CrossEntropy(const Vec& logits, const std::vector<int32_t>& targets,
                                int64_t classes, double scale) {
  const int64_t rows = static_cast<int64_t>(targets.size());
  CrossEntropyResult out{Vec(rows, 0.0), Vec(rows, 0.0), Vec(rows * classes, 0.0)};
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[r] < 0) continue;
    const auto first = logits.begin() + r * classes, last = first + classes;
    const auto largest = std::max_element(first, last);
    double sum = 0;
    for (auto x = first; x != last; ++x) sum += std::exp(*x - *largest);
    out.losses[r] = *largest + std::log(sum) - first[targets[r]];
    out.correct[r] = largest - first == targets[r] ? 1 : 0;
    for (int64_t c = 0; c < classes; ++c) {
      out.dlogits[r * classes + c] =
          scale * (std::exp(first[c] - *largest) / sum - (c == targets[r] ? 1 : 0));
    }
  }
  return out;
}

}  // namespace trainyard::reference
