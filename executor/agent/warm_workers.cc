#include "executor/agent/warm_workers.h"

#include <errno.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "executor/agent/log_file.h"
#include "executor/run/run_directory.h"
#include "executor/run/spin.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kLongestPause = absl::Minutes(1);
// A process that hangs in a driver does not die when it is killed.
constexpr absl::Duration kGonePatience = absl::Seconds(1);

void RemoveFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
}

bool Names(const std::vector<std::string>& environment, absl::string_view variable) {
  return absl::c_any_of(environment, [&](absl::string_view entry) {
    return absl::ConsumePrefix(&entry, variable) && absl::StartsWith(entry, "=");
  });
}

}  // namespace

std::vector<std::string> WorkerEnvironment(const char* const* ours) {
  static constexpr absl::string_view kKept[] = {"PATH=",
                                                "LANG=",
                                                "LC_",
                                                "TZ=",
                                                "HOME=",
                                                "TMPDIR=",
                                                "LD_LIBRARY_PATH=",
                                                "XDG_CACHE_HOME=",
                                                "CUDA_",
                                                "NVIDIA_",
                                                "NCCL_",
                                                "OMP_",
                                                "GOMP_SPINCOUNT=",
                                                "DNNL_",
                                                "ONEDNN_",
                                                "ASAN_",
                                                "TSAN_",
                                                "UBSAN_",
                                                "LSAN_OPTIONS=",
                                                "TRAINYARD_"};
  // CUDA counts devices as NVML does, so that a slot's index names the same GPU to both.
  std::vector<std::string> environment = {"CUDA_DEVICE_ORDER=PCI_BUS_ID"};
  for (const char* const* entry = ours; *entry != nullptr; ++entry) {
    if (absl::StartsWith(*entry, "CUDA_DEVICE_ORDER=")) continue;
    if (absl::StartsWith(*entry, absl::StrCat(run::kConfinementVariable, "="))) continue;
    for (const absl::string_view kept : kKept) {
      if (absl::StartsWith(*entry, kept)) environment.emplace_back(*entry);
    }
  }
  if (!Names(environment, run::kSpinVariable) && !Names(environment, run::kWaitPolicyVariable)) {
    environment.push_back(absl::StrCat(run::kSpinVariable, "=", run::kSpinRounds));
  }
  return environment;
}

std::vector<std::string> WorkerEnvironment(const WorkerProgram& program) {
  std::vector<std::string> environment = WorkerEnvironment(environ);
  if (program.confined) {
    environment.push_back(
        absl::StrCat(run::kConfinementVariable, "=", run::FormatConfinement(program.roots)));
  }
  return environment;
}

WarmWorkers::WarmWorkers(WorkerProgram program, std::string folder, std::vector<Standby> wanted)
    : program_(std::move(program)), folder_(std::move(folder)), wanted_(std::move(wanted)) {
  RemoveFolder(folder_);
}

WarmWorkers::~WarmWorkers() {
  for (const WaitingWorker& worker : waiting_) RemoveFolder(worker.folder);
}

absl::StatusOr<WaitingWorker> WarmWorkers::Start(const Standby& standby) {
  const std::string folder = absl::StrCat(folder_, "/", RandomHex(8));
  TY_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  const FileDescriptor its_end(ends[0]);
  FileDescriptor our_end(ends[1]);
  FileDescriptor memory(memfd_create(run::kStateFileName, MFD_CLOEXEC));
  if (!memory.valid() && !std::exchange(told_of_memory_, true)) {
    spdlog::warn(
        "jobs of this node that are resized write checkpoints: files in memory cannot be made");
  }
  std::vector<std::string> arguments = {"--standby"};
  if (!standby.device.empty()) {
    arguments.insert(arguments.end(),
                     {"--device", standby.device, "--threads", absl::StrCat(standby.threads)});
  }
  absl::StatusOr<Process> process = Process::Spawn({.program = program_.path,
                                                    .arguments = arguments,
                                                    .environment = WorkerEnvironment(program_),
                                                    .folder = folder,
                                                    .stdin_fd = its_end.get(),
                                                    .state_fd = memory.get(),
                                                    .output_path = folder + "/log"});
  if (!process.ok()) {
    RemoveFolder(folder);
    return process.status();
  }
  return WaitingWorker{standby, *std::move(process), std::move(our_end), std::move(memory), folder};
}

