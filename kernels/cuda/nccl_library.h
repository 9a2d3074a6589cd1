#pragma once

// NCCL, loaded when GPUs are linked and not before. The part of its C interface (nccl.h, as it has
// been since 2.14) that this back end calls is declared here: NCCL is no part of the CUDA toolkit,
// and what is built without it uses it where it is.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/statusor.h"

namespace trainyard::kernels::cuda {

// ncclResult_t
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

// ncclUniqueId
struct NcclUniqueId {
  char internal[128];
};

// ncclConfig_t of 2.14; later versions read as much of it as `size` says and take the rest as
// unset.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 1;
};

using NcclComm = struct ncclComm*;    // ncclComm_t
inline constexpr int kNcclBytes = 1;  // ncclUint8 of ncclDataType_t

// Its functions, each named as in nccl.h after "nccl".
struct Nccl {
  NcclResult (*GetVersion)(int* version);
  NcclResult (*GetUniqueId)(NcclUniqueId* id);
  NcclResult (*CommInitRankConfig)(NcclComm* comm, int size, NcclUniqueId id, int rank,
                                   NcclConfig* config);
  NcclResult (*CommFinalize)(NcclComm comm);
  NcclResult (*CommDestroy)(NcclComm comm);
  NcclResult (*CommAbort)(NcclComm comm);
  NcclResult (*CommGetAsyncError)(NcclComm comm, NcclResult* error);
  const char* (*GetErrorString)(NcclResult result);
  const char* (*GetLastError)(NcclComm comm);  // of `comm`, or of the thread for null
  NcclResult (*GroupStart)();
  NcclResult (*GroupEnd)();
  NcclResult (*Send)(const void* from, size_t count, int type, int peer, NcclComm comm,
                     cudaStream_t stream);
  NcclResult (*Recv)(void* to, size_t count, int type, int peer, NcclComm comm,
                     cudaStream_t stream);
  NcclResult (*AllGather)(const void* from, void* to, size_t count, int type, NcclComm comm,
                          cudaStream_t stream);
  NcclResult (*Broadcast)(const void* from, void* to, size_t count, int type, int root,
                          NcclComm comm, cudaStream_t stream);
};

// Loads NCCL, once. It needs neither a GPU nor a driver for that. kUnavailable: the dynamic linker
// does not find it, or it lacks a function. Thread-safe.
absl::StatusOr<const Nccl*> LoadNccl();

}  // namespace trainyard::kernels::cuda
