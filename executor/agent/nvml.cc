#include "executor/agent/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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
constexpr int kDriverNotLoaded = 9;
constexpr unsigned kGpuSensor = 0;

struct Functions {
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*handle)(unsigned, Device*);
  int (*handle_by_uuid)(const char*, Device*);
  int (*name)(Device, char*, unsigned);
  int (*memory)(Device, Memory*);
  // Older drivers may lack these.
  int (*utilization)(Device, Utilization*);
  int (*temperature)(Device, unsigned sensor, unsigned* celsius);
  int (*power)(Device, unsigned* milliwatts);
  const char* (*error_words)(int);
  int (*make_events)(EventSet*);
  int (*free_events)(EventSet);
  int (*register_events)(Device, Wide types, EventSet);
  int (*wait_event)(EventSet, EventData*, unsigned milliseconds);
};

// From the catalog that our nvml.h links to: the codes that end a process or say that a GPU is
// broken.
struct XidWords {
  int code;
  const char* words;
};
constexpr XidWords kXidWords[] = {
    {13, "an exception in a kernel"},
    {31, "an access to memory that is not mapped"},
    {32, "a damaged command buffer"},
    {43, "a kernel stopped by a fault of the program"},
    {45, "work cancelled after an earlier error"},
    {48, "an uncorrectable error of its memory"},
    {61, "its microcontroller stopped"},
    {62, "its microcontroller stopped"},
    {63, "a row of its memory is replaced"},
    {64, "a row of its memory could not be replaced"},
    {74, "an error of NVLink"},
    {79, "fell off the bus"},
    {92, "many corrected errors of its memory"},
    {94, "an uncorrectable error of its memory, contained"},
    {95, "an uncorrectable error of its memory, not contained"},
    {109, "a switch between contexts that took too long"},
    {119, "its system processor does not answer"},
    {120, "a fault of its system processor"},
    {140, "an error of its memory that nothing recovered"},
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
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetHandleByUUID", f.handle_by_uuid));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetName", f.name));
  TY_RETURN_IF_ERROR(Find(library, "nvmlDeviceGetMemoryInfo", f.memory));
  FindIfAny(library, "nvmlDeviceGetUtilizationRates", f.utilization);
  FindIfAny(library, "nvmlDeviceGetTemperature", f.temperature);
  FindIfAny(library, "nvmlDeviceGetPowerUsage", f.power);
  FindIfAny(library, "nvmlErrorString", f.error_words);
  FindIfAny(library, "nvmlEventSetCreate", f.make_events);
  FindIfAny(library, "nvmlEventSetFree", f.free_events);
  FindIfAny(library, "nvmlDeviceRegisterEvents", f.register_events);
  FindIfAny(library, "nvmlEventSetWait_v2", f.wait_event);
  return f;
}

absl::Status Check(const Functions& f, int code, const char* call) {
  if (code == 0) return absl::OkStatus();
  const char* const words = f.error_words == nullptr ? nullptr : f.error_words(code);
  const std::string message =
      absl::StrCat("NVML: ", call, ": error ", code, words == nullptr ? "" : " (", words,
                   words == nullptr ? "" : ")");
  return code == kDriverNotLoaded ? absl::NotFoundError(message) : absl::UnavailableError(message);
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
    TY_RETURN_IF_ERROR(Check(f_, f_.count(&count), "nvmlDeviceGetCount"));
    devices_.resize(count);
    for (unsigned i = 0; i < count; ++i) {
      TY_RETURN_IF_ERROR(Check(f_, f_.handle(i, &devices_[i]), "nvmlDeviceGetHandleByIndex"));
    }
    return absl::OkStatus();
  }

  // Keeps only the GPUs that `visible` names, in its order.
  absl::Status Narrow(const std::string& visible) {
    std::vector<Device> chosen;
    for (absl::string_view name : absl::StrSplit(visible, ',', absl::SkipWhitespace())) {
      name = absl::StripAsciiWhitespace(name);
      unsigned index = 0;
      Device device = nullptr;
      if (absl::SimpleAtoi(name, &index) && index < devices_.size()) {
        device = devices_[index];
      } else if (!absl::StartsWith(name, "GPU-") ||
                 f_.handle_by_uuid(std::string(name).c_str(), &device) != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "CUDA_VISIBLE_DEVICES: found ", name, ", which names none of the ", devices_.size(),
            " GPUs here; expected indices from 0 or UUIDs (GPU-…), as nvidia-smi -L lists them"));
      }
      if (std::find(chosen.begin(), chosen.end(), device) != chosen.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("CUDA_VISIBLE_DEVICES: ", name, " is named twice"));
      }
      chosen.push_back(device);
    }
    devices_ = std::move(chosen);
    return absl::OkStatus();
  }

  // Registers for the errors of those GPUs that report any.
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
      TY_RETURN_IF_ERROR(Check(f_, f_.name(device, model, sizeof(model)), "nvmlDeviceGetName"));
      TY_RETURN_IF_ERROR(Check(f_, f_.memory(device, &bytes), "nvmlDeviceGetMemoryInfo"));
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
    TY_RETURN_IF_ERROR(Check(f_, code, "nvmlEventSetWait"));
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

std::string Describe(const Xid& xid) {
  const auto known = std::find_if(std::begin(kXidWords), std::end(kXidWords),
                                  [&](const XidWords& one) { return one.code == xid.code; });
  const std::string words =
      known == std::end(kXidWords) ? "" : absl::StrCat(" (", known->words, ")");
  return absl::StrCat("Xid ", xid.code, words, " of GPU ", xid.gpu);
}

absl::StatusOr<std::shared_ptr<Nvml>> Nvml::Open(const std::string& path, const char* visible) {
  Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return absl::NotFoundError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  TY_ASSIGN_OR_RETURN(const Functions functions, FindFunctions(library));
  TY_RETURN_IF_ERROR(Check(functions, functions.init(), "nvmlInit"));
  auto nvml = std::make_shared<OpenNvml>(std::move(library), functions);
  TY_RETURN_IF_ERROR(nvml->FindDevices());
  if (visible != nullptr) TY_RETURN_IF_ERROR(nvml->Narrow(visible));
  nvml->ListenForXids();
  return nvml;
}

}  // namespace trainyard
