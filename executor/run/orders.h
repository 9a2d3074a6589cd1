#pragma once

// What an agent tells a waiting worker: which rank it is to be, as one line of JSON through the
// worker's standard input. That is one end of a UNIX socket, by which a file in memory comes along.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/file.h"

namespace trainyard::run {

// Another user than the agent's, as whom a rank runs.
struct UnixUser {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // all of its groups, gid among them
  std::string home;
};

struct Orders {
  // The rank's folder. With a user it is the worker's working directory, since the folders above it
  // are the agent's alone.
  std::string run_directory;
  std::string device;
  int threads = 1;
  // How much of this node's memory there is for a state that comes from another node.
  int64_t kept_state_room = 0;
  std::optional<UnixUser> user;  // none: as the agent
  bool confined = false;  // only for a worker that knows what it was confined to (confinement.h)
  std::map<std::string, std::string> environment;  // set before anything of the job is read
};

// Sends the line and, if `state` is not -1, that descriptor.
absl::Status GiveOrders(int socket, const Orders& orders, int state);

// The line without its end. kInvalidArgument names what is missing.
absl::StatusOr<Orders> ParseOrders(const std::string& line);

// What comes through a worker's standard input, piece by piece.
class OrdersReader {
 public:
  // Reads once, which may wait. kUnavailable: the other end is gone, or sends no line.
  absl::Status Read(int socket);

  // The line is whole.
  bool done() const { return done_; }
  const std::string& line() const { return line_; }
  const std::string& rest() const { return rest_; }  // what was read behind the line
  FileDescriptor TakeState() { return std::move(state_); }

 private:
  std::string line_, rest_;
  FileDescriptor state_;
  bool done_ = false;
};

}  // namespace trainyard::run
