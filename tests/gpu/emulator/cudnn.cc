// The functions of cuDNN that kernels/cuda calls: descriptors with attributes, what heuristics
// propose, and plans that run a graph as graph_program.h does. Proposals begin with engines that
// must be passed over: one that adds in no fixed order, one that wants too much workspace, and for
// fp32 one that would take TF32.

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/emulator/graph_program.h"
#include "tests/gpu/emulator/stream.h"

using trainyard::emulator::Clock;
using trainyard::emulator::OfferedAlgorithms;
using trainyard::emulator::OffersAttention;
using trainyard::emulator::Program;
using trainyard::emulator::ProgramOp;
using trainyard::emulator::ProgramOpKind;
using trainyard::emulator::ProgramTensor;

bool& trainyard::emulator::OffersAttention() {
  static bool offers = false;
  return offers;
}

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace {

// Engines. The last three are good, alike but for their time, and the last one's order of addition.
enum Engine : int64_t { kLoose, kLarge, kCoarse, kSlow, kFast, kBackwards };

constexpr int64_t kPlanWorkspace = 1000;
constexpr int64_t kTooMuch = int64_t{8} << 30;

float MillisecondsOf(int64_t engine) {
  return engine == kSlow ? 3.0f : engine == kFast ? 2.0f : 1.0f;
}

struct BackendDescriptor {
  cudnnBackendDescriptorType_t type = {};
  std::map<int, std::vector<char>> attributes;
  bool finalized = false;
  // Of a graph, and of what is made of one.
  std::shared_ptr<const Program> program;
  int64_t engine = -1;

  template <typename T>
  std::vector<T> All(int name) const {
    const auto at = attributes.find(name);
    if (at == attributes.end()) return {};
    std::vector<T> values(at->second.size() / sizeof(T));
    std::memcpy(values.data(), at->second.data(), values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  T One(int name, T otherwise = {}) const {
    const auto at = attributes.find(name);
    if (at != attributes.end() && at->second.size() >= sizeof(T)) {
      std::memcpy(&otherwise, at->second.data(), sizeof(T));
    }
    return otherwise;
  }
  bool Has(int name) const { return attributes.count(name) > 0; }
  const BackendDescriptor* At(int name) const {
    return One<const BackendDescriptor*>(name, nullptr);
  }
};

BackendDescriptor* Of(cudnnBackendDescriptor_t descriptor) {
  return static_cast<BackendDescriptor*>(descriptor);
}

// Plans that were serialized: what a file would hold.
std::vector<std::pair<std::shared_ptr<const Program>, int64_t>>& Serialized() {
  static auto* const plans = new std::vector<std::pair<std::shared_ptr<const Program>, int64_t>>;
  return *plans;
}

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_FLOAT:
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_NUMERICAL_NOTE:
      return sizeof(int);
    default:
      return sizeof(int64_t);
  }
}

// Operands in the order of ProgramOp; false: one is missing, or was not finalized.
bool ReadTensors(const BackendDescriptor& op, std::initializer_list<int> names, Program& program,
                 ProgramOp& to) {
  for (const int name : names) {
    const BackendDescriptor* const tensor = op.At(name);
    if (tensor == nullptr || !tensor->finalized) return false;
    const auto id = tensor->One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    program.tensors[id] = {.id = id,
                           .dims = tensor->All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
                           .strides = tensor->All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES),
                           .type = tensor->One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE),
                           .is_virtual = tensor->One<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false),
                           .by_value = tensor->One<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)};
    to.tensors.push_back(id);
  }
  return true;
}

