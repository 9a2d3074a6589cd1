#include "executor/engine/parallel/mesh.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/engine/parallel/sockets.h"
#include "executor/engine/parallel/watch.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A rank that ends says goodbye, or closes its control connection, at about the time when its other
// connection closes. It is given this long, so that the error says which of the two it was.
constexpr std::chrono::milliseconds kLastWords(1000);
constexpr int kPollMs = 500;
// After so long the other ranks have told where they are since an exchange began to stand still.
constexpr absl::Duration kOldNews = absl::Seconds(2);

std::vector<WatchedRank> TakeControl(std::vector<MeshPeer>& peers) {
  std::vector<WatchedRank> ranks;
  for (MeshPeer& peer : peers) {
    ranks.push_back({peer.name, std::move(peer.control), peer.left});
  }
  return ranks;
}

class Mesh : public Communicator {
 public:
  Mesh(MeshOptions options, FileDescriptor doorbell, std::vector<MeshPeer> peers)
      : options_(options),
        doorbell_(std::move(doorbell)),
        peers_(std::move(peers)),
        active_(peers_.size()),
        patience_(options.progress_timeout.value_or(absl::InfiniteDuration())),
        watch_(TakeControl(peers_), options.silence, doorbell_.get()) {}

  int rank() const override { return options_.rank; }
  int size() const override { return static_cast<int>(peers_.size()); }
  int64_t bytes_sent() const override { return bytes_sent_; }

  absl::Status Exchange(absl::Span<const Transfer> transfers) override {
    if (watch_.failed()) return watch_.failure();
    watch_.SetWhereabouts({.calls = ++calls_, .last = collective(), .inside = true});
    absl::Status status = Begin(transfers);
    if (status.ok()) status = Finish();
    // The ranks are out of step now, whatever it was. Others must not take this one for one that
    // has gone on without them: to them it is still inside.
    if (!status.ok()) return watch_.Fail(std::move(status));
    watch_.SetWhereabouts({.calls = calls_, .last = collective(), .inside = false});
    return status;
  }

  void Abort(absl::Status why) override {
    (void)watch_.Fail(absl::CancelledError(
        absl::StrCat(peers_[options_.rank].name, " gave up: ", why.message())));
  }

  absl::Status Failure() const override { return watch_.failure(); }

  std::string name(int rank) const override { return peers_[rank].name; }

  bool shares_memory(int rank) const override { return peers_[rank].shares_memory; }

  void SetPatience(absl::Duration patience) override {
    patience_ = options_.progress_timeout.value_or(patience);
  }

  std::string description() const override {
    int memory = 0;
    for (const MeshPeer& peer : peers_) memory += peer.shares_memory;
    return absl::StrCat(size(), size() == 1 ? " rank: " : " ranks: ", memory,
                        " others by shared memory, ", size() - 1 - memory, " by TCP");
  }

 private:
  absl::Status Begin(absl::Span<const Transfer> transfers);
  absl::Status Finish();
  absl::Status CopyToSelf(const Transfer& transfer) const;
  // Advances every link of this exchange. Returns whether anything moved.
  absl::StatusOr<bool> ProgressAll();
  absl::Status CheckGone(int peer);
  absl::Status Sleep();
  // The exchange stands still: names the ranks that it waits for, or, if all of these wait
  // themselves, those that do not; and where they are.
  std::string WhoHangs() const;

  const MeshOptions options_;
  FileDescriptor doorbell_;
  std::vector<MeshPeer> peers_;

  // Of the exchange in progress, or the last one.
  std::vector<bool> active_;  // ranks whose links are not done yet
  int active_count_ = 0;
  int active_memory_ = 0;  // of these, the ones that share memory
  SteadyClock::time_point last_move_;
  absl::Duration patience_;

  uint64_t calls_ = 0;
  int64_t bytes_sent_ = 0;
  Watch watch_;  // last: its thread rings the doorbell
};

absl::Status Mesh::CopyToSelf(const Transfer& transfer) const {
  if (transfer.send.size() != transfer.receive.size()) {
    return absl::InternalError(absl::StrCat(peers_[rank()].name, " sends itself ",
                                            transfer.send.size(), " bytes and expects ",
                                            transfer.receive.size()));
  }
  if (!transfer.send.empty()) {
    std::memmove(transfer.receive.data(), transfer.send.data(), transfer.send.size());
  }
  return absl::OkStatus();
}

