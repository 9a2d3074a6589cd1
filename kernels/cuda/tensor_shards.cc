// The ops of tensor parallelism: no kernels yet, and no job that needs them is planned for a GPU
// (executor/plan/spec/parallel.cc).

#include "kernels/cuda/cuda_device.h"

namespace trainyard::kernels::cuda {
namespace {

absl::Status NoKernel(const char* op) {
  return absl::UnimplementedError(absl::StrCat("cuda: there is no kernel for ", op, " yet"));
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const AddParts&) { return NoKernel(AddParts::kName); }
absl::StatusOr<Kernel> CudaDevice::Bind(const Spread&) { return NoKernel(Spread::kName); }
absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingShardsForward&) {
  return NoKernel(EmbeddingShardsForward::kName);
}
absl::StatusOr<Kernel> CudaDevice::Bind(const EmbeddingShardsBackward&) {
  return NoKernel(EmbeddingShardsBackward::kName);
}
absl::StatusOr<Kernel> CudaDevice::Bind(const CrossEntropyShard&) {
  return NoKernel(CrossEntropyShard::kName);
}
absl::StatusOr<Kernel> CudaDevice::Bind(const CrossEntropyOfShards&) {
  return NoKernel(CrossEntropyOfShards::kName);
}
absl::StatusOr<Kernel> CudaDevice::Bind(const CrossEntropyShardGradient&) {
  return NoKernel(CrossEntropyShardGradient::kName);
}

}  // namespace trainyard::kernels::cuda
