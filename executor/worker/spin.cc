#include "executor/worker/spin.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace trainyard::worker {
namespace {

// Rounds of a pause instruction: about 40 us, several times what a small kernel's threads differ
// by, and far less than a time slice.
constexpr char kSpinRounds[] = "2000";

}  // namespace

void SpinBriefly(char** argv) {
  if (getenv("GOMP_SPINCOUNT") != nullptr || getenv("OMP_WAIT_POLICY") != nullptr) return;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv("GOMP_SPINCOUNT", kSpinRounds, 0) != 0) return;
  execv(self.c_str(), argv);  // returns only on failure: then it runs as it is
}

}  // namespace trainyard::worker
