#include "executor/engine/parallel/tcp_link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// What is sent or received at once: little enough to be in the cache still when its tag is
// computed.
constexpr size_t kTcpPieceBytes = 256 << 10;
constexpr size_t kHeadBytes = sizeof(MessageHeader) + kTagBytes;

// A header with its tag.
using Head = std::array<char, kHeadBytes>;

// The next pieces of head, payload and tail (a tag) of a message of which `done` bytes have been
// moved: at most `payload_end` bytes of the payload, and the tail only behind all of it.
class Pieces {
 public:
  Pieces(size_t done, char* head, char* payload, size_t payload_bytes, size_t payload_end,
         char* tail) {
    Add(done, head, kHeadBytes);
    Add(done, payload, payload_bytes, payload_end);
    if (payload_end == payload_bytes) Add(done, tail, kTagBytes);
  }

  msghdr Message() {
    msghdr message{};
    message.msg_iov = pieces_.data();
    message.msg_iovlen = count_;
    return message;
  }
  bool empty() const { return count_ == 0; }

 private:
  void Add(size_t& done, char* bytes, size_t count, size_t end) {
    const size_t skipped = std::min(done, count);
    if (skipped < end) pieces_[count_++] = {bytes + skipped, end - skipped};
    done -= skipped;
  }
  void Add(size_t& done, char* bytes, size_t count) { Add(done, bytes, count, count); }

  std::array<iovec, 3> pieces_;
  size_t count_ = 0;
};

class TcpLink : public DataLink {
 public:
  TcpLink(FileDescriptor socket, const Session& session, LinkNames names)
      : socket_(std::move(socket)),
        names_(std::move(names)),
        send_mac_(session.send_key),
        receive_mac_(session.receive_key) {}

  void Begin(absl::Span<const char> send, absl::Span<char> receive) override {
    send_ = send;
    receive_ = receive;
    sent_ = received_ = tagged_ = verified_ = 0;
    if (!send.empty()) {
      const MessageHeader header{
          .number = number_, .length = send.size(), .expects = receive.size()};
      std::memcpy(send_head_.data(), &header, sizeof header);
      send_mac_.Begin(number_, 0);
      send_mac_.Add(absl::string_view(send_head_.data(), sizeof header));
      const MacTag tag = send_mac_.Finish();
      std::memcpy(send_head_.data() + sizeof header, tag.data(), tag.size());
      send_mac_.Begin(number_, 1);
    }
    send_total_ = send.empty() ? 0 : kHeadBytes + send.size() + kTagBytes;
    receive_total_ = receive.empty() ? 0 : kHeadBytes + receive.size() + kTagBytes;
    ++number_;
    unconfirmed_since_ = std::chrono::steady_clock::now();
  }

  absl::StatusOr<bool> Progress() override {
    const size_t before = sent_ + received_;
    if (sent_ < send_total_) TY_RETURN_IF_ERROR(SendPiece());
    if (received_ < receive_total_) TY_RETURN_IF_ERROR(ReceivePiece());
    return sent_ + received_ > before;
  }

  bool done() const override { return sent_ == send_total_ && received_ == receive_total_; }
  bool closed() const override { return !socket_.valid(); }
  bool Stuck(absl::Duration patience) override;
  int fd() const override { return socket_.get(); }
  int16_t events() const override {
    return (sent_ < send_total_ ? POLLOUT : 0) | (received_ < receive_total_ ? POLLIN : 0);
  }

 private:
  absl::Status SendPiece();
  absl::Status ReceivePiece();
  absl::Status VerifyHead();
  // How many bytes `result` of sendmsg or recvmsg says were moved. Closes the socket at its end.
  size_t Moved(ssize_t result);

  FileDescriptor socket_;
  const LinkNames names_;
  MessageMac send_mac_;
  MessageMac receive_mac_;
  uint64_t number_ = 0;  // of the next exchange

  absl::Span<const char> send_;
  absl::Span<char> receive_;
  Head send_head_;
  Head receive_head_;
  MacTag send_tag_;
  MacTag receive_tag_;
  size_t send_total_ = 0;  // head, payload and tag; 0 when nothing is sent
  size_t receive_total_ = 0;
  size_t sent_ = 0;  // of send_total_
  size_t received_ = 0;
  size_t tagged_ = 0;    // bytes of the payload that are in send_mac_
  size_t verified_ = 0;  // bytes of the payload that are in receive_mac_
  std::chrono::steady_clock::time_point unconfirmed_since_;
};

