#include "kernels/cuda/graph.h"

namespace trainyard::kernels::cuda {

absl::StatusOr<std::shared_ptr<const Graph>> Graph::Record(CudaStream& stream,
                                                           const std::function<void()>& enqueue) {
  // The capture concerns this thread only: others may allocate meanwhile.
  cudaError_t error = cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal);
  if (error != cudaSuccess) return ToStatus(error, "recording of a graph");
  enqueue();
  cudaGraph_t captured = nullptr;
  error = cudaStreamEndCapture(stream.handle(), &captured);
  const Recorded recorded(captured);
  // An error of what was enqueued says more than that the recording is void.
  if (!stream.fault().status().ok()) return stream.fault().status();
  if (error != cudaSuccess) return ToStatus(error, "recording of a graph");
  cudaGraphExec_t made = nullptr;
  error = cudaGraphInstantiate(&made, recorded.get(), 0);
  Ready ready(made);
  if (error == cudaSuccess) error = cudaGraphUpload(made, stream.handle());
  if (error != cudaSuccess) return ToStatus(error, "a recorded graph");
  return std::shared_ptr<const Graph>(new Graph(std::move(ready)));
}

void Graph::Launch(CudaStream& stream) const {
  stream.fault().Note(cudaGraphLaunch(ready_.get(), stream.handle()), "graph launch");
}

}  // namespace trainyard::kernels::cuda
