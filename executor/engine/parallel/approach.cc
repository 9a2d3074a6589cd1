#include "executor/engine/parallel/approach.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <string>

#include "executor/engine/parallel/sockets.h"
#include "storage/base/status.h"

namespace trainyard::engine {

int16_t Approach::events() const {
  return connecting_ || !handshake_.outgoing().empty() ? POLLOUT : POLLIN;
}

absl::Status Approach::Advance(Time now) {
  if (connecting_) {
    pollfd wait{fd(), POLLOUT, 0};
    if (poll(&wait, 1, 0) > 0) {
      const int error = ConnectError(fd());
      if (error != 0) return absl::UnavailableError(strerror(error));
      connecting_ = false;
    }
  }
  bool received = !connecting_;
  while (received) {
    TY_RETURN_IF_ERROR(SendSome());
    if (done() || !handshake_.outgoing().empty()) break;
    TY_RETURN_IF_ERROR(ReceiveSome(received));
  }
  if (now > give_up_ && !handshake_.proven()) {
    return absl::DeadlineExceededError(connecting_ ? "no answer to a connection"
                                                   : "no answer to a greeting");
  }
  return absl::OkStatus();
}

absl::Status Approach::SendSome() {
  std::string& outgoing = handshake_.outgoing();
  while (!outgoing.empty()) {
    const ssize_t n = send(fd(), outgoing.data(), outgoing.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (n < 0) return absl::UnavailableError(strerror(errno));
    outgoing.erase(0, n);
  }
  return absl::OkStatus();
}

absl::Status Approach::ReceiveSome(bool& received) {
  // Not a byte more than belongs to the handshake: what follows is read by whoever gets the socket.
  const size_t missing = handshake_.next_bytes() - incoming_.size();
  char buffer[512];
  TY_CHECK(missing > 0 && missing <= sizeof buffer, missing);
  const ssize_t n = recv(fd(), buffer, missing, MSG_DONTWAIT);
  received = n > 0 || (n < 0 && errno == EINTR);
  if (n == 0) return absl::UnavailableError("it closed the connection");
  if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    return absl::UnavailableError(strerror(errno));
  }
  if (n > 0) incoming_.append(buffer, n);
  if (incoming_.size() < handshake_.next_bytes()) return absl::OkStatus();
  const absl::Status status = handshake_.Receive(incoming_);
  incoming_.clear();
  // The other end learns from the answer what is wrong.
  if (!status.ok()) (void)SendSome();
  return status;
}

}  // namespace trainyard::engine
