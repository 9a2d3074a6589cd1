#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace trainyard::emulator {

// Puts `work` on a stream, or on the recording that it makes. It runs when somebody waits for the
// stream, as late as on any GPU: what it reads must still be there. `code` says whose it is: what
// has never run is not recorded, since a library would load its kernels then; nullptr: a copy.
cudaError_t Enqueue(cudaStream_t stream, const void* code, std::function<void()> work);

// Waits for all streams.
void RunAll();

// Milliseconds that work on streams has taken, as work itself says: what events tell.
float& Clock();

// How many algorithms cuBLASLt offers for a product, and cuDNN for a convolution, 1 to 3.
int& OfferedAlgorithms();

// Whether cuDNN knows attention: else it starts no plan for it, and our own
// kernels do it. Not at first.
bool& OffersAttention();

}  // namespace trainyard::emulator
