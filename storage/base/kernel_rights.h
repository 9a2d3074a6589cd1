#pragma once

// What the kernel can take from a process, whoever its user is: files, by Landlock (landlock(7),
// Linux 5.13), and system calls, by seccomp(2).

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace trainyard {

// Folders, with all that is beneath them, and files. A link that leads out of them is of no use.
// What is not there is left out. A folder keeps its rights when it is renamed.
struct FileRights {
  std::vector<std::string> read;   // also to run programs
  std::vector<std::string> write;  // to read, too
};

// From now on this thread, and what it starts later, has these rights of its user's and no others,
// can get no new ones by running a program, and can neither trace other processes nor, from Linux
// 6.12 on, signal them; before 6.2 it may truncate files that its user may write. Call it before
// the first other thread starts. kUnimplemented: this kernel cannot enforce it.
absl::Status RestrictFiles(const FileRights& rights);

// Whether the kernel can do that, and whether it can filter system calls. kUnimplemented, in words.
absl::Status CanRestrictFiles();
absl::Status CanFilterCalls();

}  // namespace trainyard
