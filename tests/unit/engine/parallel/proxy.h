#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "storage/base/file.h"

namespace trainyard::engine::testing {

// A process between the rank that listens at `target` and those that connect to it: it hands on
// what they say to each other, and changes some of it.
class Proxy {
 public:
  // On every connection that carries so many bytes to the target, the byte at `flip_at` is changed;
  // -1: none.
  Proxy(std::string target, int64_t flip_at);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  const std::string& address() const { return address_; }

  // The first `bytes` bytes that came for the target over the connection that was first.
  std::string Recorded(size_t bytes);

 private:
  std::string address_;
  FileDescriptor record_;
  pid_t pid_ = 0;
};

}  // namespace trainyard::engine::testing
