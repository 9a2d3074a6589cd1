#pragma once

#include "executor/plan/ops/product_scratch.h"
#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Matmul> : ForwardOp {
  static constexpr bool kReadsNarrow = true;

  static TensorId ResultOf(const Matmul& o) { return o.c; }

  static void Retype(Matmul& o, Typing& typing) {
    typing.ReadNarrow(o.a);
    typing.ReadNarrow(o.b);
    typing.WriteProduct(o.c);
  }

  // c = op(a) op(b): da = dc op(b)^T (or its transpose), db alike.
  static void Differentiate(const Matmul& f, TensorId dy, Gradient& gradient) {
    TY_CHECK(!f.accumulate && !f.transpose_a, "forward matmuls neither accumulate nor transpose a");
    const TensorId dc = gradient.InTypeOf(f.a, dy);
    const auto input = [&] {
      gradient.AddInto(f.a, [&](TensorId da, bool accumulate) {
        gradient.Emit(Matmul{.a = dc,
                             .b = f.b,
                             .c = da,
                             .m = f.m,
                             .n = f.k,
                             .k = f.n,
                             .transpose_b = !f.transpose_b,
                             .accumulate = accumulate});
      });
    };
    // A copy that only this step needs may be gone before its weight's gradient, twice its size,
    // comes.
    const bool input_first =
        gradient.graph()[f.b].kind == TensorKind::kWeightCopy && !gradient.accumulates();
    if (input_first) input();
    const auto weight = [&](TensorId db, bool accumulate) {
      EmitWeightGradient(f, dc, db, accumulate, gradient);
    };
    if (gradient.IsTrained(f.b)) {
      weight(gradient.OfParameter(f.b), gradient.ParameterAccumulates(f.b));
    } else {
      gradient.AddInto(f.b, weight);
    }
    gradient.SumRows(dy, f.bias, f.m, f.n);
    if (!input_first) input();
  }

  static double Flops(const Matmul& o) { return ProductFlops(o.m, o.n, o.k); }
  static Scratch ScratchOf(const Matmul& o, const Tensors& tensors) {
    const auto apart = [&](TensorId id) { return tensors[id].row_stride > 0; };
    const bool narrow = SizeOf(tensors[o.a].type) == 2 && SizeOf(tensors[o.c].type) == 2;
    return {.cpu = CpuProductScratch(o, tensors[o.a].type, o.a_cols > 0 || apart(o.a),
                                     tensors[o.c].type, apart(o.c)),
            .gpu = GpuProductScratch(o, narrow ? tensors[o.a].row_stride : 0,
                                     narrow ? tensors[o.c].row_stride : 0)};
  }

 private:
  // b [k, n]: db = a^T dc. b [n, k]: db = dc^T a.
  static void EmitWeightGradient(const Matmul& f, TensorId dc, TensorId db, bool accumulate,
                                 Gradient& gradient) {
    const bool stored_nk = f.transpose_b;
    gradient.Emit(Matmul{.a = stored_nk ? dc : f.a,
                         .b = stored_nk ? f.a : dc,
                         .c = db,
                         .m = stored_nk ? f.n : f.k,
                         .n = stored_nk ? f.k : f.n,
                         .k = f.m,
                         .transpose_a = true,
                         .accumulate = accumulate});
  }
};

}  // namespace trainyard::plan
