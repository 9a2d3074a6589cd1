#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/interaction.h"

namespace trainyard::plan {

// Of the products above the diagonal.
template <typename O>
double InteractionFlops(const O& o) {
  return static_cast<double>(o.batch * o.width) * static_cast<double>(o.count * (o.count + 1));
}

template <>
struct Rules<InteractionForward> : ForwardOp {
  static void Retype(InteractionForward& o, Typing& typing) {
    typing.ReadNarrow(o.x);
    typing.ReadNarrow(o.e);
    typing.WriteNarrow(o.y);
  }

  static void Differentiate(const InteractionForward& f, TensorId dy, Gradient& gradient) {
    const TensorId dx = gradient.Depends(f.x) ? gradient.NewLike(f.x) : kNone;
    const TensorId de = gradient.Depends(f.e) ? gradient.NewLike(f.e) : kNone;
    gradient.Emit(InteractionBackward{.dy = dy,
                                      .x = f.x,
                                      .e = f.e,
                                      .dx = dx,
                                      .de = de,
                                      .batch = f.batch,
                                      .count = f.count,
                                      .width = f.width});
    gradient.Accumulate(f.x, dx);
    gradient.Accumulate(f.e, de);
  }

  static double Flops(const InteractionForward& o) { return InteractionFlops(o); }
  static Scratch ScratchOf(const InteractionForward& o, const Tensors&) {
    return {.cpu = kernels::scratch::Interaction(o.count, o.width, kThreads)};
  }
};

template <>
struct Rules<InteractionBackward> : BackwardOp {
  // The gradient of each product takes two.
  static double Flops(const InteractionBackward& o) { return 2 * InteractionFlops(o); }
  static Scratch ScratchOf(const InteractionBackward& o, const Tensors&) {
    return {.cpu = kernels::scratch::Interaction(o.count, o.width, kThreads)};
  }
};

}  // namespace trainyard::plan
