#pragma once

// What the kernel tells of a process.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {

// Fields of /proc/{pid}/stat (proc(5)).
struct ProcessStat {
  char state = '?';
  pid_t parent = 0;
  pid_t group = 0;
  uint64_t start_time = 0;  // ticks since boot: a pid is reused, a pid with its start time is not

  int64_t threads = 0;
  bool ending = false;  // its first thread has begun to end: what the process has open goes next

  // Also when its first thread has ended and others have not: what the process had open still is.
  bool alive() const { return (state != 'Z' && state != 'X') || threads > 1; }
};

// An error: there is no such process, or it has gone meanwhile.
inline absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid) {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(absl::StrCat("/proc/", pid, "/stat")));
  // The name, in parentheses, may hold spaces and parentheses itself.
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return absl::NotFoundError("no such process");
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), ' ');
  constexpr uint64_t kExiting = 4;  // PF_EXITING, include/linux/sched.h
  ProcessStat stat;
  uint64_t flags = 0;
  if (fields.size() < 20 || fields[0].size() != 1 || !absl::SimpleAtoi(fields[1], &stat.parent) ||
      !absl::SimpleAtoi(fields[2], &stat.group) || !absl::SimpleAtoi(fields[6], &flags) ||
      !absl::SimpleAtoi(fields[17], &stat.threads) ||
      !absl::SimpleAtoi(fields[19], &stat.start_time)) {
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat is not understood: ", text));
  }
  stat.state = fields[0][0];
  stat.ending = (flags & kExiting) != 0;
  return stat;
}

}  // namespace trainyard
