#include "executor/agent/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// From NVIDIA's NVML reference; the toolkit here has no nvml.h. Return value 0 is success.
using Device = void*;
using EventSet = void*;
using Wide = unsigned long long;  // NOLINT: the type of the interface

struct Memory {
  Wide total;
  Wide free;
  Wide used;
};
struct Utilization {
  unsigned gpu;  // percent
  unsigned memory;
};
struct EventData {
  Device device;
  Wide type;
  Wide data;  // the code of an Xid
  unsigned gpu_instance;
  unsigned compute_instance;
};
constexpr Wide kXidEvent = 8;
constexpr int kTimeout = 10;
constexpr unsigned kGpuSensor = 0;

struct Functions {
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*handle)(unsigned, Device*);
  int (*name)(Device, char*, unsigned);
  int (*memory)(Device, Memory*);
  // Older drivers may lack these.
  int (*utilization)(Device, Utilization*);
  int (*temperature)(Device, unsigned sensor, unsigned* celsius);
  int (*power)(Device, unsigned* milliwatts);
  int (*make_events)(EventSet*);
  int (*free_events)(EventSet);
  int (*register_events)(Device, Wide types, EventSet);
  int (*wait_event)(EventSet, EventData*, unsigned milliseconds);
};

struct Close {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

template <typename Fn>
void FindIfAny(const Library& library, const char* name, Fn& fn) {
  fn = reinterpret_cast<Fn>(dlsym(library.get(), name));
}

template <typename Fn>
absl::Status Find(const Library& library, const char* name, Fn& fn) {
  FindIfAny(library, name, fn);
  if (fn == nullptr) return absl::UnavailableError(absl::StrCat("NVML has no ", name));
  return absl::OkStatus();
}

absl::StatusOr<Functions> FindFunctions(const Library& library) {
  Functions f{};
  TY_RETURN_IF_ERROR(Find(library, "nvmlInit_v2", f.init));
  TY_RETURN_IF_ERROR(Find(library, "nvmlShutdown", f.shutdown));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetCount_v2", f.count));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetHandleByIndex_v2", f.handle));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetName", f.name));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetMemoryInfo", f.memory));
  FindIfAny(library, "nvmlDeviceGetUtilizationRates", f.utilization);
  FindIfAny(library, "nvmlDeviceGetTemperature", f.temperature);
  FindIfAny(library, "nvmlDeviceGetPowerUsage", f.power);
  FindIfAny(library, "nvmlEventSetCreate", f.make_events);
  FindIfAny(library, "nvmlEventSetFree", f.free_events);
  FindIfAny(library, "nvmlDeviceRegisterEvents", f.register_events);
  FindIfAny(library, "nvmlEventSetWait_v2", f.wait_event);
  return f;
}

absl::Status Check(int code, const char* call) {
  if (code == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("NVML: ", call, " returned ", code));
}

class OpenNvml final : public Nvml {
 public:
  OpenNvml(Library library, const Functions& functions)
      : library_(std::move(library)), f_(functions) {}
  ~OpenNvml() override {
    if (events_ != nullptr) f_.free_events(events_);
    f_.shutdown();
  }

  absl::Status FindDevices() {
    unsigned count = 0;
    TY_RETURN_IF_ERROR(Check(f_.count(&count), "nvmlDeviceGetCount"));
    devices_.resize(count);
    for (unsigned i = 0; i < count; ++i) {
      TY_RETURN_IF_ERROR(Check(f_.handle(i, &devices_[i]), "nvmlDeviceGetHandleByIndex"));
    }
    return absl::OkStatus();
  }

  // Some GPUs report no errors: those that do are listened to.
  void ListenForXids() {
    if (!f_.make_events || !f_.free_events || !f_.register_events || !f_.wait_event) return;
    if (f_.make_events(&events_) != 0) {
      events_ = nullptr;
      return;
    }
    bool any = false;
    for (Device device : devices_) any |= f_.register_events(device, kXidEvent, events_) == 0;
    if (!any) f_.free_events(std::exchange(events_, nullptr));
  }

  absl::StatusOr<std::vector<Gpu>> List() override {
    std::vector<Gpu> gpus;
    for (Device device : devices_) {
      char model[96] = "";
      Memory bytes{};
      TY_RETURN_IF_ERROR(Check(f_.name(device, model, sizeof(model)), "nvmlDeviceGetName"));
      TY_RETURN_IF_ERROR(Check(f_.memory(device, &bytes), "nvmlDeviceGetMemoryInfo"));
      gpus.push_back({.index = static_cast<int>(gpus.size()),
                      .model = model,
                      .memory_bytes = static_cast<int64_t>(bytes.total)});
    }
    return gpus;
  }

  std::vector<GpuUsage> Usage() override {
    std::vector<GpuUsage> usage;
    for (Device device : devices_) {
      GpuUsage& one = usage.emplace_back();
      Utilization busy{};
      Memory bytes{};
      unsigned number = 0;
      if (f_.utilization && f_.utilization(device, &busy) == 0) one.utilization = busy.gpu / 100.0;
      if (f_.memory(device, &bytes) == 0) {
        one.memory_used_bytes = static_cast<int64_t>(bytes.used);
      }
      if (f_.temperature && f_.temperature(device, kGpuSensor, &number) == 0) {
        one.temperature_celsius = number;
      }
      if (f_.power && f_.power(device, &number) == 0) one.power_watts = number / 1e3;
    }
    return usage;
  }

  absl::StatusOr<std::optional<Xid>> NextXid(absl::Duration timeout) override {
    if (events_ == nullptr) return absl::UnimplementedError("NVML: no events");
    EventData event{};
    const int code =
        f_.wait_event(events_, &event, static_cast<unsigned>(absl::ToInt64Milliseconds(timeout)));
    if (code == kTimeout) return std::nullopt;
    TY_RETURN_IF_ERROR(Check(code, "nvmlEventSetWait"));
    const auto at = std::find(devices_.begin(), devices_.end(), event.device);
    if (event.type != kXidEvent || at == devices_.end()) return std::nullopt;
    constexpr Wide kMost = std::numeric_limits<int>::max();
    return Xid{.gpu = static_cast<int>(at - devices_.begin()),
               .code = static_cast<int>(std::min(event.data, kMost))};
  }

 private:
  const Library library_;
  const Functions f_;
  std::vector<Device> devices_;
  EventSet events_ = nullptr;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Nvml>> Nvml::Open(const std::string& path) {
  Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return absl::NotFoundError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  TY_ASSIGN_OR_RETURN(const Functions functions, FindFunctions(library));
  TY_RETURN_IF_ERROR(Check(functions.init(), "nvmlInit"));
  auto nvml = std::make_shared<OpenNvml>(std::move(library), functions);
  TY_RETURN_IF_ERROR(nvml->FindDevices());
  nvml->ListenForXids();
  return nvml;
}

}  // namespace trainyard
