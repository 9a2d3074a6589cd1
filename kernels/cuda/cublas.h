#pragma once

// cuBLASLt in owning types.

#include <cublasLt.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::kernels::cuda {

absl::Status ToStatus(cublasStatus_t error, absl::string_view doing);

// Deletes any of the library's objects by its own function.
template <auto kDestroy>
struct CublasDelete {
  template <typename T>
  void operator()(T* object) const {
    kDestroy(object);
  }
};
template <typename Handle, auto kDestroy>
using CublasOwned = std::unique_ptr<std::remove_pointer_t<Handle>, CublasDelete<kDestroy>>;

using MatmulDescriptor = CublasOwned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = CublasOwned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using MatmulPreference = CublasOwned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// The library's state on the device that was current when it was made.
class CublasLt {
 public:
  static absl::StatusOr<std::unique_ptr<CublasLt>> Make();

  cublasLtHandle_t handle() const { return handle_.get(); }

 private:
  explicit CublasLt(cublasLtHandle_t handle) : handle_(handle) {}

  CublasOwned<cublasLtHandle_t, cublasLtDestroy> handle_;
};

}  // namespace trainyard::kernels::cuda
