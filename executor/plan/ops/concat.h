#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Concat> : ForwardOp, NoScratch {
  // In fp32, as the residual stream that begins here.
  static void Retype(Concat& o, Typing& typing) {
    typing.ReadWide(o.a);
    typing.ReadWide(o.b);
  }

  static void Differentiate(const Concat& f, TensorId dy, Gradient& gradient) {
    Split split{.x = dy, .rows = f.rows, .a_cols = f.a_cols, .b_cols = f.b_cols};
    if (f.repeat_a ? gradient.IsTrained(f.a) : gradient.Depends(f.a)) {
      split.a = gradient.NewOf(f.a, {f.rows, f.a_cols});
    }
    if (gradient.Depends(f.b)) split.b = gradient.NewLike(f.b);
    if (split.a == kNone && split.b == kNone) return;
    gradient.Emit(split);
    if (f.repeat_a) {
      gradient.SumRows(split.a, f.a, f.rows, f.a_cols);
    } else {
      gradient.Accumulate(f.a, split.a);
    }
    gradient.Accumulate(f.b, split.b);
  }
};

// In a forward graph it keeps its first part alone.
template <>
struct Rules<Split> : ForwardOp, NoScratch {
  static TensorId ResultOf(const Split& o) { return o.a; }

  static void Retype(Split& o, Typing& typing) { typing.ReadWide(o.x); }

  static void Differentiate(const Split& f, TensorId da, Gradient& gradient) {
    TY_CHECK(f.b == kNone, "a forward split keeps its first part alone");
    gradient.Overwrite(f.x, [&](TensorId dx) {
      gradient.Emit(
          Concat{.a = da, .y = dx, .rows = f.rows, .a_cols = f.a_cols, .b_cols = f.b_cols});
    });
  }
};

}  // namespace trainyard::plan
