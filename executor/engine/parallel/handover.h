#pragma once

// How ranks of one host hand each other file descriptors.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// Words and file descriptors that came together. Anyone on this host may have sent them.
struct Parcel {
  std::string words;
  std::vector<FileDescriptor> fds;
};

// A datagram socket of the UNIX domain with a random name outside the file system (unix(7),
// "abstract"), gone with the process. Ranks of other hosts and other network namespaces cannot
// reach it. It never blocks.
class Handover {
 public:
  static constexpr size_t kMostWords = 256;
  static constexpr size_t kMostFds = 2;

  static absl::StatusOr<Handover> Open();

  int fd() const { return socket_.get(); }
  const std::string& name() const { return name_; }

  // Sends copies of `fds` to the socket `name`. kUnavailable: its queue is full, try again. Any
  // other error: it cannot be reached from here.
  absl::Status Send(absl::string_view name, absl::string_view words,
                    absl::Span<const int> fds) const;

  // The next parcel, of those that a process of this user sent.
  std::optional<Parcel> Receive() const;

 private:
  Handover(FileDescriptor socket, std::string name)
      : socket_(std::move(socket)), name_(std::move(name)) {}
  FileDescriptor socket_;
  std::string name_;
};

}  // namespace trainyard::engine
