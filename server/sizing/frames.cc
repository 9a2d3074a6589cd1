#include "server/sizing/frames.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr uint64_t kMagic = 0x54595333;  // "TYS3"

// Before each message; numbers are those of the machine.
struct Header {
  uint64_t magic = kMagic;
  uint64_t bytes = 0;
};

// Waits until the socket is ready for `events`. kDeadlineExceeded: `deadline` has passed.
absl::Status WaitFor(int socket, short events, SteadyTime deadline) {
  for (;;) {
    int timeout_ms = -1;
    if (deadline != SteadyTime::max()) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
    }
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, timeout_ms);
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError("the other end is silent");
    if (errno != EINTR) return ErrnoStatus(errno, "poll");
  }
}

absl::Status Gone() { return absl::UnavailableError("the other end is gone"); }

absl::Status SendAll(int socket, absl::string_view data, SteadyTime deadline) {
  while (!data.empty()) {
    const ssize_t n = send(socket, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      data.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TY_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Gone();
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int socket, void* to, size_t bytes, SteadyTime deadline) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = recv(socket, at, bytes, MSG_DONTWAIT);
    if (n > 0) {
      at += n;
      bytes -= static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      TY_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline));
    } else if (n == 0 || errno != EINTR) {
      return Gone();
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Send(int socket, const google::protobuf::MessageLite& message, SteadyTime deadline) {
  const Header header{.bytes = message.ByteSizeLong()};
  std::string frame(sizeof(header), '\0');
  std::memcpy(frame.data(), &header, sizeof(header));
  message.AppendToString(&frame);
  return SendAll(socket, frame, deadline);
}

absl::Status Receive(int socket, google::protobuf::MessageLite& message, SteadyTime deadline) {
  Header header;
  TY_RETURN_IF_ERROR(ReceiveAll(socket, &header, sizeof(header), deadline));
  std::string bytes;
  if (header.magic == kMagic && header.bytes <= kLargestFrame) {
    bytes.resize(static_cast<size_t>(header.bytes));
    TY_RETURN_IF_ERROR(ReceiveAll(socket, bytes.data(), bytes.size(), deadline));
    if (message.ParseFromString(bytes)) return absl::OkStatus();
  }
  return absl::UnavailableError("the other end is of another build");
}

sizing::Answer ErrorAnswer(const absl::Status& status) {
  sizing::Answer answer;
  answer.mutable_error()->set_code(static_cast<int32_t>(status.code()));
  answer.mutable_error()->set_message(std::string(status.message().substr(0, 65536)));
  return answer;
}

bool Answers(const sizing::Question& question, const sizing::Answer& answer) {
  switch (question.asks_case()) {
    case sizing::Question::kSize:
      return answer.has_sizing() || (answer.unchanged() && !question.size().identity().empty());
    case sizing::Question::kWhatFits:
      return answer.has_what_fits();
    case sizing::Question::kChooseMesh:
      return answer.has_mesh();
    case sizing::Question::kPlanLayouts:
      return answer.has_layouts();
    case sizing::Question::ASKS_NOT_SET:
      break;
  }
  return false;
}

absl::StatusOr<sizing::Answer> WithoutError(sizing::Answer answer) {
  if (!answer.has_error()) return answer;
  const int32_t code = answer.error().code();
  if (code <= 0 || code > static_cast<int32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::UnavailableError("the helper gave no answer that can be read");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), answer.error().message());
}

}  // namespace trainyard
