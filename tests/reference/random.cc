#include "tests/reference/random.h"

#include <random>

namespace trainyard::reference {

Vec RandomVec(int64_t n, int seed, double scale) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, scale);
  Vec x(n);
  for (double& v : x) v = static_cast<float>(normal(engine));
  return x;
}

std::vector<int32_t> RandomIds(int64_t n, int32_t below, int seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int32_t> uniform(0, below - 1);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = uniform(engine);
  return ids;
}

}  // namespace trainyard::reference
