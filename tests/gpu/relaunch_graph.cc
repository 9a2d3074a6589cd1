#include <memory>
#include <type_traits>

#include "kernels/cuda/runtime.h"
#include "tests/gpu/relaunch.h"

namespace trainyard::kernels {
namespace {

struct GraphDelete {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};

}  // namespace

absl::Status Relaunch(Kernel& kernel, Stream& stream) {
  const cudaStream_t on = cuda::CudaStream::From(stream).handle();
  // Strict: an allocation or a wait inside the launch breaks the capture.
  cudaError_t error = cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal);
  if (error != cudaSuccess) return cuda::ToStatus(error, "begin of the capture");
  kernel.launch(stream);
  cudaGraph_t captured = nullptr;
  error = cudaStreamEndCapture(on, &captured);
  if (error != cudaSuccess) return cuda::ToStatus(error, "end of the capture");
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphDelete> graph(captured);
  cudaGraphExec_t made = nullptr;
  error = cudaGraphInstantiate(&made, graph.get(), 0);
  if (error != cudaSuccess) return cuda::ToStatus(error, "instantiation of the graph");
  const std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphDelete> ready(made);
  error = cudaGraphLaunch(ready.get(), on);
  // The graph must outlive its run.
  if (error == cudaSuccess) error = cudaStreamSynchronize(on);
  return cuda::ToStatus(error, "replay of the graph");
}

}  // namespace trainyard::kernels
