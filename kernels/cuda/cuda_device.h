#pragma once

// One GPU behind the contract of kernels/device.h. Each Prepare is defined in the file named after
// its op. Prepare chooses (algorithms, tiles, scratch); a launch only enqueues: it allocates
// nothing, waits for nothing and may be captured in a CUDA graph once it has run outside of one
// (libraries load their kernels at first use). Not thread-safe: one thread drives a device. A
// thread other than the one that opened it begins with MakeStream, a copy or Synchronize, which
// make the device current; a launch alone does not.

#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/runtime.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, std::string name, std::unique_ptr<CublasLt> blas);
  ~CudaDevice() override;

  std::string Description() const override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* data) override;
  std::unique_ptr<Stream> MakeStream() override;
  void CopyIn(Stream& stream, void* device_to, const void* host_from, size_t bytes) override;
  void CopyOut(Stream& stream, void* host_to, const void* device_from, size_t bytes) override;
  absl::Status Synchronize(Stream& stream) override;

  absl::StatusOr<Kernel> Prepare(const ActivationForward& op) override;
  absl::StatusOr<Kernel> Prepare(const ActivationBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const Add& op) override;
  absl::StatusOr<Kernel> Prepare(const AdamWRows& op) override;
  absl::StatusOr<Kernel> Prepare(const AdamWStep& op) override;
  absl::StatusOr<Kernel> Prepare(const AttentionForward& op) override;
  absl::StatusOr<Kernel> Prepare(const AttentionBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const BatchNormForward& op) override;
  absl::StatusOr<Kernel> Prepare(const BatchNormInference& op) override;
  absl::StatusOr<Kernel> Prepare(const BatchNormBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const BinaryCrossEntropy& op) override;
  absl::StatusOr<Kernel> Prepare(const ClipScale& op) override;
  absl::StatusOr<Kernel> Prepare(const ColumnSum& op) override;
  absl::StatusOr<Kernel> Prepare(const ConvolutionForward& op) override;
  absl::StatusOr<Kernel> Prepare(const ConvolutionBackwardData& op) override;
  absl::StatusOr<Kernel> Prepare(const ConvolutionBackwardWeights& op) override;
  absl::StatusOr<Kernel> Prepare(const CountTargets& op) override;
  absl::StatusOr<Kernel> Prepare(const CrossEntropy& op) override;
  absl::StatusOr<Kernel> Prepare(const Dropout& op) override;
  absl::StatusOr<Kernel> Prepare(const EmbeddingForward& op) override;
  absl::StatusOr<Kernel> Prepare(const EmbeddingBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const EmbeddingTablesForward& op) override;
  absl::StatusOr<Kernel> Prepare(const EmbeddingTablesBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const InteractionForward& op) override;
  absl::StatusOr<Kernel> Prepare(const InteractionBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const KeepRows& op) override;
  absl::StatusOr<Kernel> Prepare(const LayerNormForward& op) override;
  absl::StatusOr<Kernel> Prepare(const LayerNormBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const Matmul& op) override;
  absl::StatusOr<Kernel> Prepare(const MaxPoolForward& op) override;
  absl::StatusOr<Kernel> Prepare(const MaxPoolBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const MeanPoolForward& op) override;
  absl::StatusOr<Kernel> Prepare(const MeanPoolBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const Rotary& op) override;
  absl::StatusOr<Kernel> Prepare(const MergeRows& op) override;
  absl::StatusOr<Kernel> Prepare(const SgdRows& op) override;
  absl::StatusOr<Kernel> Prepare(const SgdStep& op) override;
  absl::StatusOr<Kernel> Prepare(const SquaredNorm& op) override;
  absl::StatusOr<Kernel> Prepare(const Sum& op) override;
  absl::StatusOr<Kernel> Prepare(const SwiGluForward& op) override;
  absl::StatusOr<Kernel> Prepare(const SwiGluBackward& op) override;
  absl::StatusOr<Kernel> Prepare(const Transpose& op) override;
  absl::StatusOr<Kernel> Prepare(const Zero& op) override;

 private:
  // Made at the first convolution: loading cuDNN takes memory and time that a GPT need not spend.
  absl::StatusOr<Cudnn*> OpenCudnn();

  const int index_;
  const std::string name_;
  Fault fault_;
  std::unique_ptr<CublasLt> blas_;
  std::unique_ptr<Cudnn> dnn_;
  std::unordered_map<void*, DeviceMemory> allocations_;
};

}  // namespace trainyard::kernels::cuda
