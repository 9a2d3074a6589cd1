#include "executor/worker/open_device.h"

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "executor/engine/blame.h"
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
    absl::StatusOr<std::unique_ptr<kernels::Device>> device = kernels::OpenCpu(threads);
    if (!device.ok()) return engine::Blame(engine::Fault::kDevice, device.status());
    return device;
  }
  int index = 0;
  if (!absl::StartsWith(name, "cuda:") || !absl::SimpleAtoi(name.substr(5), &index) || index < 0) {
    return engine::Blame(engine::Fault::kSpec,
                         absl::InvalidArgumentError(absl::StrCat(
                             "device '", name, "' is unknown; expected cpu or cuda:0, cuda:1, …")));
  }
  absl::StatusOr<std::unique_ptr<kernels::Device>> device = kernels::OpenCuda(index, CacheFolder());
  if (!device.ok()) {
    return engine::Blame(engine::Fault::kDevice, Annotate(device.status(), name));
  }
  return device;
}

void WarmUp(kernels::Device& device) {
  constexpr int64_t kSide = 64;
  constexpr size_t kBytes = kSide * kSide * sizeof(float);
  const absl::StatusOr<void*> memory = device.Allocate(3 * kBytes);
  if (!memory.ok()) return;
  char* at = static_cast<char*>(*memory);
  const std::unique_ptr<kernels::Stream> stream = device.MakeStream();
  const auto zero =
      device.Prepare(kernels::Zero{.x = {at, kernels::DType::kF32}, .n = 3 * kSide * kSide});
  const auto matmul = device.Prepare(kernels::Matmul{.a = {at, kernels::DType::kF32},
                                                     .b = {at + kBytes, kernels::DType::kF32},
                                                     .c = {at + 2 * kBytes, kernels::DType::kF32},
                                                     .m = kSide,
                                                     .n = kSide,
                                                     .k = kSide});
  if (zero.ok() && matmul.ok()) {
    const absl::StatusOr<void*> scratch = device.Allocate(matmul->scratch_bytes + 64);
    if (scratch.ok()) {
      stream->scratch = *scratch;
      stream->scratch_bytes = matmul->scratch_bytes;
      zero->launch(*stream);
      matmul->launch(*stream);
      device.Synchronize(*stream).IgnoreError();
      device.Free(*scratch);
    }
  }
  device.Free(*memory);
}

}  // namespace trainyard::worker
