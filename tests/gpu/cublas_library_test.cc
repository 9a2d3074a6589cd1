// cuBLASLt is loaded at run time, and what needs no GPU of it answers.

#include "kernels/cuda/cublas_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "kernels/cuda/cublas.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {
namespace {

using ::testing::HasSubstr;

bool IsMapped() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/maps").rdbuf();
  return absl::StrContains(text.str(), "libcublasLt");
}

TEST(CublasLibrary, IsNotLoadedUntilAGpuIsOpened) {
  if (IsMapped()) GTEST_SKIP() << "another test of this process loaded it";
  if (!OpenCuda(0).ok()) {
    EXPECT_FALSE(IsMapped());
  }
  ASSERT_TRUE(LoadCublasLt().ok()) << LoadCublasLt();
  EXPECT_TRUE(IsMapped());
}

TEST(CublasLibrary, CallsReachTheFunctionOfTheirName) {
  ASSERT_TRUE(LoadCublasLt().ok()) << LoadCublasLt();
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  EXPECT_THAT(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED), HasSubstr("not supported"));

  EXPECT_GE(cublasLtGetVersion(), CUBLAS_VER_MAJOR * 10000);

  cublasLtMatmulDesc_t made = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const MatmulDescriptor product(made);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof(transposed)),
            CUBLAS_STATUS_SUCCESS);

  cublasLtMatrixLayout_t of = nullptr;
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&of, CUDA_R_32F, 4, 8, 4), CUBLAS_STATUS_SUCCESS);
  const MatrixLayout layout(of);

  cublasLtMatmulPreference_t preferred = nullptr;
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preferred), CUBLAS_STATUS_SUCCESS);
  const MatmulPreference preference(preferred);
  EXPECT_EQ(
      cublasLtMatmulPreferenceSetAttribute(preferred, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &kCublasWorkspace, sizeof(kCublasWorkspace)),
      CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace trainyard::kernels::cuda
