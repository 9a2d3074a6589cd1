#include "executor/engine/parallel/control_link.h"

#include <errno.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/engine/parallel/wire.h"
#include "storage/base/printable.h"

namespace trainyard::engine {
namespace {

constexpr size_t kHeaderBytes = 8;  // kind and length of the body, 32 bits each
constexpr size_t kMostBodyBytes = 2048;
constexpr size_t kMostWords = 2000;
// A rank that does not read for so long that this much waits to be sent is judged by its silence.
constexpr size_t kMostUnsentBytes = 64 << 10;

}  // namespace

std::string EncodeStatus(const absl::Status& status) {
  std::string body;
  AppendInteger(static_cast<uint32_t>(status.code()), body);
  absl::StrAppend(&body, status.message().substr(0, kMostWords));
  return body;
}

absl::Status DecodeStatus(absl::string_view body) {
  if (body.size() < sizeof(uint32_t)) return absl::UnavailableError("it failed without words");
  const auto code = ConsumeInteger<uint32_t>(body);
  const bool known = code >= static_cast<uint32_t>(absl::StatusCode::kCancelled) &&
                     code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnavailable,
                      Printable(body));
}

ControlLink::ControlLink(FileDescriptor socket, const Session& session)
    : socket_(std::move(socket)), send_mac_(session.send_key), receive_mac_(session.receive_key) {}

void ControlLink::Send(ControlKind kind, absl::string_view body) {
  if (!open()) return;
  if (!unsent_.empty() && (kind == ControlKind::kHeartbeat || unsent_.size() > kMostUnsentBytes)) {
    return;
  }
  std::string message;
  AppendInteger(static_cast<uint32_t>(kind), message);
  AppendInteger(static_cast<uint32_t>(body.size()), message);
  absl::StrAppend(&message, body);
  send_mac_.Begin(sent_++, 0);
  send_mac_.Add(message);
  absl::StrAppend(&unsent_, message, View(send_mac_.Finish()));
  Flush();
}

void ControlLink::Flush() {
  while (has_unsent()) {
    const ssize_t n =
        send(socket_.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) {
      // What the other end said before it went may still be read.
      unsent_.clear();
      return;
    }
    unsent_.erase(0, n);
  }
}

absl::Status ControlLink::Read(std::vector<ControlMessage>& messages) {
  // Bounded, so that a rank that sends without end cannot keep this thread.
  for (int i = 0; open() && i < 64; ++i) {
    char buffer[4096];
    const ssize_t n = recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) {
      Close();
      break;
    }
    unread_.append(buffer, n);
    if (absl::Status status = TakeMessages(messages); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ControlLink::TakeMessages(std::vector<ControlMessage>& messages) {
  absl::string_view rest = unread_;
  while (rest.size() >= kHeaderBytes + kTagBytes) {
    absl::string_view fields = rest;
    const auto kind = ConsumeInteger<uint32_t>(fields);
    const auto length = ConsumeInteger<uint32_t>(fields);
    if (length > kMostBodyBytes) return absl::UnavailableError("sent a message that is none");
    const size_t bytes = kHeaderBytes + length;
    if (rest.size() < bytes + kTagBytes) break;
    receive_mac_.Begin(received_++, 0);
    receive_mac_.Add(rest.substr(0, bytes));
    if (!SameBytes(View(receive_mac_.Finish()), rest.substr(bytes, kTagBytes))) {
      return absl::UnavailableError("sent a message that does not verify");
    }
    messages.push_back({static_cast<ControlKind>(kind), std::string(fields.substr(0, length))});
    rest.remove_prefix(bytes + kTagBytes);
  }
  unread_.erase(0, unread_.size() - rest.size());
  return absl::OkStatus();
}

}  // namespace trainyard::engine
