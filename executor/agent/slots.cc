#include "executor/agent/slots.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// The rest is left to the system and the agent: only a worker's peak is planned.
constexpr double kShareForWorkers = 0.9;
// The rest of a GPU's memory is for the driver and the contexts of other processes.
constexpr double kShareOfGpu = 0.97;

int CountCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// The number behind `name`, the first word of a line of /proc/meminfo or of a cgroup's memory.stat.
std::optional<int64_t> NumberBehind(absl::string_view name, absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t number = 0;
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return std::nullopt;
}

absl::StatusOr<int64_t> ReadMemInfo(const std::string& root, absl::string_view name) {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(root + "/proc/meminfo"));
  if (const std::optional<int64_t> kib = NumberBehind(name, text)) return *kib * 1024;
  return absl::InternalError(absl::StrCat(root, "/proc/meminfo has no ", name));
}

// A cgroup that bounds the memory of this process.
struct MemoryCgroup {
  std::string folder;
  bool v2 = false;
};

// From our own to the root, in either version of cgroups.
std::vector<MemoryCgroup> MemoryCgroups(const std::string& root) {
  std::vector<MemoryCgroup> found;
  const absl::StatusOr<std::string> groups = ReadFile(root + "/proc/self/cgroup");
  if (!groups.ok()) return found;
  for (absl::string_view line : absl::StrSplit(*groups, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool v2 = parts[1].empty();
    if (!v2 && parts[1] != "memory") continue;
    const std::string top = root + (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    for (std::string group = parts[2];; group = group.substr(0, group.rfind('/'))) {
      found.push_back({top + group, v2});
      if (group.empty() || group.rfind('/') == std::string::npos) break;
    }
  }
  return found;
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  int64_t number = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &number) || number < 0) {
    return std::nullopt;
  }
  return number;
}

// Nothing: the group sets no limit.
std::optional<int64_t> LimitOf(const MemoryCgroup& group) {
  const auto limit =
      ReadNumber(group.folder + (group.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  return limit.has_value() && *limit > 0 ? limit : std::nullopt;
}

// What the group has taken, without pages of files that the kernel would give back.
int64_t UsedBy(const MemoryCgroup& group) {
  const int64_t used =
      ReadNumber(group.folder + (group.v2 ? "/memory.current" : "/memory.usage_in_bytes"))
          .value_or(0);
  const std::string stat = ReadFile(group.folder + "/memory.stat").value_or("");
  const int64_t inactive =
      NumberBehind(group.v2 ? "inactive_file" : "total_inactive_file", stat).value_or(0);
  return std::max<int64_t>(0, used - inactive);
}

}  // namespace

absl::StatusOr<Machine> ReadMachine(const std::string& root) {
  TY_ASSIGN_OR_RETURN(int64_t memory, ReadMemInfo(root, "MemTotal:"));
  for (const MemoryCgroup& group : MemoryCgroups(root)) {
    memory = std::min(memory, LimitOf(group).value_or(memory));
  }
  return Machine{.cores = CountCores(), .memory_bytes = memory};
}

absl::StatusOr<int64_t> ReadFreeMemory(const std::string& root) {
  TY_ASSIGN_OR_RETURN(int64_t free, ReadMemInfo(root, "MemAvailable:"));
  for (const MemoryCgroup& group : MemoryCgroups(root)) {
    const std::optional<int64_t> limit = LimitOf(group);
    if (limit.has_value()) free = std::min(free, std::max<int64_t>(0, *limit - UsedBy(group)));
  }
  return free;
}

absl::StatusOr<std::vector<v1::Slot>> MakeSlots(const SlotRequest& request, const Machine& machine,
                                                const std::vector<Gpu>& gpus) {
  const int count = static_cast<int>(gpus.size()) + request.cpu_slots;
  if (count == 0) {
    return absl::InvalidArgumentError(
        "no GPU was found and --cpu-slots is 0: there is nothing to offer; try --cpu-slots 1");
  }
  const int threads =
      request.threads_per_slot > 0 ? request.threads_per_slot : std::max(1, machine.cores / count);
  std::vector<v1::Slot> slots;
  for (const Gpu& gpu : gpus) {
    v1::Slot& slot = slots.emplace_back();
    slot.set_index(static_cast<int>(slots.size()) - 1);
    slot.set_device(v1::Resources::CUDA);
    slot.set_model(gpu.model);
    slot.set_memory_bytes(
        static_cast<int64_t>(static_cast<double>(gpu.memory_bytes) * kShareOfGpu));
    slot.set_cpu_threads(threads);
  }
  for (int i = 0; i < request.cpu_slots; ++i) {
    v1::Slot& slot = slots.emplace_back();
    slot.set_index(static_cast<int>(slots.size()) - 1);
    slot.set_device(v1::Resources::CPU);
    slot.set_model(absl::StrCat("cpu x", threads));
    slot.set_memory_bytes(static_cast<int64_t>(static_cast<double>(machine.memory_bytes) *
                                               kShareForWorkers / request.cpu_slots));
    slot.set_cpu_threads(threads);
  }
  return slots;
}

std::string DeviceOf(const v1::Slot& slot) {
  // GPUs come first, so the index of a GPU's slot is the index of the GPU.
  return slot.device() == v1::Resources::CUDA ? absl::StrCat("cuda:", slot.index()) : "cpu";
}

}  // namespace trainyard
