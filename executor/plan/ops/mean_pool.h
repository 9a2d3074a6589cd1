#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<MeanPoolForward> : ForwardOp, NoScratch {
  static void Retype(MeanPoolForward& o, Typing& typing) { typing.WriteAs(o.y, o.x); }

  static void Differentiate(const MeanPoolForward& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.x, [&](TensorId dx) {
      gradient.Emit(MeanPoolBackward{
          .dy = dy, .dx = dx, .batch = f.batch, .pixels = f.pixels, .channels = f.channels});
    });
  }
};

template <>
struct Rules<MeanPoolBackward> : BackwardOp, NoScratch {};

}  // namespace trainyard::plan
