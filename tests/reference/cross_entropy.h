#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

struct CrossEntropyResult {
  Vec losses, correct, dlogits, z_losses;
};
CrossEntropyResult CrossEntropy(const Vec& logits, const std::vector<int32_t>& targets,
                                int64_t classes, double scale, double smoothing = 0,
                                double z_loss = 0);

}  // namespace trainyard::reference
