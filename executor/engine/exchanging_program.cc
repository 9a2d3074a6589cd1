#include "executor/engine/exchanging_program.h"

namespace trainyard::engine {

kernels::Kernels WithStarts(const kernels::Kernels& micro,
                            const std::vector<plan::ReadyBucket>& order,
                            const std::function<void(size_t bucket, kernels::Stream&)>& start) {
  kernels::Kernels all;
  auto next = order.begin();
  const auto start_until = [&](int64_t done) {
    for (; next != order.end() && next->after_op < done; ++next) {
      all.push_back({.launch = [start, bucket = next->bucket](kernels::Stream& stream) {
        start(bucket, stream);
      }});
    }
  };
  for (size_t i = 0; i < micro.size(); ++i) {
    start_until(static_cast<int64_t>(i));
    all.push_back(micro[i]);
  }
  start_until(static_cast<int64_t>(micro.size()));
  return all;
}

}  // namespace trainyard::engine
