#include "kernels/ops/matmul.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cast.h"
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
  const void* a_data = nullptr;
  const void* b_data = nullptr;
  void* c_data = nullptr;
  const void* bias = nullptr;  // set when the product runs: it may lie in scratch
  float alpha = 1, beta = 0;
  cublasLtMatmulAlgo_t algorithm = {};
};

cudaDataType TypeOf(const Buffer& buffer) {
  return buffer.dtype == DType::kBF16  ? CUDA_R_16BF
         : buffer.dtype == DType::kF16 ? CUDA_R_16F
                                       : CUDA_R_32F;
}

// Element `i` of a buffer.
void* At(const Buffer& buffer, int64_t i) {
  return static_cast<char*>(buffer.data) + i * static_cast<int64_t>(SizeOf(buffer.dtype));
}

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
absl::StatusOr<MatrixLayout> MakeLayout(cudaDataType type, int64_t rows, int64_t cols,
                                        int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  const absl::Status made =
      ToStatus(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(cols), stride),
               "matrix layout");
  if (!made.ok()) return made;
  return MatrixLayout(layout);
}

absl::Status MakeLayouts(const Matmul& op, const MatmulPiece& piece, Product& product) {
  const auto make = [](const Buffer& of, int64_t rows, int64_t cols, MatrixLayout& to) {
    return [&, rows, cols](int64_t stride) -> absl::Status {
      absl::StatusOr<MatrixLayout> made = MakeLayout(TypeOf(of), rows, cols, stride);
      if (!made.ok()) return made.status();
      to = *std::move(made);
      return absl::OkStatus();
    };
  };
  // b stored [k, n] is n x k for the library, stored [n, k] it is k x n; likewise a.
  absl::Status status = op.transpose_b ? make(op.b, piece.k, op.n, product.a)(op.k)
                                       : make(op.b, op.n, piece.k, product.a)(op.n);
  status.Update(op.transpose_a ? make(op.a, piece.m, piece.k, product.b)(op.step_of_a())
                               : make(op.a, piece.k, piece.m, product.b)(op.step_of_a()));
  status.Update(make(op.c, op.n, piece.m, product.c)(op.step_of_c()));
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
    status.Update(
        SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    // The library takes a bias of c's type. The pointer decides about no algorithm.
    status.Update(
        SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(op.c)));
    product.bias = op.bias.data;
    status.Update(
        SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
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
  product.b_data = At(op.a, op.transpose_a ? piece.k0 * op.step_of_a() + piece.m0
                                           : piece.m0 * op.step_of_a() + piece.k0);
  product.a_data = At(op.b, op.transpose_b ? piece.k0 : piece.k0 * op.n);
  product.c_data = At(op.c, piece.m0 * op.step_of_c());
  product.alpha = op.scale;
  product.beta = op.accumulate || piece.k0 > 0 ? 1.0f : 0.0f;
  absl::Status status = MakeDescriptor(op, op.bias && piece.k0 == 0, product);
  status.Update(MakeLayouts(op, piece, product));
  if (status.ok()) status = Choose(handle, product);
  if (!status.ok()) return status;
  return product;
}

void Run(Stream& stream, cublasLtHandle_t handle, const Product& product) {
  const CudaStream& on = CudaStream::From(stream);
  const cublasStatus_t error = cublasLtMatmul(
      handle, product.descriptor.get(), &product.alpha, product.a_data, product.a.get(),
      product.b_data, product.b.get(), &product.beta, product.c_data, product.c.get(),
      product.c_data, product.c.get(), &product.algorithm, AlignWorkspace(stream.scratch),
      kCublasWorkspace, on.handle());
  if (error != CUBLAS_STATUS_SUCCESS) on.fault().Note(ToStatus(error, "matmul"));
}

// Where the bias in c's type lies: after the workspace.
void* NarrowBias(Stream& stream) {
  return static_cast<char*>(AlignWorkspace(stream.scratch)) + kCublasWorkspace;
}

// Rounds the bias to c's type and points the products at it.
void RoundBias(Stream& stream, const Matmul& op, const std::vector<Product>& products) {
  void* const bias = NarrowBias(stream);
  LaunchCast(stream, op.bias, {bias, op.c.dtype}, op.n);
  for (const Product& product : products) {
    if (product.bias == nullptr) continue;
    const absl::Status set =
        SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (!set.ok()) CudaStream::From(stream).fault().Note(set);
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const Matmul& op) {
  const DType type = op.a.dtype;
  const DType of_c = op.c.dtype == type ? type : DType::kF32;
  absl::Status status =
      RequireTypes("matmul", {{"a", op.a, type},
                              {"b", op.b, type},
                              {.name = "bias", .buffer = op.bias, .optional = true},
                              {"c", op.c, of_c}});
  status.Update(RequireElement("matmul", type));
  status.Update(RequirePositive("matmul", {{"m", op.m}, {"n", op.n}, {"k", op.k}}));
  if (status.ok() && !op.valid()) {
    status = absl::InvalidArgumentError("cuda matmul: scale or strides");
  }
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
  const bool narrow_bias = op.bias && of_c != DType::kF32;
  return Kernel{.launch =
                    [products, op, narrow_bias, handle = blas_->handle()](Stream& stream) {
                      if (narrow_bias) RoundBias(stream, op, *products);
                      for (const Product& product : *products) Run(stream, handle, product);
                    },
                .scratch_bytes = kCublasWorkspace + kWorkspaceAlign +
                                 (narrow_bias ? static_cast<size_t>(op.n) * SizeOf(of_c) : 0)};
}

}  // namespace trainyard::kernels::cuda
