#include "executor/worker/open_device.h"

#include <spdlog/spdlog.h>

#include <functional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::worker {

std::string CacheFolder(const std::function<const char*(const char*)>& variable) {
  const auto value = [&](const char* name) {
    const char* const set = variable(name);
    return std::string(set == nullptr ? "" : set);
  };
  if (const std::string folder = value("TRAINYARD_CACHE"); !folder.empty()) return folder;
  if (const std::string caches = value("XDG_CACHE_HOME"); !caches.empty()) {
    return caches + "/trainyard";
  }
  const std::string home = value("HOME");
  return home.empty() ? "" : home + "/.cache/trainyard";
}

absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(const std::string& name, int threads) {
  if (name == "cpu") {
    if (const unsigned cores = std::thread::hardware_concurrency();
        cores > 0 && threads > static_cast<int64_t>(cores)) {
      spdlog::warn("{} threads share {} cores: the bits are the same, the time is not", threads,
                   cores);
    }
    absl::StatusOr<std::unique_ptr<kernels::Device>> device = kernels::OpenCpu(threads);
    if (!device.ok()) return engine::WithFault(engine::Fault::kDevice, device.status());
    return device;
  }
  int index = 0;
  if (!absl::StartsWith(name, "cuda:") || !absl::SimpleAtoi(name.substr(5), &index) || index < 0) {
    return engine::WithFault(
        engine::Fault::kSpec,
        absl::InvalidArgumentError(
            absl::StrCat("device '", name, "' is unknown; expected cpu or cuda:0, cuda:1, …")));
  }
  absl::StatusOr<std::unique_ptr<kernels::Device>> device = kernels::OpenCuda(index, CacheFolder());
  if (!device.ok()) {
    return engine::WithDeviceFault(Annotate(device.status(), name));
  }
  return device;
}

}  // namespace trainyard::worker
