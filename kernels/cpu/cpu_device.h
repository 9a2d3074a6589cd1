#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"

namespace trainyard::kernels {

// Prepare of an op is defined in the file of its op. Launches use the OpenMP pool of the thread
// that calls them, with this device's thread count.
class CpuDevice : public Device {
 public:
  // `vectors`: one of SupportedTables().
  CpuDevice(int threads, const VectorTable& vectors);
  ~CpuDevice() override;

  // The inner loops that this machine can run, best first.
  static std::vector<const VectorTable*> SupportedTables();

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
  const int threads_;
  const VectorTable& vectors_;
  const Dnnl dnnl_;
  std::unordered_set<void*> allocations_;
};

}  // namespace trainyard::kernels
