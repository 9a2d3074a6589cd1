#include "tests/gpu/emulator/nccl_group.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "tests/gpu/emulator/stream.h"

namespace trainyard::emulator {

// In front of every message. Both ends must mean the same one.
struct NcclHeader {
  uint64_t bytes = 0;
  uint32_t kind = 0;
  uint32_t root = 0;
};

struct NcclMessage {
  NcclHeader header;
  char* data = nullptr;
  bool begun = false;  // the header has been moved
  size_t moved = 0;
};

// What a group exchanges with each rank, message by message. Its own part of a collective it
// copies.
class NcclGroup {
 public:
  NcclGroup(std::shared_ptr<NcclEnd> end, const std::vector<Operation>& operations);
  // Goes on as far as it goes; whether it is done.
  bool Advance();

 private:
  bool SendTo(int rank);
  bool ReceiveFrom(int rank);
  bool Over(int rank) const;

  const std::shared_ptr<NcclEnd> end_;
  const uint64_t place_;
  std::vector<std::deque<NcclMessage>> out_, in_;  // by rank
  struct Copy {
    char* to;
    const char* from;
    size_t bytes;
  };
  std::vector<Copy> copies_;
};

NcclGroup::NcclGroup(std::shared_ptr<NcclEnd> end, const std::vector<Operation>& operations)
    : end_(std::move(end)), place_(end_->issued_++), out_(end_->size()), in_(end_->size()) {
  const int self = end_->rank();
  for (const Operation& operation : operations) {
    const auto kind = static_cast<uint32_t>(operation.kind);
    char* const from = const_cast<char*>(operation.from);
    switch (operation.kind) {
      case Collective::kSend:
        out_[operation.peer].push_back({{operation.bytes, 0, 0}, from});
        break;
      case Collective::kReceive:
        in_[operation.peer].push_back({{operation.bytes, 0, 0}, operation.to});
        break;
      case Collective::kAllGather:
        for (int r = 0; r < end_->size(); ++r) {
          if (r == self) continue;
          out_[r].push_back({{operation.bytes, kind, 0}, from});
          in_[r].push_back({{operation.bytes, kind, 0}, operation.to + r * operation.bytes});
        }
        copies_.push_back({operation.to + self * operation.bytes, from, operation.bytes});
        break;
      case Collective::kBroadcast: {
        const NcclHeader header = {operation.bytes, kind, static_cast<uint32_t>(operation.peer)};
        if (operation.peer != self) {
          in_[operation.peer].push_back({header, operation.to});
          break;
        }
        for (int r = 0; r < end_->size(); ++r) {
          if (r != self) out_[r].push_back({header, from});
        }
        copies_.push_back({operation.to, from, operation.bytes});
        break;
      }
    }
  }
}

// A sender is done when the receiver has all of it: nobody may count on a buffer between them.
bool NcclGroup::SendTo(int rank) {
  Channel& channel = end_->memory_->channels[end_->rank()][rank];
  bool moved = false;
  while (!out_[rank].empty()) {
    NcclMessage& message = out_[rank].front();
    if (!message.begun) {
      if (!channel.Drained()) return moved;
      channel.Write(&message.header, sizeof(NcclHeader));
      message.begun = true;
    }
    const size_t count =
        channel.Write(message.data + message.moved, message.header.bytes - message.moved);
    message.moved += count;
    moved |= count > 0;
    if (message.moved < message.header.bytes || !channel.Drained()) return moved;
    out_[rank].pop_front();
    moved = true;
  }
  return moved;
}

// A message that is not the one that is expected stays where it is, and both ends wait for ever.
bool NcclGroup::ReceiveFrom(int rank) {
  Channel& channel = end_->memory_->channels[rank][end_->rank()];
  bool moved = false;
  while (!in_[rank].empty()) {
    NcclMessage& message = in_[rank].front();
    if (!message.begun) {
      NcclHeader header;
      if (!channel.Peek(&header, sizeof(header))) return moved;
      if (std::memcmp(&header, &message.header, sizeof(header)) != 0) return moved;
      channel.Read(&header, sizeof(header));
      message.begun = true;
    }
    const size_t count =
        channel.Read(message.data + message.moved, message.header.bytes - message.moved);
    message.moved += count;
    moved |= count > 0;
    if (message.moved < message.header.bytes) return moved;
    in_[rank].pop_front();
    moved = true;
  }
  return moved;
}

bool NcclGroup::Over(int rank) const { return out_[rank].empty() && in_[rank].empty(); }

bool NcclGroup::Advance() {
  if (end_->stopped_ && !end_->aborted_) {
    std::fprintf(stderr, "emulator: an operation of a communicator that was destroyed\n");
    std::abort();
  }
  if (end_->aborted_) return true;
  if (end_->done_ != place_) return false;
  if (NcclFault() != 0) end_->error_ = static_cast<NcclEnd::NcclResult>(NcclFault());
  if (end_->error_ != kernels::cuda::kNcclSuccess) return false;
  bool over = true;
  for (bool moved = true; moved;) {
    moved = false;
    over = true;
    for (int r = 0; r < end_->size(); ++r) {
      moved |= SendTo(r);
      moved |= ReceiveFrom(r);
      over &= Over(r);
    }
  }
  if (!over) {
    for (int r = 0; r < end_->size(); ++r) {
      if (!Over(r) && r != end_->rank()) AwaitRank(*end_->memory_, r);
    }
    return false;
  }
  for (const Copy& copy : copies_) {
    if (copy.bytes > 0 && copy.to != copy.from) std::memmove(copy.to, copy.from, copy.bytes);
  }
  ++end_->done_;
  return true;
}

Advance IssueGroup(std::shared_ptr<NcclEnd> end, const std::vector<Operation>& operations) {
  const auto group = std::make_shared<NcclGroup>(std::move(end), operations);
  return [group] { return group->Advance(); };
}

NcclEnd::~NcclEnd() { Stop(); }

bool NcclEnd::Linked() {
  if (server_.joinable()) return true;
  if (memory_->joined != (uint32_t{1} << size_) - 1) return false;
  server_ = std::thread([this] { Serve(); });
  return true;
}

bool NcclEnd::Connect(const std::vector<Operation>& operations, bool only_look) {
  bool all = true;
  for (const Operation& operation : operations) {
    const bool one = operation.kind == Collective::kSend || operation.kind == Collective::kReceive;
    for (int r = one ? operation.peer : 0; r < (one ? operation.peer + 1 : size_); ++r) {
      all = all && connected_[r];
      if (!only_look) connected_[r] = true;
    }
  }
  return all;
}

// A GPU goes on whatever its host does. Here work runs when somebody waits for it, and this is
// where another rank does.
void NcclEnd::Serve() {
  while (!stopped_) {
    if (!IsAwaited(*memory_, rank_)) continue;
    const uint64_t until = issued_;
    RunAllUntil([this, until] { return stopped_ || done_ >= until; });
  }
}

void NcclEnd::Abort() {
  aborted_ = true;
  Stop();
}

void NcclEnd::Stop() {
  stopped_ = true;
  if (!server_.joinable()) return;
  AwaitRank(*memory_, rank_);
  server_.join();
}

int& NcclFault() {
  static int fault = 0;
  return fault;
}

}  // namespace trainyard::emulator
