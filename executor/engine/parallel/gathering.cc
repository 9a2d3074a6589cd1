#include "executor/engine/parallel/gathering.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/engine/parallel/memory_link.h"
#include "executor/engine/parallel/sockets.h"
#include "executor/engine/parallel/tcp_link.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

using std::chrono::milliseconds;

// How long a connection may take to show that it knows the secret, and how many may try at once; if
// there are more, the oldest has to go.
constexpr milliseconds kHandshake(5000);
constexpr size_t kMostApproaches = 256;
constexpr milliseconds kLongestPause(200);
// How long a rank that gives up stays to tell those that it has not met yet.
constexpr milliseconds kStay(1000);
constexpr int kTickMs = 20;  // the loop looks at its clock at least this often
constexpr int kMostRanks = 1024;

std::string NameOf(const Rendezvous& rendezvous, int rank) {
  const int name = rendezvous.names.empty() ? rank : rendezvous.names.at(rank);
  return absl::StrCat("rank ", name, " (", rendezvous.addresses[rank], ")");
}

int Cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

size_t Index(Purpose purpose) { return static_cast<size_t>(purpose) - 1; }

}  // namespace

Gathering::Gathering(Rendezvous rendezvous)
    : rendezvous_(std::move(rendezvous)),
      listener_(rendezvous_.listening_fd),
      self_{.rank = rendezvous_.rank,
            .size = static_cast<int>(rendezvous_.addresses.size()),
            .version = rendezvous_.version,
            .secret = rendezvous_.secret},
      size_(self_.size),
      deadline_(std::chrono::steady_clock::now() +
                absl::ToChronoNanoseconds(
                    std::clamp(rendezvous_.timeout, absl::ZeroDuration(), absl::Hours(24)))) {}

absl::StatusOr<std::unique_ptr<Communicator>> Gathering::Run() {
  TY_RETURN_IF_ERROR(Check());
  peers_.resize(size_);
  for (int r = 0; r < size_; ++r) peers_[r].name = NameOf(rendezvous_, r);
  TY_RETURN_IF_ERROR(Open());
  if (absl::Status status = Gather(); !status.ok()) {
    if (!absl::IsInvalidArgument(status)) TellAll(status);
    return status;
  }
  return Finish();
}

absl::Status Gathering::Check() const {
  if (size_ < 1 || size_ > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a gang of ", size_, " ranks; 1 to ", kMostRanks, " can meet"));
  }
  if (self_.rank < 0 || self_.rank >= size_) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", self_.rank, " of ", size_));
  }
  if (self_.secret.empty()) return absl::InvalidArgumentError("the secret of the attempt is empty");
  if (rendezvous_.silence < absl::Milliseconds(10)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a silence of ", absl::FormatDuration(rendezvous_.silence), "; at least 10ms"));
  }
  return absl::OkStatus();
}

absl::Status Gathering::Open() {
  TY_ASSIGN_OR_RETURN(doorbell_, MakeDoorbell());
  if (self_.rank == size_ - 1) {
    listener_.Reset(-1);  // nobody connects to the last rank
  } else if (!listener_.valid()) {
    TY_ASSIGN_OR_RETURN(listener_,
                        ListenOn(rendezvous_.addresses[self_.rank], rendezvous_.interface_address));
  } else {
    fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  }
  if (rendezvous_.allow_shared_memory && size_ > 1) {
    absl::StatusOr<Handover> handover = Handover::Open();
    if (handover.ok()) handover_.emplace(*std::move(handover));
  }
  return absl::OkStatus();
}

bool Gathering::all_ready() const {
  for (int r = 0; r < size_; ++r) {
    if (r != self_.rank && !peers_[r].ready) return false;
  }
  return said_ready_ || size_ == 1;
}

absl::Status Gathering::Gather() {
  const Handover* const handover = handover_.has_value() ? &*handover_ : nullptr;
  while (!all_ready()) {
    const Time now = std::chrono::steady_clock::now();
    if (now >= deadline_) return DeadlineError();
    TY_RETURN_IF_ERROR(Connect(now));
    Wait();
    Accept(std::chrono::steady_clock::now());
    TY_RETURN_IF_ERROR(AdvanceApproaches(std::chrono::steady_clock::now()));
    for (int r = 0; r < size_; ++r) TY_RETURN_IF_ERROR(ReadControl(r));
    TakeParcels();
    for (Peer& peer : peers_) {
      if (peer.control == nullptr) continue;
      peer.memory.Retry(handover, doorbell_.get(), *peer.control);
      peer.control->Flush();
    }
    SayReady();
  }
  return absl::OkStatus();
}

