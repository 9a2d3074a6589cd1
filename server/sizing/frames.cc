#include "server/sizing/frames.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr uint32_t kMagic = 0x54595332;  // "TYS2"

struct Header {
  uint32_t magic = kMagic;
  uint32_t kind = 0;
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

using Numbers = std::array<int64_t, 13>;

Numbers NumbersOf(const plan::DataFacts& f) {
  return {static_cast<int64_t>(f.kind),
          f.height,
          f.width,
          f.channels,
          f.classes,
          f.vocab,
          f.dense,
          f.categorical,
          f.buckets,
          f.train_size,
          f.validation_size,
          f.held_bytes,
          f.bytes_per_thread};
}

plan::DataFacts FactsOf(const Numbers& n) {
  return {.kind = static_cast<plan::DataFacts::Kind>(n[0]),
          .height = n[1],
          .width = n[2],
          .channels = n[3],
          .classes = n[4],
          .vocab = n[5],
          .dense = n[6],
          .categorical = n[7],
          .buckets = n[8],
          .train_size = n[9],
          .validation_size = n[10],
          .held_bytes = n[11],
          .bytes_per_thread = n[12]};
}

// Two strings as one, the first with its length before it.
std::string JoinTwo(const std::string& first, const std::string& second) {
  const uint64_t length = first.size();
  std::string joined(sizeof(length), '\0');
  std::memcpy(joined.data(), &length, sizeof(length));
  absl::StrAppend(&joined, first, second);
  return joined;
}

bool SplitTwo(const std::string& joined, std::string& first, std::string& second) {
  uint64_t length = 0;
  if (joined.size() < sizeof(length)) return false;
  std::memcpy(&length, joined.data(), sizeof(length));
  if (length > joined.size() - sizeof(length)) return false;
  first = joined.substr(sizeof(length), length);
  second = joined.substr(sizeof(length) + length);
  return true;
}

}  // namespace

absl::Status SendFrame(int socket, FrameKind kind, absl::string_view payload, SteadyTime deadline) {
  const Header header{.kind = static_cast<uint32_t>(kind), .bytes = payload.size()};
  std::string frame(sizeof(header), '\0');
  std::memcpy(frame.data(), &header, sizeof(header));
  frame.append(payload.data(), payload.size());
  return SendAll(socket, frame, deadline);
}

absl::StatusOr<Frame> ReceiveFrame(int socket, SteadyTime deadline) {
  Header header;
  TY_RETURN_IF_ERROR(ReceiveAll(socket, &header, sizeof(header), deadline));
  if (header.magic != kMagic || header.bytes > kLargestFrame) {
    return absl::UnavailableError("the other end is of another build");
  }
  Frame frame{.kind = static_cast<FrameKind>(header.kind),
              .payload = std::string(static_cast<size_t>(header.bytes), '\0')};
  TY_RETURN_IF_ERROR(ReceiveAll(socket, frame.payload.data(), frame.payload.size(), deadline));
  return frame;
}

std::string EncodeQuestion(const SizingQuestion& question) {
  return JoinTwo(question.identity, question.spec);
}

absl::StatusOr<SizingQuestion> DecodeQuestion(const Frame& frame) {
  SizingQuestion question;
  if (frame.kind != FrameKind::kQuestion ||
      !SplitTwo(frame.payload, question.identity, question.spec)) {
    return absl::InternalError("the question cannot be read");
  }
  return question;
}

std::string EncodeSizing(const Sizing& sizing, const std::string& identity) {
  const Numbers numbers = NumbersOf(sizing.facts);
  std::string bytes(sizeof(numbers), '\0');
  std::memcpy(bytes.data(), numbers.data(), sizeof(numbers));
  sizing.summary.AppendToString(&bytes);
  return JoinTwo(identity, bytes);
}

std::string EncodeError(const absl::Status& status) {
  const auto code = static_cast<uint32_t>(status.code());
  std::string bytes(sizeof(code), '\0');
  std::memcpy(bytes.data(), &code, sizeof(code));
  absl::StrAppend(&bytes, status.message().substr(0, 65536));
  return bytes;
}

absl::StatusOr<absl::StatusOr<SizingAnswer>> DecodeAnswer(const Frame& frame) {
  const absl::Status none = absl::UnavailableError("the helper gave no answer that can be read");
  using Answer = absl::StatusOr<SizingAnswer>;
  if (frame.kind == FrameKind::kUnchanged) return Answer(SizingAnswer{.unchanged = true});
  if (frame.kind == FrameKind::kError) {
    uint32_t code = 0;
    if (frame.payload.size() < sizeof(code)) return none;
    std::memcpy(&code, frame.payload.data(), sizeof(code));
    if (code == 0 || code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) return none;
    return Answer(
        absl::Status(static_cast<absl::StatusCode>(code), frame.payload.substr(sizeof(code))));
  }
  SizingAnswer answer;
  std::string bytes;
  Numbers numbers;
  if (frame.kind != FrameKind::kSizing || !SplitTwo(frame.payload, answer.identity, bytes) ||
      bytes.size() < sizeof(numbers)) {
    return none;
  }
  std::memcpy(numbers.data(), bytes.data(), sizeof(numbers));
  answer.sizing.facts = FactsOf(numbers);
  if (!answer.sizing.summary.ParseFromString(bytes.substr(sizeof(numbers)))) return none;
  return Answer(std::move(answer));
}

}  // namespace trainyard
