#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Dropout> : ForwardOp, NoScratch {
  static constexpr bool kKeepsResidualStream = true;

  static void Retype(Dropout& o, Typing& typing) { typing.WriteAs(o.y, o.x); }

  static void Differentiate(const Dropout& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.x, [&](TensorId dx) {
      Dropout backward = f;
      backward.x = dy;
      backward.y = dx;
      gradient.Emit(backward);
    });
  }

  static InPlace InPlacePairs(const Dropout& o) { return {{o.x, o.y}}; }
};

}  // namespace trainyard::plan
