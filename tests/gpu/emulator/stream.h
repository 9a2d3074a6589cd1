#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace trainyard::emulator {

// Puts `work` on a stream, or on the recording that it makes. It runs when somebody waits for the
// stream, as late as on any GPU: what it reads must still be there. `code` says whose it is: what
// has never run is not recorded, since a library would load its kernels then; nullptr: a copy.
cudaError_t Enqueue(cudaStream_t stream, const void* code, std::function<void()> work);

// Work that may have to wait for something outside of this process: each call continues it as far
// as that goes now, and returns whether it is done.
using Advance = std::function<bool()>;

// Enqueue for such work. `issue` is called when the work is put on the stream, or whenever a graph
// with it is launched, and makes what runs then; of several streams, too, it is called in order.
cudaError_t EnqueueIssued(cudaStream_t stream, std::function<Advance()> issue);

// Whether the stream is being recorded; and ends that for good, as what cannot be recorded does.
bool IsRecording(cudaStream_t stream);
cudaError_t RefuseRecording(cudaStream_t stream);

// Runs what waits on all streams as far as it goes, or until `enough`: somebody outside of this
// process waits for it. From any thread.
void RunAllUntil(const std::function<bool()>& enough);

// Waits for all streams.
void RunAll();

// Milliseconds that work on streams has taken, as work itself says: what events tell.
float& Clock();

// How many algorithms cuBLASLt offers for a product, and cuDNN for a convolution, 1 to 3.
int& OfferedAlgorithms();

// What NCCL reports from the next operation on that is reached, an ncclResult_t; 0: nothing. The
// operation never ends.
int& NcclFault();

// Whether cuDNN knows attention: else it starts no plan for it, and our own
// kernels do it. Not at first.
bool& OffersAttention();

}  // namespace trainyard::emulator
