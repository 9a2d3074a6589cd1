#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard {

// Bytes as a file of this process that has a path.
class MemoryFile {
 public:
  MemoryFile() : file_(memfd_create("fuzz", MFD_CLOEXEC)) {}

  // Replaces what it held. Returns its path.
  std::string Hold(const uint8_t* data, size_t size) {
    TY_CHECK(ftruncate(file_, 0) == 0, errno);
    TY_CHECK(pwrite(file_, data, size, 0) == static_cast<ssize_t>(size), errno);
    return absl::StrCat("/proc/self/fd/", file_);
  }

 private:
  const int file_;
};

}  // namespace trainyard
