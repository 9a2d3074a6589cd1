#pragma once

// Graphs of operations, and the plans by which cuDNN runs them: its back-end interface ("graph
// API", cudnn_graph.h) in owning types. A plan can be made for a GPU that is absent, from a
// description of it, so that the library's answers to our requests can be tested without a GPU.

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/buffer.h"

namespace trainyard::kernels::cuda {

// kUnimplemented for what the library does not offer. The message ends with the library's own.
absl::Status ToStatus(cudnnStatus_t error, absl::string_view doing);

struct DestroyDescriptor {
  void operator()(cudnnBackendDescriptor_t descriptor) const {
    cudnnBackendDestroyDescriptor(descriptor);
  }
};
using CudnnDescriptor =
    std::unique_ptr<std::remove_pointer_t<cudnnBackendDescriptor_t>, DestroyDescriptor>;

cudnnDataType_t CudnnTypeOf(DType type);

// The largest alignment, in bytes, that the library distinguishes; AlignmentOf returns at most
// this.
inline constexpr int64_t kMostAlignment = 16;
int64_t AlignmentOf(const void* data);

// The GPU that plans are for.
class PlanTarget {
 public:
  // The GPU of a handle, which outlives the target and its plans.
  static PlanTarget Of(cudnnHandle_t handle) { return PlanTarget(handle, nullptr); }
  // A GPU that `json` describes as CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION does.
  static absl::StatusOr<PlanTarget> Described(const std::string& json);

  cudnnHandle_t handle() const { return handle_; }                           // or null
  cudnnBackendDescriptor_t properties() const { return properties_.get(); }  // or null

 private:
  PlanTarget(cudnnHandle_t handle, CudnnDescriptor properties)
      : handle_(handle), properties_(std::move(properties)) {}

  cudnnHandle_t handle_;
  CudnnDescriptor properties_;
};

// A tensor in memory, which Plan::Run binds by its `id`. Strides in elements, `alignment` in bytes.
struct GraphTensor {
  int64_t id = 0;
  std::vector<int64_t> dims, strides;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int64_t alignment = kMostAlignment;
};

struct ConvolutionGeometry {
  int64_t stride = 1, pad = 0;
};

// Operations over tensors, added one after the other. Arithmetic is fp32. The first error of the
// library is kept, and Finish returns it.
class OperationGraph {
 public:
  using Tensor = cudnnBackendDescriptor_t;  // the graph owns it

  // A tensor in memory.
  Tensor Bound(const GraphTensor& tensor);
  // One number, which Plan::Run reads where it lies on the host.
  Tensor Scalar(int64_t id);
  // An intermediate result, which never need be in memory; packed unless it has strides.
  Tensor Virtual(const std::vector<int64_t>& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT,
                 const std::vector<int64_t>& strides = {});

  // y = mode(x), mode(x, b) or, with t, mode(x, b, t), where t says which of x and b to take.
  Tensor Pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y, Tensor t = nullptr);
  // Each element of y = its own index along `axis`.
  Tensor Index(Tensor x, int64_t axis, Tensor y);
  // Reduces x over every dimension in which y is smaller.
  Tensor Reduce(cudnnReduceTensorOp_t by, Tensor x, Tensor y);
  // [.., m, k] times [.., k, n].
  Tensor Product(Tensor a, Tensor b, Tensor c);
  // The elements of x as they lie, with the dimensions and strides of y.
  Tensor Reshape(Tensor x, Tensor y);
  // The dimensions of all three are in NCHW order, whatever the strides; `which` says which one is
  // computed.
  enum class Convolution { kForward, kDataGradient, kWeightGradient };
  void Convolve(Convolution which, const ConvolutionGeometry& geometry, Tensor x, Tensor w,
                Tensor y);

  // Called once, after the last operation.
  absl::Status Finish(const PlanTarget& target);
  cudnnBackendDescriptor_t get() const { return graph_; }

 private:
  // MakeTensor sets the attribute `kind` of tensors that are not in memory, but virtual or passed
  // by value. For tensors in memory `kind` is this one, and nothing is set.
  static constexpr cudnnBackendAttributeName_t kInMemory = CUDNN_ATTR_TENSOR_UNIQUE_ID;

  cudnnBackendDescriptor_t Make(cudnnBackendDescriptorType_t type);
  Tensor MakeTensor(const GraphTensor& tensor, cudnnBackendAttributeName_t kind);
  void Set(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, int64_t count, const void* values);
  void Finalize(cudnnBackendDescriptor_t descriptor);
  Tensor MakePointwise(cudnnPointwiseMode_t mode, cudnnDataType_t arithmetic, int64_t axis,
                       Tensor x, Tensor b, Tensor t, Tensor y);
  void AddOperation(cudnnBackendDescriptor_t operation);
  void Note(cudnnStatus_t error);

  absl::Status status_;
  std::vector<CudnnDescriptor> owned_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  cudnnBackendDescriptor_t graph_ = nullptr;
  int64_t next_virtual_ = int64_t{1} << 32;
};

// A way to run a graph. Immutable but for the bindings that it keeps from one run to the next; one
// thread runs it.
class Plan {
 public:
  struct Binding {
    int64_t id;
    void* data;  // in device memory; of a scalar, in host memory
  };

  // Makes a plan by `config`, one of the engines that the library proposes for a finished graph.
  static absl::StatusOr<std::unique_ptr<Plan>> Of(const PlanTarget& target,
                                                  std::shared_ptr<const OperationGraph> graph,
                                                  CudnnDescriptor config);
  // Restores a plan from what Serialized returned on the same GPU and version of the library.
  static absl::StatusOr<std::unique_ptr<Plan>> Deserialize(const PlanTarget& target,
                                                           const std::string& serialized);

  size_t workspace_bytes() const { return workspace_bytes_; }
  // The plan as text, with the kernels that were compiled for it; "" if the library cannot
  // serialize it.
  std::string Serialized() const;

  cudnnStatus_t Run(cudnnHandle_t handle, absl::Span<const Binding> bindings, void* workspace);

 private:
  explicit Plan(CudnnDescriptor plan) : plan_(std::move(plan)) {}
  absl::Status ReadWorkspace();
  cudnnStatus_t Bind(absl::Span<const Binding> bindings, void* workspace);

  std::shared_ptr<const OperationGraph> graph_;  // null in a deserialized plan
  CudnnDescriptor config_;                       // likewise
  CudnnDescriptor plan_;
  size_t workspace_bytes_ = 0;
  // The memory bound by the last run, and the library's descriptor of it.
  std::vector<void*> bound_;
  CudnnDescriptor pack_;
};

struct PlanLimits {
  size_t most_workspace_bytes = 0;
  int most_plans = 1;
  // Engines with one of these notes are passed over; those that add in no fixed order always are.
  std::vector<cudnnBackendNumericalNote_t> without = {};
};

// Plans of a finished graph that keep to the limits, the library's own first choice first.
// kUnimplemented: there is none.
absl::StatusOr<std::vector<std::unique_ptr<Plan>>> PlansOf(
    const PlanTarget& target, const std::shared_ptr<const OperationGraph>& graph,
    const PlanLimits& limits);

}  // namespace trainyard::kernels::cuda
