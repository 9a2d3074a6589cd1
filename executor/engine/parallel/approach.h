#pragma once

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "executor/engine/parallel/handshake.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// A connection whose two ends do not know each other yet. It never blocks.
class Approach {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `give_up`: by when the other end must have shown that it knows the secret.
  Approach(FileDescriptor socket, Handshake handshake, bool connecting, Time give_up)
      : socket_(std::move(socket)),
        handshake_(std::move(handshake)),
        connecting_(connecting),
        give_up_(give_up) {}

  int fd() const { return socket_.get(); }
  int16_t events() const;

  // Goes on with the handshake as far as that is possible without waiting. kUnavailable: the
  // connection failed or was closed; kDeadlineExceeded: too late; others are those of
  // Handshake::Receive.
  absl::Status Advance(Time now);

  const Handshake& handshake() const { return handshake_; }
  bool done() const { return handshake_.done() && handshake_.outgoing().empty(); }
  FileDescriptor TakeSocket() { return std::move(socket_); }

 private:
  absl::Status SendSome();
  absl::Status ReceiveSome(bool& received);

  FileDescriptor socket_;
  Handshake handshake_;
  bool connecting_;  // connect() is not done yet
  Time give_up_;
  std::string incoming_;  // the beginning of the next message
};

}  // namespace trainyard::engine
