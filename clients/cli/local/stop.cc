#include "clients/cli/local/stop.h"

#include <signal.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "clients/cli/local/supervisor.h"
#include "clients/cpp/context_file.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

// The supervisor waits up to 10 s for the agent, 10 s for the server and 25 s for PostgreSQL.
constexpr absl::Duration kSupervisorLimit = absl::Seconds(60);

absl::Status ForgetContexts(const Yard& yard) {
  return ChangeContexts([&](ContextFile& file) {
    std::erase_if(file.contexts, [&](const auto& context) {
      const bool forgotten = context.second.directory == yard.dir();
      if (forgotten && file.current == context.first) file.current.clear();
      return forgotten;
    });
    return absl::OkStatus();
  });
}

// Only what a yard makes is removed; a folder that holds anything else stays.
absl::Status RemoveFiles(const Yard& yard) {
  std::error_code error;
  if (yard.socket_dir().rfind(yard.dir(), 0) != 0) {
    std::filesystem::remove_all(yard.socket_dir(), error);
  }
  for (const char* name :
       {"postgres", "agent", "checkpoints", "tokens", "logs", "run", "yard.json", "lock"}) {
    std::filesystem::remove_all(absl::StrCat(yard.dir(), "/", name), error);
    if (error) {
      return absl::InternalError(absl::StrCat(yard.dir(), "/", name, ": ", error.message()));
    }
  }
  std::filesystem::remove(yard.dir(), error);
  return absl::OkStatus();
}

}  // namespace

std::vector<Part> StopSignalsOnly() {
  std::vector<Part> parts(3);
  for (size_t i = 0; i < parts.size(); ++i) parts[i].name = PartNames()[i];
  parts[0].stop_signals = {{SIGINT, absl::Seconds(20)}, {SIGQUIT, absl::Seconds(5)}};
  parts[1].stop_signals = {{SIGTERM, absl::Seconds(10)}};
  // On SIGINT the agent kills its workers and exits; on SIGTERM it would leave them running.
  parts[2].stop_signals = {{SIGINT, absl::Seconds(10)}};
  return parts;
}

absl::StatusOr<bool> StopYard(const Yard& yard, bool purge) {
  if (!yard.Exists()) return absl::NotFoundError(absl::StrCat("no yard in ", yard.dir()));
  const absl::StatusOr<ProcessId> supervisor = ReadPidFile(yard.pid_path("supervisor"));
  if (supervisor.ok()) StopProcess(*supervisor, {{SIGTERM, kSupervisorLimit}});
  const bool found = StopUnsupervisedProcesses(yard, StopSignalsOnly()) > 0;
  if (purge) {
    TY_RETURN_IF_ERROR(ForgetContexts(yard));
    TY_RETURN_IF_ERROR(RemoveFiles(yard));
  }
  return supervisor.ok() || found;
}

}  // namespace trainyard::cli
