#include "executor/agent/nvml.h"

#include <dlfcn.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// From NVIDIA's NVML reference; the toolkit here has no nvml.h. Return value 0 is success.
using Device = void*;
struct Memory {
  unsigned long long total;  // NOLINT: the type of the interface
  unsigned long long free;   // NOLINT
  unsigned long long used;   // NOLINT
};
using InitFn = int (*)();
using ShutdownFn = int (*)();
using CountFn = int (*)(unsigned*);
using HandleFn = int (*)(unsigned, Device*);
using NameFn = int (*)(Device, char*, unsigned);
using MemoryFn = int (*)(Device, Memory*);

struct Close {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

struct Shutdown {
  ShutdownFn shutdown;
  ~Shutdown() { shutdown(); }
};

template <typename Fn>
absl::Status Find(const Library& library, const char* name, Fn& fn) {
  fn = reinterpret_cast<Fn>(dlsym(library.get(), name));
  if (fn == nullptr) return absl::UnavailableError(absl::StrCat("NVML has no ", name));
  return absl::OkStatus();
}

absl::Status Check(int code, const char* call) {
  if (code == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("NVML: ", call, " returned ", code));
}

}  // namespace

absl::StatusOr<std::vector<Gpu>> ListGpus(const std::string& path) {
  const Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return absl::NotFoundError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  InitFn init = nullptr;
  ShutdownFn shutdown = nullptr;
  CountFn count = nullptr;
  HandleFn handle = nullptr;
  NameFn name = nullptr;
  MemoryFn memory = nullptr;
  TY_RETURN_IF_ERROR(Find(library, "nvmlInit_v2", init));
  TY_RETURN_IF_ERROR(Find(library, "nvmlShutdown", shutdown));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetCount_v2", count));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetHandleByIndex_v2", handle));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetName", name));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetMemoryInfo", memory));

  TY_RETURN_IF_ERROR(Check(init(), "nvmlInit"));
  const Shutdown at_end{shutdown};
  unsigned devices = 0;
  TY_RETURN_IF_ERROR(Check(count(&devices), "nvmlDeviceGetCount"));
  std::vector<Gpu> gpus;
  for (unsigned i = 0; i < devices; ++i) {
    Device device = nullptr;
    char model[96] = "";
    Memory bytes{};
    TY_RETURN_IF_ERROR(Check(handle(i, &device), "nvmlDeviceGetHandleByIndex"));
    TY_RETURN_IF_ERROR(Check(name(device, model, sizeof(model)), "nvmlDeviceGetName"));
    TY_RETURN_IF_ERROR(Check(memory(device, &bytes), "nvmlDeviceGetMemoryInfo"));
    gpus.push_back({.index = static_cast<int>(i),
                    .model = model,
                    .memory_bytes = static_cast<int64_t>(bytes.total)});
  }
  return gpus;
}

}  // namespace trainyard