absl::Status Gathering::DeadlineError() const {
  std::vector<std::string> missing;
  std::vector<std::string> unfinished;
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[r];
    if (r == self_.rank || peer.ready) continue;
    if (peer.control != nullptr && peer.data.has_value()) {
      unfinished.push_back(peer.name);
    } else {
      missing.push_back(peer.trouble.empty() ? peer.name
                                             : absl::StrCat(peer.name, ": ", peer.trouble));
    }
  }
  std::string words = absl::StrCat(peers_[self_.rank].name, " waited ",
                                   absl::FormatDuration(rendezvous_.timeout), " for ");
  absl::StrAppend(&words, missing.empty()
                              ? absl::StrCat(absl::StrJoin(unfinished, ", "), " to meet the others")
                              : absl::StrJoin(missing, ", "));
  if (without_secret_ > 0) {
    absl::StrAppend(
        &words, "; connections refused because they did not know the secret: ", without_secret_);
  }
  return absl::DeadlineExceededError(words);
}

void Gathering::Wait() {
  std::vector<pollfd> waits;
  if (listener_.valid()) waits.push_back({listener_.get(), POLLIN, 0});
  if (handover_.has_value()) waits.push_back({handover_->fd(), POLLIN, 0});
  for (const Approach& approach : approaches_) {
    waits.push_back({approach.fd(), approach.events(), 0});
  }
  for (const Peer& peer : peers_) {
    if (peer.control != nullptr && peer.control->open()) {
      waits.push_back({peer.control->fd(), POLLIN, 0});
    }
  }
  poll(waits.data(), waits.size(), kTickMs);
}

absl::Status Gathering::Connect(Time now) {
  for (int r = 0; r < self_.rank; ++r) {
    for (const Purpose purpose : {Purpose::kControl, Purpose::kData}) {
      Peer::Attempt& attempt = peers_[r].attempts[Index(purpose)];
      const bool met =
          purpose == Purpose::kControl ? peers_[r].control != nullptr : peers_[r].data.has_value();
      if (met || attempt.under_way || now < attempt.again) continue;
      absl::StatusOr<FileDescriptor> socket = ConnectTo(rendezvous_.addresses[r], attempt.number++);
      if (absl::IsInvalidArgument(socket.status())) return socket.status();
      if (!socket.ok()) {
        peers_[r].trouble = std::string(socket.status().message());
        attempt.again = now + kLongestPause;
        continue;
      }
      attempt.under_way = true;
      approaches_.emplace_back(*std::move(socket), Handshake::ToListener(self_, r, purpose),
                               /*connecting=*/true, now + kHandshake);
    }
  }
  return absl::OkStatus();
}

void Gathering::Accept(Time now) {
  // Bounded, so that a flood of connections leaves time for handshakes.
  for (size_t i = 0; listener_.valid() && i < kMostApproaches; ++i) {
    FileDescriptor socket = AcceptFrom(listener_.get());
    if (!socket.valid()) return;
    approaches_.emplace_back(std::move(socket), Handshake::FromConnector(self_),
                             /*connecting=*/false, now + kHandshake);
  }
}

absl::Status Gathering::AdvanceApproaches(Time now) {
  for (auto it = approaches_.begin(); it != approaches_.end();) {
    const absl::Status status = it->Advance(now);
    if (status.ok() && !it->done()) {
      ++it;
      continue;
    }
    absl::Status end;
    if (status.ok()) {
      Met(*it);
    } else {
      end = ApproachFailed(*it, status, now);
    }
    it = approaches_.erase(it);
    TY_RETURN_IF_ERROR(end);
  }
  // Those that this rank began are few, and not meant.
  for (auto it = approaches_.begin();
       it != approaches_.end() && approaches_.size() > kMostApproaches;) {
    it = it->handshake().listens() ? approaches_.erase(it) : std::next(it);
  }
  return absl::OkStatus();
}

// What the failure of a handshake means: an error ends the rendezvous.
absl::Status Gathering::ApproachFailed(const Approach& approach, const absl::Status& status,
                                       Time now) {
  const Handshake& handshake = approach.handshake();
  const bool refused = absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status);
  if (handshake.listens()) {
    without_secret_ += absl::IsPermissionDenied(status);
    if (!handshake.proven() || !refused) return absl::OkStatus();
    const int rank = handshake.peer();
    if (rank < 0 || rank >= size_) {
      return absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
    }
    peers_[rank].told = true;  // it learns it from the same handshake
    return absl::Status(status.code(), absl::StrCat(peers_[rank].name, ": ", status.message()));
  }
  Peer& peer = peers_[handshake.peer()];
  if (refused) {
    peer.told = true;
    return absl::Status(status.code(), absl::StrCat(peer.name, ": ", status.message()));
  }
  Peer::Attempt& attempt = peer.attempts[Index(handshake.purpose())];
  peer.trouble = std::string(status.message());
  attempt.under_way = false;
  attempt.again = now + attempt.pause;
  attempt.pause = std::min(2 * attempt.pause, kLongestPause);
  return absl::OkStatus();
}

