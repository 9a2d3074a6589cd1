#pragma once

#include "executor/plan/ops/product_scratch.h"
#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<AddProduct> : ForwardOp {
  static constexpr bool kReadsNarrow = true;

  static void Retype(AddProduct& o, Typing& typing) {
    typing.ReadNarrow(o.base);
    typing.ReadNarrow(o.a);
    typing.ReadNarrow(o.b);
    typing.WriteNarrow(o.y);
  }

  // y = base + s a b^T in some columns: da = s dy b and db = s dy^T a, of those columns of dy.
  static void Differentiate(const AddProduct& f, TensorId dy, Gradient& gradient) {
    if (gradient.IsTrained(f.b)) {
      gradient.Emit(Matmul{.a = dy,
                           .b = f.a,
                           .c = gradient.OfParameter(f.b),
                           .m = f.n,
                           .n = f.k,
                           .k = f.rows,
                           .transpose_a = true,
                           .accumulate = gradient.ParameterAccumulates(f.b),
                           .scale = f.scale,
                           .a_cols = f.cols,
                           .a_first = f.first});
    }
    gradient.AddInto(f.a, [&](TensorId da, bool accumulate) {
      gradient.Emit(Matmul{.a = dy,
                           .b = f.b,
                           .c = da,
                           .m = f.rows,
                           .n = f.k,
                           .k = f.n,
                           .accumulate = accumulate,
                           .scale = f.scale,
                           .a_cols = f.cols,
                           .a_first = f.first});
    });
    gradient.Accumulate(f.base, dy);
  }

  static double Flops(const AddProduct& o) { return ProductFlops(o.rows, o.n, o.k); }
  static Scratch ScratchOf(const AddProduct& o, const Tensors& tensors) {
    const Matmul product = {.m = o.rows, .n = o.n, .k = o.k, .transpose_b = true};
    return {.cpu = CpuProductScratch(product, tensors[o.a].type, /*a_apart=*/false,
                                     tensors[o.y].type, /*c_apart=*/o.n != o.cols),
            .gpu = GpuProductScratch(product)};
  }
  static InPlace InPlacePairs(const AddProduct& o) { return {{o.base, o.y}}; }
};

}  // namespace trainyard::plan
