#include "kernels/cuda/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {
namespace {

// Heuristics propose some dozens for a convolution; the rest are variants of them.
constexpr int64_t kMostProposals = 64;

absl::StatusOr<CudnnDescriptor> MakeDescriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  const absl::Status status =
      ToStatus(cudnnBackendCreateDescriptor(type, &made), "cuDNN descriptor");
  if (!status.ok()) return status;
  return CudnnDescriptor(made);
}

cudnnStatus_t SetDescriptor(const CudnnDescriptor& of, cudnnBackendAttributeName_t name,
                            cudnnBackendDescriptor_t value) {
  return cudnnBackendSetAttribute(of.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

// The engine configurations that a heuristic proposes, best first; none if it does not support the
// graph.
absl::StatusOr<std::vector<CudnnDescriptor>> Propose(const PlanTarget& target,
                                                     const OperationGraph& graph,
                                                     cudnnBackendHeurMode_t mode) {
  absl::StatusOr<CudnnDescriptor> heuristic = MakeDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  if (!heuristic.ok()) return heuristic.status();
  cudnnStatus_t error =
      SetDescriptor(*heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.get());
  if (error == CUDNN_STATUS_SUCCESS) {
    error = cudnnBackendSetAttribute(heuristic->get(), CUDNN_ATTR_ENGINEHEUR_MODE,
                                     CUDNN_TYPE_HEUR_MODE, 1, &mode);
  }
  if (error == CUDNN_STATUS_SUCCESS && target.properties() != nullptr) {
    error = SetDescriptor(*heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.properties());
  }
  if (error == CUDNN_STATUS_SUCCESS) error = cudnnBackendFinalize(heuristic->get());
  std::vector<CudnnDescriptor> configs;
  if (CUDNN_STATUS_CATEGORY(error) == CUDNN_STATUS_NOT_SUPPORTED) return configs;
  if (error != CUDNN_STATUS_SUCCESS) return ToStatus(error, "cuDNN heuristic");
  std::vector<cudnnBackendDescriptor_t> places;
  for (int64_t i = 0; i < kMostProposals; ++i) {
    absl::StatusOr<CudnnDescriptor> config = MakeDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!config.ok()) return config.status();
    places.push_back(config->get());
    configs.push_back(*std::move(config));
  }
  int64_t count = 0;
  error = cudnnBackendGetAttribute(heuristic->get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, kMostProposals, &count,
                                   places.data());
  if (error != CUDNN_STATUS_SUCCESS) count = 0;
  configs.resize(std::min(count, kMostProposals));
  return configs;
}

// Whether the engine of `config` adds in a fixed order and has none of the notes that `limits`
// excludes.
bool Allowed(const CudnnDescriptor& config, const PlanLimits& limits) {
  absl::StatusOr<CudnnDescriptor> engine = MakeDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (!engine.ok()) return false;
  cudnnBackendDescriptor_t place = engine->get();
  int64_t count = 0;
  cudnnStatus_t error = cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &place);
  if (error != CUDNN_STATUS_SUCCESS) return false;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes;
  error = cudnnBackendGetAttribute(engine->get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                   CUDNN_TYPE_NUMERICAL_NOTE, notes.size(), &count, notes.data());
  if (error != CUDNN_STATUS_SUCCESS) return false;
  return std::none_of(notes.begin(), notes.begin() + count, [&](cudnnBackendNumericalNote_t note) {
    return note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
           std::find(limits.without.begin(), limits.without.end(), note) != limits.without.end();
  });
}

absl::StatusOr<CudnnDescriptor> NewPlan(const PlanTarget& target) {
  absl::StatusOr<CudnnDescriptor> plan = MakeDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (!plan.ok()) return plan.status();
  cudnnHandle_t handle = target.handle();
  const cudnnStatus_t error =
      handle != nullptr
          ? cudnnBackendSetAttribute(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                     CUDNN_TYPE_HANDLE, 1, &handle)
          : SetDescriptor(*plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.properties());
  if (error != CUDNN_STATUS_SUCCESS) return ToStatus(error, "cuDNN plan");
  return *std::move(plan);
}

// Strides of packed dimensions, the last one fastest.
std::vector<int64_t> Packed(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

}  // namespace

