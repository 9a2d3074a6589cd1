#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<AddBias> : ForwardOp, NoScratch {
  // In fp32, as the residual stream that begins here.
  static void Retype(AddBias& o, Typing& typing) { typing.ReadWide(o.x); }

  static void Differentiate(const AddBias& f, TensorId dy, Gradient& gradient) {
    gradient.Accumulate(f.x, dy);
    gradient.SumRows(dy, f.bias, f.rows, f.cols);
  }

  static InPlace InPlacePairs(const AddBias& o) { return {{o.x, o.y}}; }
};

}  // namespace trainyard::plan
