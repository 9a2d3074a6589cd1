#include "executor/engine/parallel/nccl.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace trainyard::engine {
namespace {

// The interface that NCCL has kept since 2.0.
constexpr char kName[] = "libnccl.so.2";

struct Library {
  void* handle = nullptr;  // never closed
  std::string error;
};

const Library& TheLibrary() {
  static const Library* const library = [] {
    auto* const loaded = new Library{.handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL)};
    if (loaded->handle == nullptr) loaded->error = dlerror();
    return loaded;
  }();
  return *library;
}

}  // namespace

absl::StatusOr<std::string> NcclVersion() {
  const Library& library = TheLibrary();
  if (library.handle == nullptr) {
    return absl::UnavailableError(absl::StrCat("NCCL cannot be loaded: ", library.error));
  }
  using GetVersion = int(int*);  // ncclGetVersion of nccl.h; 0 is success
  auto* const get = reinterpret_cast<GetVersion*>(dlsym(library.handle, "ncclGetVersion"));
  int version = 0;
  if (get == nullptr || get(&version) != 0) {
    return absl::UnavailableError(absl::StrCat(kName, " does not say which version it is"));
  }
  // 22809 is 2.28.9; up to 2.8 the form was 2804 for 2.8.4.
  const int major = version < 10000 ? 1000 : 10000;
  return absl::StrCat(version / major, ".", version % major / 100, ".", version % 100);
}

}  // namespace trainyard::engine
