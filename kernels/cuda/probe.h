#pragma once

#include <cuda_runtime.h>

namespace trainyard::kernels::cuda {

// cudaErrorNoKernelImageForDevice when this build holds no machine code for the current GPU.
cudaError_t ProbeKernelImage();

}  // namespace trainyard::kernels::cuda