absl::StatusOr<WaitingWorker> WarmWorkers::Take(const std::string& device) {
  for (const std::string& waits_for : {device, std::string()}) {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->standby.device != waits_for) {
        ++it;
        continue;
      }
      WaitingWorker worker = std::move(*it);
      it = waiting_.erase(it);
      if (!worker.process.Ended()) return worker;
      leaving_.push_back(std::move(worker));
    }
  }
  return Start({});
}

void WarmWorkers::MakeRoom(const std::set<std::string>& busy) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!busy.contains(it->standby.device)) {
      ++it;
      continue;
    }
    it->process.KillGroup();
    leaving_.push_back(std::move(*it));
    it = waiting_.erase(it);
  }
}

void WarmWorkers::Pause::Begin(absl::Duration now) {
  length = std::clamp(length * 2, kFirstPause, kLongestPause);
  until = now + length;
}

void WarmWorkers::DropDead(absl::Duration now) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!it->process.Ended()) {
      ++it;
      continue;
    }
    Pause& pause = pauses_[it->standby.device];
    pause.Begin(now);
    spdlog::warn("a waiting worker ended; the next one in {}: {}",
                 absl::FormatDuration(pause.length), LogFile(it->folder + "/log").LastLines(500));
    leaving_.push_back(std::move(*it));
    it = waiting_.erase(it);
  }
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    if (!it->process.TryReap()) {
      ++it;
      continue;
    }
    RemoveFolder(it->folder);
    it = leaving_.erase(it);
  }
}

void WarmWorkers::Tend(absl::Duration now, const std::set<std::string>& busy) {
  MakeRoom(busy);
  DropDead(now);
  std::vector<Standby> missing = wanted_;
  std::erase_if(missing, [&](const Standby& one) { return busy.contains(one.device); });
  for (const WaitingWorker& worker : waiting_) {
    const auto here = absl::c_find(missing, worker.standby);
    if (here != missing.end()) missing.erase(here);
    Pause& pause = pauses_[worker.standby.device];
    if (now - pause.newest_start > kLongestPause) pause.length = absl::ZeroDuration();
  }
  for (const Standby& standby : missing) {
    Pause& pause = pauses_[standby.device];
    if (now < pause.until) continue;
    absl::StatusOr<WaitingWorker> worker = Start(standby);
    if (!worker.ok()) {
      pause.Begin(now);
      spdlog::error("no waiting worker: {}", worker.status().ToString());
      continue;
    }
    pause.newest_start = now;
    waiting_.push_back(*std::move(worker));
  }
}

std::vector<pid_t> WarmWorkers::Pids() const {
  std::vector<pid_t> pids;
  for (const WaitingWorker& worker : waiting_) pids.push_back(worker.process.id().pid);
  for (const WaitingWorker& worker : leaving_) pids.push_back(worker.process.id().pid);
  return pids;
}

void WarmWorkers::KillAll() {
  for (WaitingWorker& worker : waiting_) leaving_.push_back(std::move(worker));
  waiting_.clear();
  for (WaitingWorker& worker : leaving_) worker.process.KillGroup();
  const absl::Time deadline = absl::Now() + kGonePatience;
  for (;;) {
    DropDead(absl::ZeroDuration());
    if (leaving_.empty() || absl::Now() > deadline) return;
    absl::SleepFor(absl::Milliseconds(2));
  }
}

}  // namespace trainyard
