#pragma once

#include "absl/strings/string_view.h"
#include "kernels/buffer.h"

namespace trainyard::kernels::cuda {

// Floating-point operations per second of products with operands of `type`, summed in fp32, that
// NVIDIA's data sheets promise for the GPU that names itself so; 0 where we know of none.
double PeakFlops(absl::string_view gpu, DType type);

}  // namespace trainyard::kernels::cuda
