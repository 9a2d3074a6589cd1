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

struct Products {
  Matmul op;
  std::vector<Piece> pieces;

  bool narrow_bias() const { return op.bias && op.c.dtype != DType::kF32; }

  void Run(Stream& stream, cublasLtHandle_t handle) const {
    if (narrow_bias()) LaunchCast(stream, op.bias, {PointAtBias(stream), op.c.dtype}, op.n);
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

  // Returns where the bias in c's type lies, in place or in scratch behind the workspace, and
  // points the products at it.
  void* PointAtBias(Stream& stream) const {
    void* const bias = narrow_bias()
                           ? static_cast<char*>(AlignWorkspace(stream.scratch)) + kCublasWorkspace
                           : op.bias.data;
    for (const Piece& piece : pieces) {
      if (piece.product.bias == nullptr) continue;
      CudaStream::From(stream).fault().Note(SetBias(piece.product, bias));
    }
    return bias;
  }
};

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const Matmul& given) {
  const Matmul op = given.OnColumns();
  const absl::StatusOr<std::vector<MatmulPiece>> cut = CutMatmul(op, kMaxMatmulElements);
  if (!cut.ok()) return cut.status();
  cudaSetDevice(index_);
  // Shared, because a std::function must be copyable: every copy of the kernel holds the products.
  const auto products = std::make_shared<Products>(Products{.op = op});
  for (const MatmulPiece& of_op : *cut) {
    absl::StatusOr<Product> product = MakeProduct(op, of_op);
    const absl::Status status = product.ok() ? tuner_.Choose(*product) : product.status();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(status.message(), " (m ", op.m, ", n ", op.n,
                                                      ", k ", op.k, ")"));
    }
    products->pieces.push_back({of_op, *std::move(product)});
  }
  const size_t bias_bytes = products->narrow_bias() ? op.n * SizeOf(op.c.dtype) : 0;
  return Kernel{.launch = [products, handle = blas_->handle()](
                              Stream& stream) { products->Run(stream, handle); },
                .scratch_bytes = kCublasWorkspace + kWorkspaceAlign + bias_bytes,
                .tune = [products, this](Stream& stream) { products->Tune(stream, tuner_); }};
}

}  // namespace trainyard::kernels::cuda
