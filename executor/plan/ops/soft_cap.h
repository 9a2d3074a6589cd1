#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<SoftCapForward> : ForwardOp, NoScratch {
  static void Retype(SoftCapForward& o, Typing& typing) { typing.WriteAs(o.y, o.x); }

  static void Differentiate(const SoftCapForward& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.x, [&](TensorId dx) {
      gradient.Emit(SoftCapBackward{.y = f.y, .dy = dy, .dx = dx, .n = f.n, .cap = f.cap});
    });
  }

  static InPlace InPlacePairs(const SoftCapForward& o) { return {{o.x, o.y}}; }
};

template <>
struct Rules<SoftCapBackward> : BackwardOp, NoScratch {
  static InPlace InPlacePairs(const SoftCapBackward& o) { return {{o.dy, o.dx}}; }
};

}  // namespace trainyard::plan