bool ReadPointwise(const BackendDescriptor& op, Program& program, ProgramOp& to) {
  const BackendDescriptor* const how = op.At(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  if (how == nullptr || !how->finalized) return false;
  to.mode = how->One<int>(CUDNN_ATTR_POINTWISE_MODE);
  to.kind =
      to.mode == CUDNN_POINTWISE_GEN_INDEX ? ProgramOpKind::kIndex : ProgramOpKind::kPointwise;
  to.axis = how->One<int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
  if (!ReadTensors(op, {CUDNN_ATTR_OPERATION_POINTWISE_XDESC}, program, to)) return false;
  for (const int name :
       {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC}) {
    if (op.Has(name) && !ReadTensors(op, {name}, program, to)) return false;
  }
  return ReadTensors(op, {CUDNN_ATTR_OPERATION_POINTWISE_YDESC}, program, to);
}

bool ReadGeometry(const BackendDescriptor* how, ProgramOp& to) {
  if (how == nullptr || !how->finalized) return false;
  const auto same = [&](int name, int64_t& value) {
    const std::vector<int64_t> both = how->All<int64_t>(name);
    if (both.size() != 2 || both[0] != both[1]) return false;
    value = both[0];
    return true;
  };
  int64_t before = 0, dilation = 0;
  return same(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, to.stride) &&
         same(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, before) &&
         same(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, to.pad) && before == to.pad &&
         same(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilation) && dilation == 1 &&
         how->One<int>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION &&
         how->One<int>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
         how->One<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2;
}

bool ReadOperation(const BackendDescriptor& op, Program& program) {
  ProgramOp to = {};
  bool read = op.finalized;
  switch (op.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      read = read && ReadPointwise(op, program, to);
      break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
      to.kind = ProgramOpKind::kReduce;
      const BackendDescriptor* const how = op.At(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
      read = read && how != nullptr && how->finalized &&
             ReadTensors(
                 op, {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC},
                 program, to);
      if (read) to.mode = how->One<int>(CUDNN_ATTR_REDUCTION_OPERATOR);
      break;
    }
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      to.kind = ProgramOpKind::kProduct;
      read = read && op.At(CUDNN_ATTR_OPERATION_MATMUL_DESC) != nullptr &&
             ReadTensors(op,
                         {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
                          CUDNN_ATTR_OPERATION_MATMUL_CDESC},
                         program, to);
      break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      to.kind = ProgramOpKind::kReshape;
      read =
          read &&
          ReadTensors(op, {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC},
                      program, to);
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      to.kind = ProgramOpKind::kForward;
      read = read && ReadGeometry(op.At(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC), to) &&
             op.One<float>(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA) == 1 &&
             op.One<float>(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 1) == 0 &&
             ReadTensors(op,
                         {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
                         program, to);
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      to.kind = ProgramOpKind::kDataGradient;
      read = read && ReadGeometry(op.At(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC), to) &&
             op.One<float>(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA) == 1 &&
             op.One<float>(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, 1) == 0 &&
             ReadTensors(op,
                         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX},
                         program, to);
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      to.kind = ProgramOpKind::kWeightGradient;
      read = read &&
             ReadGeometry(op.At(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC), to) &&
             op.One<float>(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA) == 1 &&
             op.One<float>(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, 1) == 0 &&
             ReadTensors(op,
                         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW},
                         program, to);
      break;
    default:
      return false;
  }
  program.ops.push_back(std::move(to));
  return read;
}

cudnnStatus_t FinalizeGraph(BackendDescriptor& graph) {
  const auto program = std::make_shared<Program>();
  for (const BackendDescriptor* op :
       graph.All<const BackendDescriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    if (!ReadOperation(*op, *program)) return CUDNN_STATUS_BAD_PARAM;
  }
  if (!program->Valid()) return CUDNN_STATUS_BAD_PARAM;
  graph.program = program;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePlan(BackendDescriptor& plan) {
  if (!plan.Has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)) return CUDNN_STATUS_BAD_PARAM;
  if (plan.Has(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)) {
    const std::vector<char> text = plan.All<char>(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
    const size_t at = std::strtoul(text.data(), nullptr, 10);
    if (at == 0 || at > Serialized().size()) return CUDNN_STATUS_BAD_PARAM;
    plan.program = Serialized()[at - 1].first;
    plan.engine = Serialized()[at - 1].second;
    return CUDNN_STATUS_SUCCESS;
  }
  const BackendDescriptor* const config = plan.At(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (config == nullptr || config->program == nullptr) return CUDNN_STATUS_BAD_PARAM;
  plan.program = config->program;
  plan.engine = config->engine;
  return CUDNN_STATUS_SUCCESS;
}

bool IsTensor(const BackendDescriptor& t) {
  const size_t rank = t.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS).size();
  return rank > 0 && t.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES).size() == rank &&
         t.Has(CUDNN_ATTR_TENSOR_UNIQUE_ID) && t.Has(CUDNN_ATTR_TENSOR_DATA_TYPE) &&
         t.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) > 0;
}

std::vector<int64_t> Proposals(const Program& program, cudnnBackendHeurMode_t mode) {
  if (program.HasProduct()) {
    return OffersAttention() && mode == CUDNN_HEUR_MODE_A ? std::vector<int64_t>{kLoose, kSlow}
                                                          : std::vector<int64_t>{};
  }
  if (mode != CUDNN_HEUR_MODE_A) return {kSlow};
  std::vector<int64_t> engines = {kLoose, kLarge, kCoarse, kSlow};
  if (OfferedAlgorithms() > 1) engines.push_back(kFast);
  if (OfferedAlgorithms() > 2) engines.push_back(kBackwards);
  return engines;
}

