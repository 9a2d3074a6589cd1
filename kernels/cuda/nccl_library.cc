#include "kernels/cuda/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {
namespace {

// The interface that NCCL has kept since 2.0.
constexpr char kNcclName[] = "libnccl.so.2";

// Points `function` to what the library calls `name`, or adds the name to `missing`.
template <typename Function>
void FindNccl(void* library, const char* name, Function*& function, std::string& missing) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) absl::StrAppend(&missing, " ", name);
}

absl::StatusOr<const Nccl*> OpenNccl() {
  void* const library = dlopen(kNcclName, RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("NCCL cannot be loaded: ", dlerror()));
  }
  static Nccl nccl;
  std::string missing;
  FindNccl(library, "ncclGetVersion", nccl.GetVersion, missing);
  FindNccl(library, "ncclGetUniqueId", nccl.GetUniqueId, missing);
  FindNccl(library, "ncclCommInitRankConfig", nccl.CommInitRankConfig, missing);
  FindNccl(library, "ncclCommFinalize", nccl.CommFinalize, missing);
  FindNccl(library, "ncclCommDestroy", nccl.CommDestroy, missing);
  FindNccl(library, "ncclCommAbort", nccl.CommAbort, missing);
  FindNccl(library, "ncclCommGetAsyncError", nccl.CommGetAsyncError, missing);
  FindNccl(library, "ncclGetErrorString", nccl.GetErrorString, missing);
  FindNccl(library, "ncclGetLastError", nccl.GetLastError, missing);
  FindNccl(library, "ncclGroupStart", nccl.GroupStart, missing);
  FindNccl(library, "ncclGroupEnd", nccl.GroupEnd, missing);
  FindNccl(library, "ncclSend", nccl.Send, missing);
  FindNccl(library, "ncclRecv", nccl.Recv, missing);
  FindNccl(library, "ncclAllGather", nccl.AllGather, missing);
  FindNccl(library, "ncclBroadcast", nccl.Broadcast, missing);
  if (!missing.empty()) {
    return absl::UnavailableError(
        absl::StrCat(kNcclName, " is older than 2.14, it lacks", missing));
  }
  return &nccl;
}

}  // namespace

absl::StatusOr<const Nccl*> LoadNccl() {
  static const auto* const loaded = new absl::StatusOr<const Nccl*>(OpenNccl());
  return *loaded;
}

}  // namespace trainyard::kernels::cuda
