#include "kernels/ops/matmul.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/matmul_pieces.h"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

// One call of cublasLtMatmul. The library counts columns first, where our rows are its columns; so
// it computes c^T [n, m] = op(b)^T op(a)^T, with b as its A and a as its B. The bias, one per row
// of c^T, is then exactly its bias epilogue.
struct Product {
  MatmulDescriptor descriptor;
  MatrixLayout a, b, c;  // as the library names them
  const float* a_data = nullptr;
  const float* b_data = nullptr;
  float* c_data = nullptr;
  float beta = 0;
  cublasLtMatmulAlgo_t algorithm = {};
};

uint32_t AlignmentOf(const void* data) {
  const auto at = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uintptr_t>(at & (~at + 1), kWorkspaceAlign));
}

template <typename T>
absl::Status SetAttribute(const MatmulDescriptor& d, cublasLtMatmulDescAttributes_t name, T value) {
  return ToStatus(cublasLtMatmulDescSetAttribute(d.get(), name, &value, sizeof(value)),
                  "matmul descriptor");
}

template <typename T>
absl::Status SetAttribute(const MatmulPreference& p, cublasLtMatmulPreferenceAttributes_t name,
                          T value) {
  return ToStatus(cublasLtMatmulPreferenceSetAttribute(p.get(), name, &value, sizeof(value)),
                  "matmul preference");
}

// `rows` run along memory; `stride` elements lie between the starts of two columns.
absl::StatusOr<MatrixLayout> MakeLayout(int64_t rows, int64_t cols, int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  const absl::Status made =
      ToStatus(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(cols), stride),
               "matrix layout");
  if (!made.ok()) return made;
  return MatrixLayout(layout);
}

absl::Status MakeLayouts(const Matmul& op, const MatmulPiece& piece, Product& product) {
  const auto make = [](int64_t rows, int64_t cols, MatrixLayout& to) {
    return [&, rows, cols](int64_t stride) -> absl::Status {
      absl::StatusOr<MatrixLayout> made = MakeLayout(rows, cols, stride);
      if (!made.ok()) return made.status();
      to = *std::move(made);
      return absl::OkStatus();
    };
  };
  // b stored [k, n] is n x k for the library, stored [n, k] it is k x n; likewise a.
  absl::Status status =
      op.transpose_b ? make(piece.k, op.n, product.a)(op.k) : make(op.n, piece.k, product.a)(op.n);
  status.Update(op.transpose_a ? make(piece.m, piece.k, product.b)(op.m)
                               : make(piece.k, piece.m, product.b)(op.k));
  status.Update(make(op.n, piece.m, product.c)(op.n));
  return status;
}

absl::Status MakeDescriptor(const Matmul& op, bool with_bias, Product& product) {
  // COMPUTE_32F keeps fp32 throughout; TF32 would be COMPUTE_32F_FAST_TF32.
  cublasLtMatmulDesc_t descriptor = nullptr;
  absl::Status status = ToStatus(
      cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul descriptor");
  if (!status.ok()) return status;
  product.descriptor.reset(descriptor);
  const cublasOperation_t first = op.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = op.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  status.Update(SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_TRANSA, first));
  status.Update(SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_TRANSB, second));
  if (with_bias) {
    const void* bias = op.bias.As<float>();
    status.Update(
        SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    status.Update(SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  }
  return status;
}

// The library's own first choice among algorithms that add in a fixed order: no reduction in place
// and none in the output type.
absl::Status Choose(cublasLtHandle_t handle, Product& product) {
  cublasLtMatmulPreference_t made = nullptr;
  absl::Status status = ToStatus(cublasLtMatmulPreferenceCreate(&made), "matmul preference");
  if (!status.ok()) return status;
  const MatmulPreference preference(made);
  const uint32_t c_alignment = AlignmentOf(product.c_data);
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                             uint64_t{kCublasWorkspace}));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                             uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                             AlignmentOf(product.a_data)));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             AlignmentOf(product.b_data)));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c_alignment));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c_alignment));
  if (!status.ok()) return status;
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  status = ToStatus(cublasLtMatmulAlgoGetHeuristic(
                        handle, product.descriptor.get(), product.a.get(), product.b.get(),
                        product.c.get(), product.c.get(), preference.get(), 1, &best, &found),
                    "matmul algorithms");
  if (!status.ok()) return status;
  if (found == 0) return absl::UnimplementedError("cuda matmul: cuBLASLt offers no algorithm");
  product.algorithm = best.algo;
  return absl::OkStatus();
}

absl::StatusOr<Product> MakeProduct(cublasLtHandle_t handle, const Matmul& op,
                                    const MatmulPiece& piece) {
  Product product;
  const float* a = op.a.As<float>();
  const float* b = op.b.As<float>();
  product.b_data = op.transpose_a ? a + piece.k0 * op.m + piece.m0 : a + piece.m0 * op.k + piece.k0;
  product.a_data = op.transpose_b ? b + piece.k0 : b + piece.k0 * op.n;
  product.c_data = op.c.As<float>() + piece.m0 * op.n;
  product.beta = op.accumulate || piece.k0 > 0 ? 1.0f : 0.0f;
  absl::Status status = MakeDescriptor(op, op.bias && piece.k0 == 0, product);
  status.Update(MakeLayouts(op, piece, product));
  if (status.ok()) status = Choose(handle, product);
  if (!status.ok()) return status;
  return product;
}

void Run(Stream& stream, cublasLtHandle_t handle, const Product& product) {
  const CudaStream& on = CudaStream::From(stream);
  const float one = 1.0f;
  const cublasStatus_t error =
      cublasLtMatmul(handle, product.descriptor.get(), &one, product.a_data, product.a.get(),
                     product.b_data, product.b.get(), &product.beta, product.c_data,
                     product.c.get(), product.c_data, product.c.get(), &product.algorithm,
                     AlignWorkspace(stream.scratch), kCublasWorkspace, on.handle());
  if (error != CUBLAS_STATUS_SUCCESS) on.fault().Note(ToStatus(error, "matmul"));
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const Matmul& op) {
  absl::Status status =
      RequireTypes("matmul", {{"a", op.a},
                              {"b", op.b},
                              {.name = "bias", .buffer = op.bias, .optional = true},
                              {"c", op.c}});
  status.Update(RequirePositive("matmul", {{"m", op.m}, {"n", op.n}, {"k", op.k}}));
  if (!status.ok()) return status;
  const absl::StatusOr<std::vector<MatmulPiece>> pieces = CutMatmul(op, kMaxMatmulElements);
  if (!pieces.ok()) return pieces.status();
  cudaSetDevice(index_);
  // Shared, because a std::function must be copyable: every copy of the kernel holds the products.
  const auto products = std::make_shared<std::vector<Product>>();
  for (const MatmulPiece& piece : *pieces) {
    absl::StatusOr<Product> product = MakeProduct(blas_->handle(), op, piece);
    if (!product.ok()) {
      return absl::Status(
          product.status().code(),
          absl::StrCat(product.status().message(), " (m ", op.m, ", n ", op.n, ", k ", op.k, ")"));
    }
    products->push_back(*std::move(product));
  }
  return Kernel{.launch =
                    [products, handle = blas_->handle()](Stream& stream) {
                      for (const Product& product : *products) Run(stream, handle, product);
                    },
                .scratch_bytes = kCublasWorkspace + kWorkspaceAlign};
}

}  // namespace trainyard::kernels::cuda
