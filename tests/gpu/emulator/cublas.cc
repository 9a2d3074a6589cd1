// The functions of cuBLASLt that kernels/cuda calls, in plain loops: column-major products of fp32,
// bf16 or fp16 with an optional bias per row, which must be of the result's type. What the caller
// leaves out or contradicts is refused.

#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "element.h"
#include "kernels/cuda/cublas_library.h"
#include "tests/gpu/emulator/stream.h"

int& trainyard::emulator::OfferedAlgorithms() {
  static int offered = 1;
  return offered;
}

absl::Status trainyard::kernels::cuda::LoadCublasLt() { return absl::OkStatus(); }

namespace {

using trainyard::emulator::Element;
using trainyard::emulator::Get;
using trainyard::emulator::OfferedAlgorithms;
using trainyard::emulator::Put;

bool ElementOf(cudaDataType type, Element& to) {
  to = type == CUDA_R_16BF ? Element::kBF16 : type == CUDA_R_16F ? Element::kF16 : Element::kF32;
  return type == CUDA_R_16BF || type == CUDA_R_16F || type == CUDA_R_32F;
}

struct Descriptor {
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType bias_type = CUDA_R_32F;
};
struct Layout {
  Element type;
  uint64_t rows, cols;
  int64_t stride;
  bool Covers(uint64_t want_rows, uint64_t want_cols) const {
    return rows == want_rows && cols == want_cols && stride >= static_cast<int64_t>(rows);
  }
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};
constexpr uint64_t kAlgorithm = 0x7472;
constexpr size_t kWorkspace = 4096;

// Three algorithms, best guess first: one that takes its time, a faster one that gives the same
// bits, and the fastest, which adds from the other end.
constexpr uint64_t kAlgorithms = 3;
constexpr float kMilliseconds[kAlgorithms] = {3, 2, 1};

bool IsAlgorithm(const cublasLtMatmulAlgo_t& algorithm) {
  return algorithm.data[0] == kAlgorithm && algorithm.data[1] < kAlgorithms;
}

float SumFromTheEnd(const std::vector<float>& terms) {
  float sum = 0;
  for (size_t k = terms.size(); k-- > 0;) sum += terms[k];
  return sum;
}

template <typename T, typename Handle>
T* As(Handle handle) {
  return const_cast<T*>(reinterpret_cast<const T*>(handle));
}

template <typename T>
cublasStatus_t Take(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// m x n = op(a) op(b) over k.
bool Agree(const Descriptor& d, const Layout& a, const Layout& b, const Layout& c, uint64_t& k) {
  k = d.op_a == CUBLAS_OP_N ? a.cols : a.rows;
  Element of_bias;
  const bool biased = d.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (a.type != b.type || (c.type != a.type && c.type != Element::kF32)) return false;
  if (biased && !(ElementOf(d.bias_type, of_bias) && of_bias == c.type)) return false;
  return (d.op_a == CUBLAS_OP_N ? a.Covers(c.rows, k) : a.Covers(k, c.rows)) &&
         (d.op_b == CUBLAS_OP_N ? b.Covers(k, c.cols) : b.Covers(c.cols, k)) &&
         c.Covers(c.rows, c.cols);
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t) { return "cublasStatus"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Descriptor);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete As<Descriptor>(d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t bytes) {
  Descriptor& d = *As<Descriptor>(desc);
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Take(d.op_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Take(d.op_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Take(d.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Take(d.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Take(d.bias, value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
  Element element;
  if (!ElementOf(type, element)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{element, rows, cols, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete As<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete As<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, size_t bytes) {
  Preference& p = *As<Preference>(preference);
  uint32_t alignment = 0;
  switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Take(p.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Take(p.reductions, value, bytes);
    default:
      return Take(alignment, value, bytes);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  uint64_t k = 0;
  const Preference& p = *As<Preference>(preference);
  if (c != d || !Agree(*As<Descriptor>(desc), *As<Layout>(a), *As<Layout>(b), *As<Layout>(c), k)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool ordered = p.reductions == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  *found = p.workspace >= kWorkspace && ordered ? std::min(wanted, OfferedAlgorithms()) : 0;
  for (int i = 0; i < *found; ++i) {
    results[i] = {};
    results[i].algo.data[0] = kAlgorithm;
    results[i].algo.data[1] = static_cast<uint64_t>(i);
    results[i].workspaceSize = kWorkspace;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  uint64_t k = 0;
  if (c != d || !Agree(*As<Descriptor>(desc), *As<Layout>(a), *As<Layout>(b), *As<Layout>(c), k)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!IsAlgorithm(*algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->workspaceSize = kWorkspace;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return 130100; }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Descriptor how = *As<Descriptor>(desc);
  const Layout la = *As<Layout>(a_layout), lb = *As<Layout>(b_layout), lc = *As<Layout>(c_layout);
  uint64_t terms = 0;
  if (!IsAlgorithm(*algorithm) || workspace_bytes < kWorkspace || !Agree(how, la, lb, lc, terms)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float one = *static_cast<const float*>(alpha), old = *static_cast<const float*>(beta);
  const uint64_t which = algorithm->data[1];
  const auto multiply = [=] {
    std::memset(workspace, 0xff, kWorkspace);
    trainyard::emulator::Clock() += kMilliseconds[which];
    std::vector<float> products(terms);
    for (uint64_t j = 0; j < lc.cols; ++j) {
      for (uint64_t i = 0; i < lc.rows; ++i) {
        double sum = 0;
        for (uint64_t k = 0; k < terms; ++k) {
          const float left =
              Get(la.type, a, how.op_a == CUBLAS_OP_N ? i + k * la.stride : k + i * la.stride);
          const float right =
              Get(lb.type, b, how.op_b == CUBLAS_OP_N ? k + j * lb.stride : j + k * lb.stride);
          sum += double{left} * right;
          products[k] = left * right;
        }
        if (which == kAlgorithms - 1) sum = SumFromTheEnd(products);
        sum *= one;
        if (old != 0) sum += double{old} * Get(lc.type, c, i + j * lc.stride);
        if (how.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += Get(lc.type, how.bias, i);
        Put(lc.type, d, i + j * lc.stride, static_cast<float>(sum));
      }
    }
  };
  static const char kCode = 0;
  return trainyard::emulator::Enqueue(stream, &kCode, multiply) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}