size_t TcpLink::Moved(ssize_t result) {
  if (result > 0) return result;
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  socket_.Reset(-1);
  return 0;
}

bool TcpLink::Stuck(absl::Duration patience) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  const auto now = std::chrono::steady_clock::now();
  if (closed() || getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
      info.tcpi_unacked == 0) {
    unconfirmed_since_ = now;
    return false;
  }
  // A full receiver confirms, too: only a connection that is cut does not.
  unconfirmed_since_ =
      std::max(unconfirmed_since_, now - std::chrono::milliseconds(info.tcpi_last_ack_recv));
  return now - unconfirmed_since_ >= absl::ToChronoNanoseconds(patience);
}

absl::Status TcpLink::SendPiece() {
  if (closed()) return absl::OkStatus();
  const size_t payload_sent = sent_ < kHeadBytes ? 0 : std::min(sent_ - kHeadBytes, send_.size());
  const size_t end = std::min(send_.size(), payload_sent + kTcpPieceBytes);
  if (tagged_ < end) {
    send_mac_.Add(absl::string_view(send_.data() + tagged_, end - tagged_));
    tagged_ = end;
    if (tagged_ == send_.size()) send_tag_ = send_mac_.Finish();
  }
  Pieces pieces(sent_, send_head_.data(), const_cast<char*>(send_.data()), send_.size(), tagged_,
                send_tag_.data());
  const msghdr message = pieces.Message();
  sent_ += Moved(sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
  return absl::OkStatus();
}

absl::Status TcpLink::ReceivePiece() {
  if (closed()) return absl::OkStatus();
  const size_t end = std::min(receive_.size(), verified_ + kTcpPieceBytes);
  Pieces pieces(received_, receive_head_.data(), receive_.data(), receive_.size(), end,
                receive_tag_.data());
  msghdr message = pieces.Message();
  const bool had_head = received_ >= kHeadBytes;
  received_ += Moved(recvmsg(socket_.get(), &message, MSG_DONTWAIT));
  if (received_ < kHeadBytes) return absl::OkStatus();
  if (!had_head) TY_RETURN_IF_ERROR(VerifyHead());
  const size_t payload = std::min(received_ - kHeadBytes, receive_.size());
  receive_mac_.Add(absl::string_view(receive_.data() + verified_, payload - verified_));
  verified_ = payload;
  if (received_ == receive_total_ && !SameBytes(View(receive_mac_.Finish()), View(receive_tag_))) {
    return absl::UnavailableError(
        absl::StrCat("a message of ", names_.peer, " does not verify: it was changed on its way"));
  }
  return absl::OkStatus();
}

absl::Status TcpLink::VerifyHead() {
  MessageHeader header;
  std::memcpy(&header, receive_head_.data(), sizeof header);
  receive_mac_.Begin(number_ - 1, 0);
  receive_mac_.Add(absl::string_view(receive_head_.data(), sizeof header));
  const absl::string_view tag(receive_head_.data() + sizeof header, kTagBytes);
  // The tag of a message of another exchange verifies under that exchange's number.
  if (!SameBytes(View(receive_mac_.Finish()), tag)) {
    receive_mac_.Begin(header.number, 0);
    receive_mac_.Add(absl::string_view(receive_head_.data(), sizeof header));
    if (!SameBytes(View(receive_mac_.Finish()), tag)) {
      return absl::UnavailableError(absl::StrCat("a message of ", names_.peer,
                                                 " does not verify: it was changed on its way"));
    }
  }
  receive_mac_.Begin(number_ - 1, 1);
  return CheckHeader(header, number_ - 1, send_.size(), receive_.size(), names_);
}

}  // namespace

std::unique_ptr<DataLink> MakeTcpLink(FileDescriptor socket, const Session& session,
                                      LinkNames names) {
  return std::make_unique<TcpLink>(std::move(socket), session, std::move(names));
}

}  // namespace trainyard::engine
