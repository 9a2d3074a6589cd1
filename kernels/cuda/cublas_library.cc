// The functions of cublasLt.h that this back end calls, each passed on to the loaded library:
// callers need not know that it is not linked.

#include "kernels/cuda/cublas_library.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {
namespace {

struct Library {
  void* handle = nullptr;  // never closed
  std::string error;
};

const Library& TheLibrary() {
  // The header's major version is the interface that the library's name promises.
  static const Library* const library = [] {
    const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
    auto* const loaded = new Library{.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)};
    if (loaded->handle == nullptr) loaded->error = dlerror();
    return loaded;
  }();
  return *library;
}

// The library's function `name`; kWrapper is the function of the same name and type here.
template <auto kWrapper>
decltype(kWrapper) Real(const char* name) {
  static const auto function = [name] {
    void* const handle = TheLibrary().handle;
    void* const found = handle == nullptr ? nullptr : dlsym(handle, name);
    if (found == nullptr) {
      std::fprintf(stderr, "%s: cuBLASLt lacks it, or is not loaded: %s\n", name,
                   TheLibrary().error.c_str());
      std::abort();
    }
    return reinterpret_cast<decltype(kWrapper)>(found);
  }();
  return function;
}

}  // namespace

absl::Status LoadCublasLt() {
  const Library& library = TheLibrary();
  if (library.handle != nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cuBLASLt cannot be loaded: ", library.error));
}

}  // namespace trainyard::kernels::cuda

using trainyard::kernels::cuda::Real;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return Real<&cublasLtCreate>("cublasLtCreate")(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return Real<&cublasLtDestroy>("cublasLtDestroy")(handle);
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return Real<&cublasLtGetStatusName>("cublasLtGetStatusName")(status);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return Real<&cublasLtGetStatusString>("cublasLtGetStatusString")(status);
}

size_t cublasLtGetVersion() { return Real<&cublasLtGetVersion>("cublasLtGetVersion")(); }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  return Real<&cublasLtMatmul>("cublasLtMatmul")(handle, product, alpha, a, a_layout, b, b_layout,
                                                 beta, c, c_layout, d, d_layout, algorithm,
                                                 workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  return Real<&cublasLtMatmulAlgoCheck>("cublasLtMatmulAlgoCheck")(handle, product, a, b, c, d,
                                                                   algorithm, result);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  return Real<&cublasLtMatmulAlgoGetHeuristic>("cublasLtMatmulAlgoGetHeuristic")(
      handle, product, a, b, c, d, preference, wanted, results, found);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return Real<&cublasLtMatmulDescCreate>("cublasLtMatmulDescCreate")(made, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return Real<&cublasLtMatmulDescDestroy>("cublasLtMatmulDescDestroy")(product);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return Real<&cublasLtMatmulDescSetAttribute>("cublasLtMatmulDescSetAttribute")(product, attribute,
                                                                                 value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return Real<&cublasLtMatmulPreferenceCreate>("cublasLtMatmulPreferenceCreate")(made);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Real<&cublasLtMatmulPreferenceDestroy>("cublasLtMatmulPreferenceDestroy")(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return Real<&cublasLtMatmulPreferenceSetAttribute>("cublasLtMatmulPreferenceSetAttribute")(
      preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return Real<&cublasLtMatrixLayoutCreate>("cublasLtMatrixLayoutCreate")(made, type, rows, cols,
                                                                         ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Real<&cublasLtMatrixLayoutDestroy>("cublasLtMatrixLayoutDestroy")(layout);
}

}  // extern "C"
