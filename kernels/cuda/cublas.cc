#include "kernels/cuda/cublas.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cublas_library.h"

namespace trainyard::kernels::cuda {

absl::Status ToStatus(cublasStatus_t error, absl::string_view doing) {
  if (error == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat(doing, ": ", cublasLtGetStatusName(error), ": ", cublasLtGetStatusString(error));
  if (error == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(message);
  if (error == CUBLAS_STATUS_NOT_SUPPORTED) return absl::UnimplementedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Make() {
  if (absl::Status loaded = LoadCublasLt(); !loaded.ok()) return loaded;
  cublasLtHandle_t handle = nullptr;
  const absl::Status made = ToStatus(cublasLtCreate(&handle), "cublasLtCreate");
  if (!made.ok()) return made;
  return std::unique_ptr<CublasLt>(new CublasLt(handle));
}

}  // namespace trainyard::kernels::cuda