absl::Status Mesh::Begin(absl::Span<const Transfer> transfers) {
  active_count_ = active_memory_ = 0;
  active_.assign(peers_.size(), false);
  std::vector<bool> named(peers_.size());
  for (const Transfer& transfer : transfers) {
    if (transfer.peer < 0 || transfer.peer >= size()) {
      return absl::InternalError(absl::StrCat(peers_[rank()].name, " exchanges with rank ",
                                              transfer.peer, " of ", size()));
    }
    if (named[transfer.peer]) {
      return absl::InternalError(absl::StrCat(peers_[rank()].name, " exchanges with ",
                                              peers_[transfer.peer].name, " twice at once"));
    }
    named[transfer.peer] = true;
    if (transfer.peer == rank()) {
      TY_RETURN_IF_ERROR(CopyToSelf(transfer));
      continue;
    }
    if (transfer.send.empty() && transfer.receive.empty()) continue;
    MeshPeer& peer = peers_[transfer.peer];
    if (!transfer.send.empty() && watch_.left(transfer.peer)) {
      return absl::UnavailableError(absl::StrCat(peer.name, " left"));
    }
    peer.data->Begin(transfer.send, transfer.receive);
    active_[transfer.peer] = true;
    ++active_count_;
    active_memory_ += peer.shares_memory;
    bytes_sent_ += static_cast<int64_t>(transfer.send.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Mesh::ProgressAll() {
  bool moved = false;
  for (int r = 0; r < size(); ++r) {
    if (!active_[r]) continue;
    DataLink& link = *peers_[r].data;
    // Asked first: what a rank sent before it left is there by now.
    const bool gone = watch_.left(r);
    TY_ASSIGN_OR_RETURN(const bool link_moved, link.Progress());
    moved |= link_moved;
    if (link.done()) {
      active_[r] = false;
      --active_count_;
      active_memory_ -= peers_[r].shares_memory;
    } else if (!link_moved && gone && (peers_[r].shares_memory || link.closed())) {
      return absl::UnavailableError(absl::StrCat(peers_[r].name, " left"));
    } else if (link.closed() && SteadyClock::now() - last_move_ > kLastWords) {
      return absl::UnavailableError(absl::StrCat(peers_[r].name, " closed a connection"));
    }
  }
  return moved;
}

absl::Status Mesh::Finish() {
  last_move_ = SteadyClock::now();
  while (active_count_ > 0) {
    TY_ASSIGN_OR_RETURN(const bool moved, ProgressAll());
    if (watch_.failed()) return watch_.failure();
    if (moved) {
      last_move_ = SteadyClock::now();
    } else if (active_memory_ == 0 ||
               SteadyClock::now() - last_move_ >= absl::ToChronoNanoseconds(options_.spin)) {
      TY_RETURN_IF_ERROR(Sleep());
    }
  }
  return absl::OkStatus();
}

std::string Mesh::WhoHangs() const {
  std::vector<std::string> awaited, busy;
  bool all_wait = patience_ >= kOldNews;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const Whereabouts whereabouts = watch_.whereabouts(r);
    const std::string name = absl::StrCat(peers_[r].name, ", ", Describe(whereabouts));
    if (active_[r]) {
      awaited.push_back(name);
      all_wait = all_wait && whereabouts.inside;
    }
    if (!whereabouts.inside && !watch_.left(r)) busy.push_back(name);
  }
  return absl::StrJoin(all_wait && !busy.empty() ? busy : awaited, ", and ");
}

absl::Status Mesh::Sleep() {
  if (active_memory_ > 0) {
    for (int r = 0; r < size(); ++r) {
      if (active_[r]) peers_[r].data->AskForRing();
    }
    TY_ASSIGN_OR_RETURN(const bool moved, ProgressAll());
    if (moved || active_count_ == 0) return absl::OkStatus();
  }
  const absl::Duration still = absl::FromChrono(SteadyClock::now() - last_move_);
  if (still > patience_) {
    return absl::DeadlineExceededError(absl::StrCat(
        WhoHangs(), ", did not do its part of ",
        Describe({.calls = calls_, .last = collective(), .inside = true}).substr(3), " of rank ",
        rank(), " for ", absl::FormatDuration(patience_), ": it hangs, or is that slow"));
  }
  const absl::Duration left = std::min(patience_ - still, absl::Milliseconds(kPollMs));
  std::vector<pollfd> waits = {{doorbell_.get(), POLLIN, 0}};
  for (int r = 0; r < size(); ++r) {
    if (!active_[r]) continue;
    DataLink& link = *peers_[r].data;
    if (link.Stuck(options_.silence)) {
      return absl::UnavailableError(absl::StrCat(peers_[r].name, " does not confirm bytes for ",
                                                 absl::FormatDuration(options_.silence)));
    }
    if (link.fd() >= 0) waits.push_back({link.fd(), link.events(), 0});
  }
  poll(waits.data(), waits.size(), static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  if (waits[0].revents != 0) SilenceDoorbell(doorbell_.get());
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Communicator> MakeMesh(MeshOptions options, FileDescriptor doorbell,
                                       std::vector<MeshPeer> peers) {
  return std::make_unique<Mesh>(options, std::move(doorbell), std::move(peers));
}

}  // namespace trainyard::engine