// A handshake is done. A rank that has this connection already keeps the first.
void Gathering::Met(Approach& approach) {
  const Handshake& handshake = approach.handshake();
  Peer& peer = peers_[handshake.peer()];
  if (handshake.purpose() == Purpose::kData) {
    if (!peer.data.has_value()) peer.data = {approach.TakeSocket(), handshake.session()};
    return;
  }
  if (peer.control != nullptr) return;
  peer.pairing_key = handshake.session().pairing_key;
  peer.control = std::make_unique<ControlLink>(approach.TakeSocket(), handshake.session());
  if (handshake.listens()) {
    peer.memory.Offer(handover_.has_value() ? &*handover_ : nullptr, *peer.control);
  }
}

absl::Status Gathering::ReadControl(int rank) {
  Peer& peer = peers_[rank];
  if (peer.control == nullptr || !peer.control->open()) return absl::OkStatus();
  std::vector<ControlMessage> messages;
  const absl::Status read = peer.control->Read(messages);
  if (!read.ok()) {
    return absl::Status(read.code(), absl::StrCat(peer.name, " ", read.message()));
  }
  for (const ControlMessage& message : messages) {
    switch (message.kind) {
      case ControlKind::kFailure:
        return DecodeStatus(message.body);
      case ControlKind::kMemoryOffer:
      case ControlKind::kMemoryAnswer:
        peer.memory.TakeMessage(message, self_.rank, peer.pairing_key,
                                handover_.has_value() ? &*handover_ : nullptr, doorbell_.get(),
                                *peer.control);
        break;
      case ControlKind::kReady:
        peer.ready = true;
        break;
      case ControlKind::kGoodbye:
        peer.left = true;
        break;
      case ControlKind::kHeartbeat:
        break;
    }
  }
  if (!peer.control->open() && !peer.left) {
    return absl::UnavailableError(absl::StrCat(peer.name, " ended during the rendezvous"));
  }
  return absl::OkStatus();
}

void Gathering::TakeParcels() {
  while (handover_.has_value()) {
    std::optional<Parcel> parcel = handover_->Receive();
    if (!parcel.has_value()) return;
    const int sender = MemoryPairing::SenderOf(*parcel);
    if (sender < 0 || sender >= size_ || peers_[sender].control == nullptr) continue;
    Peer& peer = peers_[sender];
    peer.memory.TakeParcel(*parcel, self_.rank, peer.pairing_key, &*handover_, doorbell_.get(),
                           *peer.control);
  }
}

void Gathering::SayReady() {
  if (said_ready_) return;
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = peers_[r];
    if (r == self_.rank) continue;
    if (peer.control == nullptr || !peer.data.has_value() || !peer.memory.decided()) return;
  }
  said_ready_ = true;
  listener_.Reset(-1);
  approaches_.clear();
  for (Peer& peer : peers_) {
    if (peer.control != nullptr) peer.control->Send(ControlKind::kReady);
  }
}

void Gathering::TellAll(const absl::Status& why) {
  const std::string words = EncodeStatus(why);
  for (const Time until = std::chrono::steady_clock::now() + kStay;;) {
    bool all_told = true;
    for (int r = 0; r < size_; ++r) {
      Peer& peer = peers_[r];
      if (r == self_.rank) continue;
      if (peer.control != nullptr && !peer.told) {
        peer.control->Send(ControlKind::kFailure, words);
        peer.told = true;
      }
      all_told &= peer.told;
    }
    if (all_told || std::chrono::steady_clock::now() >= until) return;
    // What goes wrong from here on changes nothing.
    (void)Connect(std::chrono::steady_clock::now());
    Wait();
    Accept(std::chrono::steady_clock::now());
    (void)AdvanceApproaches(std::chrono::steady_clock::now());
    for (int r = 0; r < size_; ++r) (void)ReadControl(r);
  }
}

absl::StatusOr<std::unique_ptr<Communicator>> Gathering::Finish() {
  std::vector<MeshPeer> all(size_);
  int sharing = 1;
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    all[r].name = peer.name;
    if (r == self_.rank) continue;
    const LinkNames names = {.self = peers_[self_.rank].name, .peer = peer.name};
    all[r].control = std::move(peer.control);
    all[r].left = peer.left;
    all[r].shares_memory = peer.memory.shares();
    if (peer.memory.shares()) {
      ++sharing;
      all[r].data = MakeMemoryLink(peer.memory.TakeMemory(), peer.memory.TakeDoorbell(), names);
    } else {
      all[r].data = MakeTcpLink(std::move(peer.data->socket), peer.data->session, names);
    }
  }
  return MakeMesh({.rank = self_.rank,
                   .silence = rendezvous_.silence,
                   .progress_timeout = rendezvous_.progress_timeout,
                   .spin = sharing <= Cores() ? rendezvous_.spin : absl::ZeroDuration()},
                  std::move(doorbell_), std::move(all));
}

}  // namespace trainyard::engine
