#pragma once

// cuDNN in owning types.

#include <cudnn.h>

#include <memory>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard::kernels::cuda {

absl::Status ToStatus(cudnnStatus_t error, absl::string_view doing);

// Deletes any of the library's objects by its own function.
template <auto kDestroy>
struct CudnnDelete {
  template <typename T>
  void operator()(T* object) const {
    kDestroy(object);
  }
};
template <typename Handle, auto kDestroy>
using CudnnOwned = std::unique_ptr<std::remove_pointer_t<Handle>, CudnnDelete<kDestroy>>;

using TensorDescriptor = CudnnOwned<cudnnTensorDescriptor_t, cudnnDestroyTensorDescriptor>;
using FilterDescriptor = CudnnOwned<cudnnFilterDescriptor_t, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    CudnnOwned<cudnnConvolutionDescriptor_t, cudnnDestroyConvolutionDescriptor>;

// The library's state on the device that was current when it was made. One thread uses it.
class Cudnn {
 public:
  static absl::StatusOr<std::unique_ptr<Cudnn>> Make();

  // Calls go to `stream` from here on.
  cudnnStatus_t Use(cudaStream_t stream);
  cudnnHandle_t handle() const { return handle_.get(); }

 private:
  explicit Cudnn(cudnnHandle_t handle) : handle_(handle) {}

  CudnnOwned<cudnnHandle_t, cudnnDestroy> handle_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace trainyard::kernels::cuda
