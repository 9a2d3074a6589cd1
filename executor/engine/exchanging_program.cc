#include "executor/engine/exchanging_program.h"

#include <utility>

namespace trainyard::engine {

namespace {

// `kernel`, and then `call` with `bucket`.
kernels::Kernel Then(kernels::Kernel kernel, const OnBucket& call, size_t bucket) {
  kernel.launch = [launch = std::move(kernel.launch), call, bucket](kernels::Stream& stream) {
    launch(stream);
    call(bucket, stream);
  };
  return kernel;
}

}  // namespace

kernels::Kernels WithStarts(const kernels::Kernels& micro,
                            const std::vector<plan::ReadyBucket>& order, const OnBucket& start,
                            const OnBucket& await) {
  kernels::Kernels all = micro;
  for (const plan::ReadyBucket& ready : order) {
    all[ready.after_op] = Then(std::move(all[ready.after_op]), start, ready.bucket);
  }
  if (await == nullptr) return all;
  for (const plan::ReadyBucket& ready : order) {
    all[ready.free_after_op] = Then(std::move(all[ready.free_after_op]), await, ready.bucket);
  }
  return all;
}

}  // namespace trainyard::engine
