#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "storage/base/file.h"

namespace trainyard::engine {

inline constexpr int64_t kPlenty = int64_t{1} << 30;  // bytes of memory

// A file in memory, as an agent gives it to its workers.
class Memory {
 public:
  int fd() const { return file_.get(); }
  FileDescriptor Open() const { return FileDescriptor(dup(file_.get())); }

  std::string Read() const {
    std::string bytes(lseek(fd(), 0, SEEK_END), '\0');
    EXPECT_EQ(pread(fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return bytes;
  }
  void Write(const std::string& bytes) const {
    EXPECT_EQ(ftruncate(fd(), 0), 0);
    EXPECT_EQ(pwrite(fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

 private:
  const FileDescriptor file_{memfd_create("test", MFD_CLOEXEC)};
};

}  // namespace trainyard::engine
