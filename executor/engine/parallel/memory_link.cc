#include "executor/engine/parallel/memory_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/engine/parallel/sockets.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// What is copied before the other end hears of it: little enough to be in the cache of the core
// that copies it on, and to let both ends copy at the same time.
constexpr size_t kMemoryPieceBytes = 128 << 10;

class MemoryLink : public DataLink {
 public:
  MemoryLink(SharedMemory memory, FileDescriptor their_doorbell, LinkNames names)
      : memory_(std::move(memory)),
        their_doorbell_(std::move(their_doorbell)),
        names_(std::move(names)),
        writer_(memory_.head().rings[memory_.side()], memory_.ring(memory_.side())),
        reader_(memory_.head().rings[1 - memory_.side()], memory_.ring(1 - memory_.side())) {}

  void Begin(absl::Span<const char> send, absl::Span<char> receive) override {
    send_ = send;
    receive_ = receive;
    const MessageHeader header{.number = number_, .length = send.size(), .expects = receive.size()};
    std::memcpy(send_head_.data(), &header, sizeof header);
    unsent_head_ = send.empty() ? 0 : sizeof header;
    unread_head_ = receive.empty() ? 0 : sizeof header;
    send_bytes_ = send.size();
    receive_bytes_ = receive.size();
    ++number_;
  }

  absl::StatusOr<bool> Progress() override {
    TY_ASSIGN_OR_RETURN(const bool sent, SendPiece());
    TY_ASSIGN_OR_RETURN(const bool received, ReceivePiece());
    if (sent || received) RingIfWanted();
    return sent || received;
  }

  bool done() const override { return send_.empty() && receive_.empty(); }

  void AskForRing() override { my_side().wants_ring.exchange(1, std::memory_order_acq_rel); }

 private:
  absl::StatusOr<bool> SendPiece();
  absl::StatusOr<bool> ReceivePiece();
  absl::Status CheckHead();
  absl::Status Named(const absl::Status& status) const {
    return absl::Status(status.code(), absl::StrCat(names_.peer, " ", status.message()));
  }
  MemoryHead::Side& my_side() { return memory_.head().sides[memory_.side()]; }
  MemoryHead::Side& their_side() { return memory_.head().sides[1 - memory_.side()]; }

  // Whichever of this exchange and that of AskForRing comes second sees what the other end did
  // before the first: this one that the other end waits, or the other end what this one has moved.
  void RingIfWanted() {
    if (their_side().wants_ring.exchange(0, std::memory_order_acq_rel) != 0) {
      RingDoorbell(their_doorbell_.get());
    }
  }

  SharedMemory memory_;
  FileDescriptor their_doorbell_;
  const LinkNames names_;
  RingWriter writer_;
  RingReader reader_;
  uint64_t number_ = 0;  // of the next exchange

  // What is still to be moved.
  absl::Span<const char> send_;
  absl::Span<char> receive_;
  size_t unsent_head_ = 0;
  size_t unread_head_ = 0;
  size_t send_bytes_ = 0;  // of the whole message
  size_t receive_bytes_ = 0;
  std::array<char, sizeof(MessageHeader)> send_head_;
  std::array<char, sizeof(MessageHeader)> receive_head_;
};

absl::StatusOr<bool> MemoryLink::SendPiece() {
  if (send_.empty()) return false;
  bool moved = false;
  if (unsent_head_ > 0) {
    const absl::Span<const char> head(send_head_);
    const absl::StatusOr<size_t> sent = writer_.Write(head.last(unsent_head_));
    if (!sent.ok()) return Named(sent.status());
    unsent_head_ -= *sent;
    moved = *sent > 0;
    if (unsent_head_ > 0) return moved;
  }
  const absl::StatusOr<size_t> sent =
      writer_.Write(send_.first(std::min(send_.size(), kMemoryPieceBytes)));
  if (!sent.ok()) return Named(sent.status());
  send_.remove_prefix(*sent);
  return moved || *sent > 0;
}

absl::StatusOr<bool> MemoryLink::ReceivePiece() {
  if (receive_.empty()) return false;
  bool moved = false;
  if (unread_head_ > 0) {
    const absl::Span<char> head(receive_head_.data(), receive_head_.size());
    const absl::StatusOr<size_t> received = reader_.Read(head.last(unread_head_));
    if (!received.ok()) return Named(received.status());
    unread_head_ -= *received;
    moved = *received > 0;
    if (unread_head_ > 0) return moved;
    TY_RETURN_IF_ERROR(CheckHead());
  }
  const absl::StatusOr<size_t> received =
      reader_.Read(receive_.first(std::min(receive_.size(), kMemoryPieceBytes)));
  if (!received.ok()) return Named(received.status());
  receive_.remove_prefix(*received);
  return moved || *received > 0;
}

absl::Status MemoryLink::CheckHead() {
  MessageHeader header;
  std::memcpy(&header, receive_head_.data(), sizeof header);
  return CheckHeader(header, number_ - 1, send_bytes_, receive_bytes_, names_);
}

}  // namespace

std::unique_ptr<DataLink> MakeMemoryLink(SharedMemory memory, FileDescriptor their_doorbell,
                                         LinkNames names) {
  return std::make_unique<MemoryLink>(std::move(memory), std::move(their_doorbell),
                                      std::move(names));
}

}  // namespace trainyard::engine
