#pragma once

// The connection between two ranks over which they tell each other how they are: small messages,
// each with its tag. It never blocks.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "executor/engine/parallel/authentication.h"
#include "executor/engine/parallel/handshake.h"
#include "storage/base/file.h"

namespace trainyard::engine {

enum class ControlKind : uint32_t {
  kHeartbeat = 1,
  kFailure = 2,       // a status: a rank failed, or Abort was called
  kGoodbye = 3,       // the sender's communicator is gone, in good order
  kMemoryOffer = 4,   // the name of the socket over which shared memory can be had; "" for none
  kMemoryAnswer = 5,  // "yes" or "no"
  kReady = 6,         // the sender has met all ranks
};

struct ControlMessage {
  ControlKind kind;
  std::string body;
};

// A status as the body of a kFailure. Messages are cut after 2,000 bytes.
std::string EncodeStatus(const absl::Status& status);
// Never OK: a body that is none, or says OK, is kUnavailable.
absl::Status DecodeStatus(absl::string_view body);

// For one thread at a time.
class ControlLink {
 public:
  ControlLink(FileDescriptor socket, const Session& session);

  int fd() const { return socket_.get(); }
  // False once the other end has closed, or the connection failed.
  bool open() const { return socket_.valid(); }
  void Close() { socket_.Reset(-1); }

  // Sends as soon as the socket takes it. A heartbeat is left out while earlier messages still
  // wait, and everything once the other end does not receive any more.
  void Send(ControlKind kind, absl::string_view body = "");
  void Flush();
  bool has_unsent() const { return open() && !unsent_.empty(); }

  // Adds the messages that have come to `messages`. An error: what came does not verify or is no
  // message. A link that was closed meanwhile is not open() afterwards.
  absl::Status Read(std::vector<ControlMessage>& messages);

 private:
  absl::Status TakeMessages(std::vector<ControlMessage>& messages);

  FileDescriptor socket_;
  MessageMac send_mac_;
  MessageMac receive_mac_;
  uint64_t sent_ = 0;      // messages
  uint64_t received_ = 0;  // messages
  std::string unsent_;
  std::string unread_;
};

}  // namespace trainyard::engine
