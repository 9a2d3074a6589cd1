#pragma once

// This process and its children, seen through /proc.

#include <sys/types.h>

#include <string>
#include <vector>

namespace trainyard {

std::vector<pid_t> Children();

// VmHWM, the most that was ever resident, of this process and its children that live now.
int64_t PeakBytesOfTree();

// From now on PeakBytesOfTree counts anew.
void ForgetPeaks();

// Whether `pid` has `path` open.
bool HasOpen(pid_t pid, const std::string& path);

}  // namespace trainyard
