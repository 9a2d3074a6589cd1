#include "kernels/cuda/cudnn.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {

absl::Status ToStatus(cudnnStatus_t error, absl::string_view doing) {
  if (error == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(doing, ": ", cudnnGetErrorString(error));
  const auto category = CUDNN_STATUS_CATEGORY(error);
  if (category == CUDNN_STATUS_NOT_SUPPORTED) return absl::UnimplementedError(message);
  if (category == CUDNN_STATUS_BAD_PARAM) return absl::InvalidArgumentError(message);
  return absl::InternalError(message);
}

absl::StatusOr<std::unique_ptr<Cudnn>> Cudnn::Make() {
  cudnnHandle_t handle = nullptr;
  const absl::Status made = ToStatus(cudnnCreate(&handle), "cudnnCreate");
  if (!made.ok()) return made;
  return std::unique_ptr<Cudnn>(new Cudnn(handle));
}

cudnnStatus_t Cudnn::Use(cudaStream_t stream) {
  if (stream == stream_) return CUDNN_STATUS_SUCCESS;
  const cudnnStatus_t error = cudnnSetStream(handle_.get(), stream);
  if (error == CUDNN_STATUS_SUCCESS) stream_ = stream;
  return error;
}

}  // namespace trainyard::kernels::cuda
