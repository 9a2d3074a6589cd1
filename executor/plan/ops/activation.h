#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<ActivationForward> : ForwardOp, NoScratch {
  static constexpr bool kKeepsResidualStream = true;

  // The slope of a relu can be read from its output, so that its input need not be kept.
  static bool IsRelu(ActivationKind kind) {
    return kind == ActivationKind::kRelu || kind == ActivationKind::kRelu6;
  }

  static void Retype(ActivationForward& o, Typing& typing) { typing.WriteAs(o.y, o.x); }

  static void Differentiate(const ActivationForward& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.x, [&](TensorId dx) {
      gradient.Emit(ActivationBackward{
          .kind = f.kind, .x = IsRelu(f.kind) ? f.y : f.x, .dy = dy, .dx = dx, .n = f.n});
    });
  }

  static InPlace InPlacePairs(const ActivationForward& o) {
    return IsRelu(o.kind) ? InPlace{{o.x, o.y}} : InPlace{};
  }
};

template <>
struct Rules<ActivationBackward> : BackwardOp, NoScratch {
  static InPlace InPlacePairs(const ActivationBackward& o) { return {{o.dy, o.dx}}; }
};

}  // namespace trainyard::plan
