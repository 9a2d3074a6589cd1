#pragma once

// The one contract that every back end fulfils. An op is declared in kernels/ops/, listed here, and
// implemented under the same file name in cpu/ and cuda/: a back end that lacks one does not
// compile.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/add.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/batch_norm.h"
#include "kernels/ops/binary_cross_entropy.h"
#include "kernels/ops/column_sum.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/embedding_tables.h"
#include "kernels/ops/interaction.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/mean_pool.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/pool.h"
#include "kernels/ops/rotary.h"
#include "kernels/ops/row_optimizer.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/transpose.h"
#include "kernels/ops/zero.h"

namespace trainyard::kernels {

// Where launches run, one after the other. Made by a Device, used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // Scratch that the running kernel may use; at least as much as any kernel launched here asked
  // for.
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
};

// An op bound to its memory: everything that can be decided or built was, so that a launch
// allocates nothing. The buffers must outlive it.
struct Kernel {
  std::function<void(Stream&)> launch;
  size_t scratch_bytes = 0;
};

// One GPU, or the cores of a CPU slot. Thread-compatible: one thread drives it.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Description() const = 0;  // "cpu x2", "cuda:0 NVIDIA H200"

  // 64-byte aligned memory of the device, its content undefined; kResourceExhausted when there is
  // not enough. Freed with the device or by Free.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* data) = 0;

  virtual std::unique_ptr<Stream> MakeStream() = 0;

  // Copies are ordered with the launches of the stream. The host memory of CopyOut is valid after
  // Synchronize.
  virtual void CopyIn(Stream& stream, void* device_to, const void* host_from, size_t bytes) = 0;
  virtual void CopyOut(Stream& stream, void* host_to, const void* device_from, size_t bytes) = 0;

  // Waits for the stream. A fault of the device is kInternal here, and everywhere after: the
  // process should end.
  virtual absl::Status Synchronize(Stream& stream) = 0;

  // kUnimplemented: the back end has no kernel for these types or shapes.
  virtual absl::StatusOr<Kernel> Prepare(const ActivationForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const ActivationBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const Add& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const AdamWRows& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const AdamWStep& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const AttentionForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const AttentionBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const BatchNormForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const BatchNormInference& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const BatchNormBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const BinaryCrossEntropy& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const ClipScale& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const ColumnSum& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const ConvolutionForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const ConvolutionBackwardData& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const ConvolutionBackwardWeights& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const CountTargets& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const CrossEntropy& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const Dropout& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const EmbeddingForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const EmbeddingBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const EmbeddingTablesForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const EmbeddingTablesBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const InteractionForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const InteractionBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const KeepRows& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const LayerNormForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const LayerNormBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const Matmul& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const MaxPoolForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const MaxPoolBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const MeanPoolForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const MeanPoolBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const Rotary& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const MergeRows& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const SgdRows& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const SgdStep& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const SquaredNorm& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const Sum& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const SwiGluForward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const SwiGluBackward& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const Transpose& op) = 0;
  virtual absl::StatusOr<Kernel> Prepare(const Zero& op) = 0;
};

// The CPU back end on `threads` threads (1 to the machine's).
absl::StatusOr<std::unique_ptr<Device>> OpenCpu(int threads);

// GPU `index`. kUnavailable: built without CUDA, no driver, or no such GPU.
absl::StatusOr<std::unique_ptr<Device>> OpenCuda(int index);

}  // namespace trainyard::kernels
