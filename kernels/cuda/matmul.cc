#include "kernels/ops/matmul.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/matmul_tuner.h"
#include "kernels/cuda/product.h"

namespace trainyard::kernels::cuda {
namespace {

struct Piece {
  MatmulPiece of_op;
  Product product;
};

// n and k of the library's product (kernels/scratch/cuda.h).
ProductShape Grown(const Matmul& op) {
  if (SizeOf(op.a.dtype) != 2 || SizeOf(op.c.dtype) != 2) return {op.n, op.k};
  const auto stride = [](const Buffer& of) { return of.padded ? of.row_stride : 0; };
  return PaddedProduct(op.n, op.k, op.transpose_a, op.transpose_b, stride(op.a), stride(op.c));
}

struct Products {
  Matmul given;
  Matmul op;  // the library's: it may have grown, with a b in scratch
  std::vector<Piece> pieces;

  bool has_grown() const { return !op.b; }
  bool narrow_bias() const { return op.bias && op.c.dtype != DType::kF32; }
  size_t padded_bytes() const { return has_grown() ? PaddedProductBytes({op.n, op.k}) : 0; }
  size_t bias_bytes() const { return narrow_bias() ? op.n * SizeOf(op.c.dtype) : 0; }

  void Run(Stream& stream, cublasLtHandle_t handle) const {
    if (has_grown()) WritePadding(stream);
    if (narrow_bias()) {
      LaunchCast(stream, given.bias, {PointAtBias(stream), op.c.dtype}, given.n);
    }
    for (const Piece& piece : pieces) {
      const cublasStatus_t error = Enqueue(stream, handle, piece.product);
      if (error == CUBLAS_STATUS_SUCCESS) continue;
      CudaStream::From(stream).fault().Note(ToStatus(error, "matmul"));
    }
  }

  void Tune(Stream& stream, MatmulTuner& tuner) {
    void* const bias = op.bias ? PointAtBias(stream) : nullptr;
    for (Piece& piece : pieces) {
      tuner.Measure(stream, op, piece.of_op, piece.product.bias == nullptr ? nullptr : bias,
                    piece.product);
    }
  }

  // Returns where the bias in c's type lies, in place or in scratch behind b, and points the
  // products at it.
  void* PointAtBias(Stream& stream) const {
    void* const bias = narrow_bias() ? BehindWorkspace(stream) + padded_bytes() : op.bias.data;
    for (const Piece& piece : pieces) {
      if (piece.product.bias == nullptr) continue;
      CudaStream::From(stream).fault().Note(SetBias(piece.product, bias));
    }
    return bias;
  }

 private:
  // The copy of b that ends in zeros, and zeros wherever they meet what lies between rows of a.
  void WritePadding(Stream& stream) const {
    const CudaStream& on = CudaStream::From(stream);
    const int64_t each = SizeOf(op.a.dtype), rows = given.n * given.k * each;
    char* const b = BehindWorkspace(stream);
    on.fault().Note(cudaMemcpyAsync(b, given.b.data, rows, cudaMemcpyDeviceToDevice, on.handle()),
                    "matmul");
    on.fault().Note(cudaMemsetAsync(b + rows, 0, op.n * op.k * each - rows, on.handle()), "matmul");
    if (narrow_bias()) {
      on.fault().Note(cudaMemsetAsync(b + padded_bytes(), 0, bias_bytes(), on.handle()), "matmul");
    }
    if (op.k == given.k) return;
    on.fault().Note(cudaMemset2DAsync(given.a.From(given.k).data, given.a_row_stride() * each, 0,
                                      (op.k - given.k) * each, given.m, on.handle()),
                    "matmul");
  }
};

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const Matmul& asked) {
  const Matmul given = asked.OnColumns();
  Matmul op = given;
  const ProductShape grown = Grown(given);
  if (grown.n != op.n || grown.k != op.k) {
    op.n = grown.n, op.k = grown.k;
    op.b.data = nullptr;
  }
  const absl::StatusOr<std::vector<MatmulPiece>> cut = CutMatmul(op, kMaxMatmulElements);
  if (!cut.ok()) return cut.status();
  cudaSetDevice(index_);
  // Shared, because a std::function must be copyable: every copy of the kernel holds the products.
  const auto products = std::make_shared<Products>(Products{.given = given, .op = op});
  for (const MatmulPiece& of_op : *cut) {
    absl::StatusOr<Product> product = MakeProduct(op, of_op);
    const absl::Status status = product.ok() ? tuner_.Choose(*product) : product.status();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(status.message(), " (m ", op.m, ", n ", op.n,
                                                      ", k ", op.k, ")"));
    }
    products->pieces.push_back({of_op, *std::move(product)});
  }
  return Kernel{.launch = [products, handle = blas_->handle()](
                              Stream& stream) { products->Run(stream, handle); },
                .scratch_bytes = kCublasWorkspace + kWorkspaceAlign + products->padded_bytes() +
                                 products->bias_bytes(),
                .tune = [products, this](Stream& stream) { products->Tune(stream, tuner_); }};
}

}  // namespace trainyard::kernels::cuda