absl::Status ToStatus(cudnnStatus_t error, absl::string_view doing) {
  if (error == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  std::array<char, 512> detail = {};
  cudnnGetLastErrorString(detail.data(), detail.size() - 1);
  const std::string message = absl::StrCat(doing, ": ", cudnnGetErrorString(error),
                                           detail[0] == '\0' ? "" : ": ", detail.data());
  const auto category = CUDNN_STATUS_CATEGORY(error);
  if (category == CUDNN_STATUS_NOT_SUPPORTED) return absl::UnimplementedError(message);
  if (category == CUDNN_STATUS_BAD_PARAM) return absl::InvalidArgumentError(message);
  return absl::InternalError(message);
}

cudnnDataType_t CudnnTypeOf(DType type) {
  return type == DType::kBF16  ? CUDNN_DATA_BFLOAT16
         : type == DType::kF16 ? CUDNN_DATA_HALF
                               : CUDNN_DATA_FLOAT;
}

int64_t AlignmentOf(const void* data) {
  const auto at = reinterpret_cast<uintptr_t>(data);
  if (at == 0) return kMostAlignment;
  return static_cast<int64_t>(std::min(at & (~at + 1), uintptr_t{kMostAlignment}));
}

absl::StatusOr<PlanTarget> PlanTarget::Described(const std::string& json) {
  absl::StatusOr<CudnnDescriptor> properties = MakeDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  if (!properties.ok()) return properties.status();
  cudnnStatus_t error = cudnnBackendSetAttribute(
      properties->get(), CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
      static_cast<int64_t>(json.size()) + 1, json.c_str());
  if (error == CUDNN_STATUS_SUCCESS) error = cudnnBackendFinalize(properties->get());
  if (error != CUDNN_STATUS_SUCCESS) return ToStatus(error, "cuDNN device properties");
  return PlanTarget(nullptr, *std::move(properties));
}

void OperationGraph::Note(cudnnStatus_t error) {
  if (error != CUDNN_STATUS_SUCCESS) status_.Update(ToStatus(error, "cuDNN graph"));
}

cudnnBackendDescriptor_t OperationGraph::Make(cudnnBackendDescriptorType_t type) {
  absl::StatusOr<CudnnDescriptor> made = MakeDescriptor(type);
  status_.Update(made.status());
  if (!made.ok()) return nullptr;
  owned_.push_back(*std::move(made));
  return owned_.back().get();
}

void OperationGraph::Set(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  if (status_.ok()) Note(cudnnBackendSetAttribute(of, name, type, count, values));
}

void OperationGraph::Finalize(cudnnBackendDescriptor_t descriptor) {
  if (status_.ok()) Note(cudnnBackendFinalize(descriptor));
}

void OperationGraph::AddOperation(cudnnBackendDescriptor_t operation) {
  Finalize(operation);
  operations_.push_back(operation);
}

OperationGraph::Tensor OperationGraph::MakeTensor(const GraphTensor& tensor,
                                                  cudnnBackendAttributeName_t kind) {
  const cudnnBackendDescriptor_t made = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const auto rank = static_cast<int64_t>(tensor.dims.size());
  Set(made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &tensor.id);
  Set(made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &tensor.type);
  Set(made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, tensor.dims.data());
  Set(made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, tensor.strides.data());
  Set(made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &tensor.alignment);
  const bool yes = true;
  if (kind != kInMemory) Set(made, kind, CUDNN_TYPE_BOOLEAN, 1, &yes);
  Finalize(made);
  return made;
}

OperationGraph::Tensor OperationGraph::Bound(const GraphTensor& tensor) {
  return MakeTensor(tensor, kInMemory);
}

OperationGraph::Tensor OperationGraph::Scalar(int64_t id) {
  return MakeTensor({.id = id, .dims = {1, 1, 1, 1}, .strides = {1, 1, 1, 1}},
                    CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

OperationGraph::Tensor OperationGraph::Virtual(const std::vector<int64_t>& dims,
                                               cudnnDataType_t type,
                                               const std::vector<int64_t>& strides) {
  return MakeTensor({.id = next_virtual_++,
                     .dims = dims,
                     .strides = strides.empty() ? Packed(dims) : strides,
                     .type = type},
                    CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

OperationGraph::Tensor OperationGraph::MakePointwise(cudnnPointwiseMode_t mode,
                                                     cudnnDataType_t arithmetic, int64_t axis,
                                                     Tensor x, Tensor b, Tensor t, Tensor y) {
  const cudnnBackendDescriptor_t how = Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  Set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  Set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  if (axis >= 0) Set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  Finalize(how);
  const cudnnBackendDescriptor_t op = Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  const auto operand = [&](cudnnBackendAttributeName_t name, Tensor tensor) {
    if (tensor != nullptr) Set(op, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensor);
  };
  operand(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  operand(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  operand(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  operand(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  operand(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  AddOperation(op);
  return y;
}

OperationGraph::Tensor OperationGraph::Pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b,
                                                 Tensor y, Tensor t) {
  // Comparisons compute in booleans.
  const bool compares = mode == CUDNN_POINTWISE_CMP_GE;
  return MakePointwise(mode, compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT, -1, x, b, t, y);
}

OperationGraph::Tensor OperationGraph::Index(Tensor x, int64_t axis, Tensor y) {
  return MakePointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis, x, nullptr, nullptr, y);
}

OperationGraph::Tensor OperationGraph::Reduce(cudnnReduceTensorOp_t by, Tensor x, Tensor y) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  const cudnnBackendDescriptor_t how = Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  Set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by);
  Set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  Finalize(how);
  const cudnnBackendDescriptor_t op = Make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  Set(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
  Set(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
  Set(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
  AddOperation(op);
  return y;
}

OperationGraph::Tensor OperationGraph::Product(Tensor a, Tensor b, Tensor c) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  const cudnnBackendDescriptor_t how = Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  Set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  Finalize(how);
  const cudnnBackendDescriptor_t op = Make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  Set(op, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
  Set(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &a);
  Set(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &b);
  Set(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &c);
  AddOperation(op);
  return c;
}

OperationGraph::Tensor OperationGraph::Reshape(Tensor x, Tensor y) {
  const cudnnBackendDescriptor_t op = Make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  Set(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
  Set(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
  AddOperation(op);
  return y;
}

void OperationGraph::Convolve(Convolution which, const ConvolutionGeometry& geometry, Tensor x,
                              Tensor w, Tensor y) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const int64_t rank = 2;
  const std::array<int64_t, 2> strides = {geometry.stride, geometry.stride};
  const std::array<int64_t, 2> pads = {geometry.pad, geometry.pad};
  const std::array<int64_t, 2> dilations = {1, 1};
  const cudnnBackendDescriptor_t how = Make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  Set(how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &rank);
  Set(how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  Set(how, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  Set(how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, rank, strides.data());
  Set(how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, rank, pads.data());
  Set(how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, rank, pads.data());
  Set(how, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, rank, dilations.data());
  Finalize(how);
  // The three descriptors have the same attributes under names of their own.
  struct Names {
    cudnnBackendDescriptorType_t op;
    cudnnBackendAttributeName_t how, alpha, beta, x, w, y;
  };
  constexpr Names kForward = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
  constexpr Names kData = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
  constexpr Names kWeights = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
  const Names& names = which == Convolution::kForward        ? kForward
                       : which == Convolution::kDataGradient ? kData
                                                             : kWeights;
  const float one = 1, zero = 0;
  const cudnnBackendDescriptor_t op = Make(names.op);
  Set(op, names.how, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
  Set(op, names.alpha, CUDNN_TYPE_FLOAT, 1, &one);
  Set(op, names.beta, CUDNN_TYPE_FLOAT, 1, &zero);
  Set(op, names.x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
  Set(op, names.w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
  Set(op, names.y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
  AddOperation(op);
}

absl::Status OperationGraph::Finish(const PlanTarget& target) {
  const cudnnBackendDescriptor_t graph = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  Set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      static_cast<int64_t>(operations_.size()), operations_.data());
  if (cudnnHandle_t handle = target.handle(); handle != nullptr) {
    Set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  }
  Finalize(graph);
  if (status_.ok()) graph_ = graph;
  return status_;
}

absl::Status Plan::ReadWorkspace() {
  int64_t bytes = 0, count = 0;
  const cudnnStatus_t error = cudnnBackendGetAttribute(
      plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
  if (error == CUDNN_STATUS_SUCCESS && bytes >= 0) workspace_bytes_ = static_cast<size_t>(bytes);
  return ToStatus(error, "cuDNN workspace");
}

absl::StatusOr<std::unique_ptr<Plan>> Plan::Deserialize(const PlanTarget& target,
                                                        const std::string& serialized) {
  absl::StatusOr<CudnnDescriptor> made = NewPlan(target);
  if (!made.ok()) return made.status();
  std::unique_ptr<Plan> plan(new Plan(*std::move(made)));
  cudnnStatus_t error = cudnnBackendSetAttribute(
      plan->plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
      static_cast<int64_t>(serialized.size()) + 1, serialized.c_str());
  if (error == CUDNN_STATUS_SUCCESS) error = cudnnBackendFinalize(plan->plan_.get());
  absl::Status status = ToStatus(error, "cuDNN plan");
  if (status.ok()) status = plan->ReadWorkspace();
  if (!status.ok()) return status;
  return plan;
}

std::string Plan::Serialized() const {
  int64_t count = 0;
  cudnnStatus_t error =
      cudnnBackendGetAttribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                               CUDNN_TYPE_CHAR, 0, &count, nullptr);
  if (error != CUDNN_STATUS_SUCCESS || count <= 0) return "";
  std::string text(static_cast<size_t>(count), '\0');
  error = cudnnBackendGetAttribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                   CUDNN_TYPE_CHAR, count, &count, text.data());
  if (error != CUDNN_STATUS_SUCCESS) return "";
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

cudnnStatus_t Plan::Bind(absl::Span<const Binding> bindings, void* workspace) {
  std::vector<int64_t> ids;
  std::vector<void*> data;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.id);
    data.push_back(binding.data);
  }
  absl::StatusOr<CudnnDescriptor> pack = MakeDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  if (!pack.ok()) return CUDNN_STATUS_INTERNAL_ERROR;
  const auto count = static_cast<int64_t>(ids.size());
  cudnnStatus_t error = cudnnBackendSetAttribute(pack->get(), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                                 CUDNN_TYPE_INT64, count, ids.data());
  if (error == CUDNN_STATUS_SUCCESS) {
    error = cudnnBackendSetAttribute(pack->get(), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                     CUDNN_TYPE_VOID_PTR, count, data.data());
  }
  if (error == CUDNN_STATUS_SUCCESS) {
    error = cudnnBackendSetAttribute(pack->get(), CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                     CUDNN_TYPE_VOID_PTR, 1, &workspace);
  }
  if (error == CUDNN_STATUS_SUCCESS) error = cudnnBackendFinalize(pack->get());
  if (error == CUDNN_STATUS_SUCCESS) pack_ = *std::move(pack);
  return error;
}

cudnnStatus_t Plan::Run(cudnnHandle_t handle, absl::Span<const Binding> bindings, void* workspace) {
  std::vector<void*> memory = {workspace};
  for (const Binding& binding : bindings) memory.push_back(binding.data);
  if (pack_ == nullptr || memory != bound_) {
    const cudnnStatus_t error = Bind(bindings, workspace);
    if (error != CUDNN_STATUS_SUCCESS) return error;
    bound_ = std::move(memory);
  }
  return cudnnBackendExecute(handle, plan_.get(), pack_.get());
}

absl::StatusOr<std::unique_ptr<Plan>> Plan::Of(const PlanTarget& target,
                                               std::shared_ptr<const OperationGraph> graph,
                                               CudnnDescriptor config) {
  absl::StatusOr<CudnnDescriptor> made = NewPlan(target);
  if (!made.ok()) return made.status();
  std::unique_ptr<Plan> plan(new Plan(*std::move(made)));
  plan->graph_ = std::move(graph);
  plan->config_ = std::move(config);
  cudnnStatus_t error =
      SetDescriptor(plan->plan_, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, plan->config_.get());
  if (error == CUDNN_STATUS_SUCCESS) error = cudnnBackendFinalize(plan->plan_.get());
  absl::Status status = ToStatus(error, "cuDNN plan");
  if (status.ok()) status = plan->ReadWorkspace();
  if (!status.ok()) return status;
  return plan;
}

absl::StatusOr<std::vector<std::unique_ptr<Plan>>> PlansOf(
    const PlanTarget& target, const std::shared_ptr<const OperationGraph>& graph,
    const PlanLimits& limits) {
  std::vector<std::unique_ptr<Plan>> plans;
  absl::Status last = absl::UnimplementedError("cuDNN knows no engine for it");
  // The plans of the fallback are slow; they are taken only where there are no others.
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    absl::StatusOr<std::vector<CudnnDescriptor>> configs = Propose(target, *graph, mode);
    if (!configs.ok()) return configs.status();
    for (CudnnDescriptor& config : *configs) {
      if (!Allowed(config, limits)) continue;
      absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Of(target, graph, std::move(config));
      if (!plan.ok()) {
        last = plan.status();
      } else if ((*plan)->workspace_bytes() <= limits.most_workspace_bytes) {
        plans.push_back(*std::move(plan));
        if (static_cast<int>(plans.size()) == limits.most_plans) return plans;
      } else {
        last = absl::UnimplementedError(
            absl::StrCat("cuDNN wants ", (*plan)->workspace_bytes(), " bytes of workspace for it"));
      }
    }
    if (!plans.empty()) return plans;
  }
  return absl::UnimplementedError(last.message());
}

}  // namespace trainyard::kernels::cuda