std::vector<cudnnBackendNumericalNote_t> NotesOf(const BackendDescriptor& engine) {
  if (engine.engine == kLoose) return {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
  if (engine.engine == kCoarse) {
    return engine.program->Has16Bits()
               ? std::vector{CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}
               : std::vector{CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  }
  return {};
}

template <typename T>
cudnnStatus_t Give(const std::vector<T>& values, int64_t wanted, int64_t* count, void* to) {
  *count = static_cast<int64_t>(values.size());
  if (to == nullptr || values.empty()) return CUDNN_STATUS_SUCCESS;
  const size_t some = std::min<size_t>(values.size(), wanted);
  std::memcpy(to, values.data(), some * sizeof(T));
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "emulated"; }
void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) message[0] = '\0';
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  auto* const made = new BackendDescriptor;
  made->type = type;
  *descriptor = made;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete Of(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  if (Of(descriptor)->finalized || count < 0) return CUDNN_STATUS_BAD_PARAM;
  const char* const bytes = static_cast<const char*>(values);
  Of(descriptor)->attributes[name].assign(bytes, bytes + count * SizeOf(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  BackendDescriptor& d = *Of(descriptor);
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  if (d.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !IsTensor(d)) status = CUDNN_STATUS_BAD_PARAM;
  if (d.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) status = FinalizeGraph(d);
  if (d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) status = FinalizePlan(d);
  if (d.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    const BackendDescriptor* const graph = d.At(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    if (graph == nullptr || !graph->finalized) status = CUDNN_STATUS_BAD_PARAM;
    if (status == CUDNN_STATUS_SUCCESS) d.program = graph->program;
  }
  d.finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t wanted, int64_t* count,
                                       void* values) {
  BackendDescriptor& d = *Of(descriptor);
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const std::vector<int64_t> engines =
          Proposals(*d.program, d.One<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE));
      auto* const configs = static_cast<cudnnBackendDescriptor_t*>(values);
      *count = std::min<int64_t>(wanted, static_cast<int64_t>(engines.size()));
      for (int64_t i = 0; i < *count; ++i) {
        Of(configs[i])->program = d.program;
        Of(configs[i])->engine = engines[i];
        Of(configs[i])->finalized = true;
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
      BackendDescriptor& engine = *Of(*static_cast<cudnnBackendDescriptor_t*>(values));
      engine.program = d.program;
      engine.engine = d.engine;
      engine.finalized = true;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      return Give(NotesOf(d), wanted, count, values);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return Give(std::vector{d.engine == kLarge ? kTooMuch : kPlanWorkspace}, wanted, count,
                  values);
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: {
      if (values == nullptr) {
        Serialized().emplace_back(d.program, d.engine);
      }
      const std::string text = std::to_string(Serialized().size());
      return Give(std::vector<char>(text.c_str(), text.c_str() + text.size() + 1), wanted, count,
                  values);
    }
    default:
      return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_descriptor,
                                  cudnnBackendDescriptor_t pack_descriptor) {
  const BackendDescriptor &plan = *Of(plan_descriptor), &pack = *Of(pack_descriptor);
  if (!plan.finalized || !pack.finalized || plan.engine < kSlow) return CUDNN_STATUS_BAD_PARAM;
  if (plan.program->HasProduct() && !OffersAttention()) return CUDNN_STATUS_EXECUTION_FAILED;
  const std::vector<int64_t> ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const std::vector<void*> data = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  void* const workspace = pack.One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  std::map<int64_t, void*> memory;
  // Values are taken now, memory is read when the work runs.
  const auto values = std::make_shared<std::map<int64_t, float>>();
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto tensor = plan.program->tensors.find(ids[i]);
    if (tensor == plan.program->tensors.end()) return CUDNN_STATUS_BAD_PARAM;
    if (tensor->second.by_value) {
      (*values)[ids[i]] = *static_cast<const float*>(data[i]);
      memory[ids[i]] = &(*values)[ids[i]];
    } else {
      memory[ids[i]] = data[i];
    }
  }
  for (const auto& [id, tensor] : plan.program->tensors) {
    if (!tensor.is_virtual && memory.count(id) == 0) return CUDNN_STATUS_BAD_PARAM;
  }
  const auto work = [program = plan.program, memory, values, workspace, engine = plan.engine] {
    std::memset(workspace, 0xff, kPlanWorkspace);
    program->Run(memory, engine == kBackwards);
    Clock() += MillisecondsOf(engine);
  };
  static const char kCode = 0;
  return trainyard::emulator::Enqueue(handle->stream, &kCode, work) == cudaSuccess
             ? CUDNN_STATUS_SUCCESS
             : CUDNN_STATUS_EXECUTION_FAILED;
}
