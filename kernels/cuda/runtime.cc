#include "kernels/cuda/runtime.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {

absl::Status ToStatus(cudaError_t error, absl::string_view doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(doing, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::Status Fault::status() const {
  if (first_.ok() || absl::IsResourceExhausted(first_)) return first_;
  return absl::InternalError(first_.message());
}

CudaStream::CudaStream(Fault& fault) : fault_(fault) {
  fault_.Note(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreate");
}

CudaStream::~CudaStream() {
  if (handle_ != nullptr) cudaStreamDestroy(handle_);
}

CudaEvent::CudaEvent(Fault& fault) {
  fault.Note(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "cudaEventCreate");
}

CudaEvent::~CudaEvent() {
  if (handle_ != nullptr) cudaEventDestroy(handle_);
}

}  // namespace trainyard::kernels::cuda
