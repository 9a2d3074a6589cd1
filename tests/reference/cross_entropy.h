#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

struct CrossEntropyResult {
  Vec losses, correct;
  Vec dlogits;  // (softmax - onehot) * scale
};
CrossEntropyResult CrossEntropy(const Vec& logits, const std::vector<int32_t>& targets,
                                int64_t classes, double scale);

}  // namespace trainyard::reference
