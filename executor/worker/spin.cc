#include "executor/worker/spin.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "executor/run/spin.h"

namespace trainyard::worker {

void SpinBriefly(char** argv) {
  if (getenv(run::kSpinVariable) != nullptr || getenv(run::kWaitPolicyVariable) != nullptr) return;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv(run::kSpinVariable, run::kSpinRounds, 0) != 0) return;
  // execv returns only on failure. First by the program's path; then, if that file was replaced, by
  // the file that runs; if that fails, too, the program goes on as it is.
  execv(self.c_str(), argv);
  execv("/proc/self/exe", argv);
}

}  // namespace trainyard::worker
