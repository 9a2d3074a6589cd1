#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<NormalizeImages> : ForwardOp, NoScratch {
  // Images are narrow when nothing reads them in fp32.
  static void Retype(NormalizeImages& o, Typing& typing) {
    if (!typing.IsReadWide(o.y)) typing.WriteNarrow(o.y);
  }

  // Nothing that is trained comes before the bytes of an image.
  static void Differentiate(const NormalizeImages& f, TensorId, Gradient& gradient) {
    TY_CHECK(false, gradient.graph()[f.y].name, " has a gradient");
  }
};

}  // namespace trainyard::plan
