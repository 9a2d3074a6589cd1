#pragma once

#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// y = x, n elements, at least one of the two f32.
void LaunchCast(Stream& stream, const Buffer& x, const Buffer& y, int64_t n);

}  // namespace trainyard::kernels::cuda
