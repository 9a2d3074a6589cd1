#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<Rotary> : ForwardOp, NoScratch {
  static void Retype(Rotary& o, Typing& typing) { typing.WriteAs(o.y, o.x); }

  static void Differentiate(const Rotary& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.x, [&](TensorId dx) {
      Rotary backward = f;
      backward.x = dy;
      backward.y = dx;
      backward.inverse = !f.inverse;
      gradient.Emit(backward);
    });
  }

  static InPlace InPlacePairs(const Rotary& o) { return {{o.x, o.y}}; }
};

}  // namespace trainyard::plan
