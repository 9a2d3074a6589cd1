#include "kernels/cuda/product.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime.h"

namespace trainyard::kernels::cuda {
namespace {

// Always ask for as many: the library does not promise that the first of one is the first of eight.
constexpr int kMostAlgorithms = 8;
// The alignment of every tensor of an arena. Kernels of the library need 16 at most; if larger
// alignments counted, the luck of the layout would make two shapes of one.
constexpr uintptr_t kMostProductAlignment = 64;
constexpr char kNoAlgorithm[] = "cuda matmul: cuBLASLt offers no algorithm";

cudaDataType TypeOf(const Buffer& buffer) {
  return buffer.dtype == DType::kBF16  ? CUDA_R_16BF
         : buffer.dtype == DType::kF16 ? CUDA_R_16F
                                       : CUDA_R_32F;
}

uint32_t ProductAlignment(uintptr_t at) {
  const uintptr_t bits = at | kMostProductAlignment;
  return static_cast<uint32_t>(bits & (~bits + 1));
}
uint32_t ProductAlignment(const void* data) {
  return ProductAlignment(reinterpret_cast<uintptr_t>(data));
}
// The scratch behind the workspace is aligned to more than counts.
uint32_t AlignmentOfA(const Product& product) {
  return ProductAlignment(reinterpret_cast<uintptr_t>(product.a_data) +
                          (product.a_data == nullptr ? product.a_offset : 0));
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
  status.Update(op.transpose_a ? make(op.a, piece.m, piece.k, product.b)(op.a_row_stride())
                               : make(op.a, piece.k, piece.m, product.b)(op.a_row_stride()));
  status.Update(make(op.c, op.n, piece.m, product.c)(op.c_row_stride()));
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
    // The library takes a bias of c's type.
    status.Update(
        SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(op.c)));
    product.bias = op.bias.data;
    status.Update(
        SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
  }
  return status;
}

// One word: types, sizes, strides, alignment, and what is done beside the product.
std::string ShapeOf(const Matmul& op, const MatmulPiece& piece, const Product& product) {
  return absl::StrCat("matmul/", TypeOf(op.a), ",", TypeOf(op.c), "/", op.transpose_a ? "T" : "N",
                      op.transpose_b ? "T" : "N", "/", piece.m, ",", op.n, ",", piece.k, "/",
                      op.a_row_stride(), ",", op.c_row_stride(), "/", AlignmentOfA(product), ",",
                      ProductAlignment(product.b_data), ",", ProductAlignment(product.c_data),
                      product.bias == nullptr ? "" : "/bias", product.beta == 0 ? "" : "/add");
}

}  // namespace

// Excludes reductions in place and in the output type, which add in the order of arrival.
absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> AlgorithmsFor(cublasLtHandle_t handle,
                                                                const Product& product) {
  cublasLtMatmulPreference_t made = nullptr;
  absl::Status status = ToStatus(cublasLtMatmulPreferenceCreate(&made), "matmul preference");
  if (!status.ok()) return status;
  const MatmulPreference preference(made);
  const uint32_t c_alignment = ProductAlignment(product.c_data);
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                             uint64_t{kCublasWorkspace}));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                             uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
  status.Update(
      SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOfA(product)));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             ProductAlignment(product.b_data)));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c_alignment));
  status.Update(SetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c_alignment));
  // The alignment of the bias pointer affects the choice, too, so it is the same for every bias.
  if (product.bias != nullptr) {
    status.Update(SetBias(product, reinterpret_cast<const void*>(kMostProductAlignment)));
  }
  if (!status.ok()) return status;
  std::vector<cublasLtMatmulHeuristicResult_t> results(kMostAlgorithms);
  int found = 0;
  status = ToStatus(
      cublasLtMatmulAlgoGetHeuristic(handle, product.descriptor.get(), product.a.get(),
                                     product.b.get(), product.c.get(), product.c.get(),
                                     preference.get(), kMostAlgorithms, results.data(), &found),
      "matmul algorithms");
  if (product.bias != nullptr) status.Update(SetBias(product, product.bias));
  if (!status.ok()) return status;
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  }
  if (algorithms.empty()) return absl::UnimplementedError(kNoAlgorithm);
  return algorithms;
}

absl::StatusOr<Product> MakeProduct(const Matmul& op, const MatmulPiece& piece) {
  Product product;
  const int64_t first = op.transpose_a ? piece.k0 * op.a_row_stride() + piece.m0
                                       : piece.m0 * op.a_row_stride() + piece.k0;
  product.b_data = op.a.From(first).data;
  product.a_offset = (op.transpose_b ? piece.k0 : piece.k0 * op.n) * SizeOf(op.b.dtype);
  if (op.b) product.a_data = static_cast<char*>(op.b.data) + product.a_offset;
  product.c_data = op.c.From(piece.m0 * op.c_row_stride()).data;
  product.alpha = op.scale;
  product.beta = op.accumulate || piece.k0 > 0 ? 1.0f : 0.0f;
  absl::Status status = MakeDescriptor(op, op.bias && piece.k0 == 0, product);
  status.Update(MakeLayouts(op, piece, product));
  if (!status.ok()) return status;
  product.shape = ShapeOf(op, piece, product);
  return product;
}

cublasStatus_t Enqueue(Stream& stream, cublasLtHandle_t handle, const Product& product) {
  return cublasLtMatmul(handle, product.descriptor.get(), &product.alpha, ADataOf(product, stream),
                        product.a.get(), product.b_data, product.b.get(), &product.beta,
                        product.c_data, product.c.get(), product.c_data, product.c.get(),
                        &product.algorithm, AlignWorkspace(stream.scratch), kCublasWorkspace,
                        CudaStream::From(stream).handle());
}

absl::Status SetBias(const Product& product, const void* bias) {
  return SetAttribute(product.descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

}  // namespace trainyard::kernels::cuda
