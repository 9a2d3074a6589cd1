#include "tests/unit/server/process_tree.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

// The bytes of a line "VmHWM:   123 kB"; 0 for a process that is gone.
int64_t PeakOf(const std::string& process) {
  std::ifstream status("/proc/" + process + "/status");
  std::string word;
  while (status >> word) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

// The number of the field after the name, which may hold anything but ends with the last ")".
pid_t ParentOf(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::stringstream all;
  all << file.rdbuf();
  const std::string text = all.str();
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return -1;
  std::istringstream rest(text.substr(name_end + 1));
  std::string state;
  pid_t parent = -1;
  rest >> state >> parent;
  return parent;
}

}  // namespace

std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    pid_t pid = 0;
    const std::string name = it->path().filename().string();
    if (absl::SimpleAtoi(name, &pid) && ParentOf(name) == getpid()) children.push_back(pid);
  }
  return children;
}

int64_t PeakBytesOfTree() {
  int64_t sum = PeakOf("self");
  for (const pid_t pid : Children()) sum += PeakOf(absl::StrCat(pid));
  return sum;
}

void ForgetPeaks() {
  for (const pid_t pid : Children()) std::ofstream(absl::StrCat("/proc/", pid, "/clear_refs")) << 5;
  std::ofstream("/proc/self/clear_refs") << 5;
}

bool HasOpen(pid_t pid, const std::string& path) {
  std::error_code error;
  const fs::path folder = absl::StrCat("/proc/", pid, "/fd");
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(it->path(), gone) == path) return true;
  }
  return false;
}

}  // namespace trainyard
