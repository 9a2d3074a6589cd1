#include "executor/worker/open_device.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
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

absl::Status WarmUp(kernels::Device& device) {
  constexpr int64_t kSide = 64;
  constexpr int64_t kBytes = kSide * kSide * sizeof(float);
  TY_ASSIGN_OR_RETURN(void* const memory, device.Allocate(3 * kBytes));
  const absl::Cleanup free = [&] { device.Free(memory); };
  const auto at = [&](int64_t place, kernels::DType type) {
    return kernels::Buffer{static_cast<char*>(memory) + place * kBytes, type};
  };
  const kernels::DType f32 = kernels::DType::kF32, bf16 = kernels::DType::kBF16;
  std::vector<absl::StatusOr<kernels::Kernel>> kernels;
  kernels.push_back(device.Prepare(kernels::Zero{.x = at(0, f32), .n = 3 * kSide * kSide}));
  kernels.push_back(device.Prepare(kernels::Matmul{
      .a = at(0, f32), .b = at(1, f32), .c = at(2, f32), .m = kSide, .n = kSide, .k = kSide}));
  // For these ops a GPU's libraries load code, which takes longer than a small model's first step.
  if (device.Asynchronous()) {
    kernels.push_back(device.Prepare(kernels::ConvolutionForward{
        .x = at(0, bf16),
        .w = at(1, bf16),
        .y = at(2, bf16),
        .shape = {.batch = 1, .height = 8, .width = 8, .in = kSide, .out = kSide}}));
    kernels.push_back(device.Prepare(kernels::AttentionForward{.qkv = at(0, bf16),
                                                               .y = at(1, bf16),
                                                               .lse = at(2, f32),
                                                               .batch = 1,
                                                               .time = 32,
                                                               .heads = 1,
                                                               .kv_heads = 1,
                                                               .head_dim = 64,
                                                               .scale = 0.125f}));
  }
  size_t scratch_bytes = 0;
  for (const auto& kernel : kernels) {
    if (kernel.ok()) scratch_bytes = std::max(scratch_bytes, kernel->scratch_bytes);
  }
  TY_ASSIGN_OR_RETURN(void* const scratch, device.Allocate(scratch_bytes));
  const absl::Cleanup free_scratch = [&] { device.Free(scratch); };
  const std::unique_ptr<kernels::Stream> stream = device.MakeStream();
  stream->scratch = scratch;
  stream->scratch_bytes = scratch_bytes;
  for (const auto& kernel : kernels) {
    if (kernel.ok()) kernel->launch(*stream);
  }
  return device.Synchronize(*stream);
}

}  // namespace trainyard::worker
