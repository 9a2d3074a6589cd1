#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Says that x is there from now on: another rank has sent it. Nothing is computed.
template <typename T>
struct ArriveOf {
  static constexpr const char* kName = "arrive";
  T x;
  TY_FIELDS(Read(x, Any))
};
using Arrive = ArriveOf<Buffer>;

}  // namespace trainyard::kernels
