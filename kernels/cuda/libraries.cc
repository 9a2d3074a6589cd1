#include "kernels/libraries.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cublas_library.h"
#include "kernels/cuda/nccl_links.h"

namespace trainyard::kernels {
namespace {

// 130010 is 13.0 to CUDA, 91900 is 9.19.0 to cuDNN, 130100 is 13.1.0 to cuBLASLt.
absl::StatusOr<std::string> OfCuda(cudaError_t error, int version) {
  if (error != cudaSuccess) return absl::UnavailableError(cudaGetErrorString(error));
  if (version == 0) return absl::UnavailableError("there is no driver");
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string InHundreds(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::string> OfCublasLt() {
  if (const absl::Status loaded = cuda::LoadCublasLt(); !loaded.ok()) return loaded;
  return InHundreds(cublasLtGetVersion());
}

absl::StatusOr<std::string> OfNccl() {
  const absl::StatusOr<const cuda::Nccl*> nccl = cuda::LoadNccl();
  if (!nccl.ok()) return nccl.status();
  return cuda::NcclVersion(**nccl);
}

}  // namespace

std::vector<Library> CudaLibraries() {
  int runtime = 0, driver = 0;
  const cudaError_t of_runtime = cudaRuntimeGetVersion(&runtime);
  const cudaError_t of_driver = cudaDriverGetVersion(&driver);
  return {{"CUDA", OfCuda(of_runtime, runtime)},
          {"CUDA's driver, at most", OfCuda(of_driver, driver)},
          {"cuBLASLt", OfCublasLt()},
          {"cuDNN", InHundreds(cudnnGetVersion())},
          {"NCCL", OfNccl()}};
}

}  // namespace trainyard::kernels
