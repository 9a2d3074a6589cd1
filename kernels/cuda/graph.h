#pragma once

// Launches recorded once and run as one, many times.

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime.h"

namespace trainyard::kernels::cuda {

class Graph {
 public:
  // Records what `enqueue` puts on `stream`; nothing of it runs. `enqueue` only enqueues, and has
  // run before: libraries load their kernels at first use, which a recording refuses.
  static absl::StatusOr<std::shared_ptr<const Graph>> Record(CudaStream& stream,
                                                             const std::function<void()>& enqueue);

  void Launch(CudaStream& stream) const;

 private:
  struct Destroy {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Recorded = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Destroy>;
  using Ready = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy>;

  explicit Graph(Ready ready) : ready_(std::move(ready)) {}

  const Ready ready_;
};

}  // namespace trainyard::kernels::cuda
