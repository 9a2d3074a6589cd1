#include "executor/engine/kept_state.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/fault.h"
#include "storage/base/file.h"
#include "storage/base/status.h"
#include "storage/objects/packed_folder.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSentAtOnce = int64_t{4} << 20;  // bytes

// The folder in a file, which stays the caller's.
absl::StatusOr<std::unique_ptr<PackedFolder>> OpenFolder(int file, int64_t step) {
  FileDescriptor copy(fcntl(file, F_DUPFD_CLOEXEC, 3));
  if (!copy.valid()) return ErrnoStatus(errno, "the state in memory");
  return PackedFolder::Open(std::move(copy), absl::StrCat("memory:", StepFolder(step)));
}

absl::StatusOr<Checkpoint> OpenState(int file, int64_t step) {
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<PackedFolder> folder, OpenFolder(file, step));
  TY_ASSIGN_OR_RETURN(Checkpoint checkpoint,
                      Checkpoint::OpenPacked(*folder, absl::StrCat("memory:", StepFolder(step))));
  if (checkpoint.step == step) return checkpoint;
  return absl::DataLossError(
      absl::StrCat("it is of step ", checkpoint.step, ", and of step ", step, " was expected"));
}

// The state in a file: how long it is, and a digest of its manifest, which tells it from another
// one of the same step with other metrics or other sizes of files. Without bytes there is none, or
// it is of no use.
struct FoundState {
  int64_t bytes = 0;
  std::string sha256;
};

FoundState Find(int file, int64_t step) {
  if (file < 0) return {};
  const absl::StatusOr<Checkpoint> state = OpenState(file, step);
  if (!state.ok()) return {};
  return {.bytes = lseek(file, 0, SEEK_END), .sha256 = state->manifest_sha256};
}

// Ranks that the state travels between, in a binary tree: those at 2 i + 1 and 2 i + 2 receive it
// from that at i. The first one has it.
using Tree = std::vector<int>;

// This rank's part, if it is in the tree: `file` holds the state, or receives it. A rank whose
// memory fails passes on what it receives all the same. The communicator's failures have the fault
// kGang.
absl::Status Spread(const Gang& gang, const Tree& tree, int64_t bytes, int file) {
  const auto self = std::find(tree.begin(), tree.end(), gang.rank());
  if (self == tree.end()) return absl::OkStatus();
  const size_t place = self - tree.begin();
  std::vector<int> children;
  for (size_t child = 2 * place + 1; child <= 2 * place + 2 && child < tree.size(); ++child) {
    children.push_back(tree[child]);
  }
  absl::Status stored;
  std::vector<char> received(std::min(bytes, kSentAtOnce)), passed(received.size());
  // A piece goes on to the children while the next one arrives.
  int64_t to_pass = 0;
  for (int64_t at = 0; at < bytes || to_pass > 0; at += kSentAtOnce) {
    const int64_t n = std::clamp<int64_t>(bytes - at, 0, kSentAtOnce);
    std::vector<Transfer> transfers;
    if (place > 0 && n > 0) {
      transfers.push_back(
          {.peer = tree[(place - 1) / 2], .receive = absl::MakeSpan(received).subspan(0, n)});
    }
    for (const int child : children) {
      if (to_pass == 0) break;
      transfers.push_back({.peer = child, .send = absl::MakeConstSpan(passed).subspan(0, to_pass)});
    }
    if (!transfers.empty()) {
      TY_RETURN_IF_ERROR(WithFault(Fault::kGang, gang.communicator().Exchange(transfers)));
    }
    if (stored.ok() && n > 0) {
      const absl::string_view piece(received.data(), n);
      stored = place > 0 ? WriteAll(file, piece, "cannot receive the state in memory")
                         : ReadExactly(file, at, n, received.data(), "the state in memory");
    }
    std::swap(received, passed);
    to_pass = n;
  }
  return WithFault(Fault::kStorage, stored);
}

// A rank that is to receive the state for its node sends the others which file it receives it in,
// and the path at which they can open it if they have not got the same, or this if it has no memory
// for it.
constexpr char kNoRoom[] = "no room";

// "": none, or one that is not to be found out.
std::string IdentityOf(int file) {
  struct stat info {};
  return fstat(file, &info) == 0 ? absl::StrCat(info.st_dev, ":", info.st_ino) : "";
}

bool IsEmpty(int file) {
  struct stat info {};
  return fstat(file, &info) == 0 && info.st_size == 0;
}

// Whether this rank receives the state for its node: it is the first one there without it.
bool Receives(const Gang& gang, const std::vector<int64_t>& bytes_at) {
  for (int rank = 0; rank < gang.rank(); ++rank) {
    if (bytes_at[rank] == 0 && gang.communicator().shares_memory(rank)) return false;
  }
  return true;
}

// Once all ranks have called it, `file` is one from which this rank can read the state.
absl::Status Fetch(const Gang& gang, int64_t room, const std::vector<int64_t>& bytes_at,
                   FileDescriptor& file) {
  const auto holds = [&](int rank) { return bytes_at[rank] > 0; };
  int first = 0;
  while (!holds(first)) ++first;
  const int64_t bytes = bytes_at[first];
  const bool here = holds(gang.rank());
  std::string place;
  if (!here && Receives(gang, bytes_at)) {
    const bool fits = bytes <= room;
    // An empty one that came with the orders is the same for all ranks of their agent.
    if (!fits || !IsEmpty(file.get())) {
      file.Reset(fits ? memfd_create("trainyard-state", MFD_CLOEXEC) : -1);
    }
    place = file.valid()
                ? absl::StrCat("/proc/", getpid(), "/fd/", file.get(), " ", IdentityOf(file.get()))
                : kNoRoom;
  }
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> places, gang.Gather(place));
  Tree tree = {first};
  for (int rank = 0; rank < gang.size(); ++rank) {
    if (places[rank] == kNoRoom) {
      return absl::ResourceExhaustedError(
          absl::StrCat("rank ", rank, " has no memory for its ", bytes, " bytes"));
    }
    if (!places[rank].empty()) tree.push_back(rank);
  }
  TY_RETURN_IF_ERROR(gang.Agree(Spread(gang, tree, bytes, file.get())));
  if (here || !place.empty()) return absl::OkStatus();
  for (int rank = 0; rank < gang.rank(); ++rank) {
    if (places[rank].empty() || !gang.communicator().shares_memory(rank)) continue;
    const std::pair<std::string, std::string> path_and_identity =
        absl::StrSplit(places[rank], absl::MaxSplits(' ', 1));
    const auto& [path, identity] = path_and_identity;
    if (!identity.empty() && IdentityOf(file.get()) == identity) return absl::OkStatus();
    file.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return file.valid() ? absl::OkStatus() : ErrnoStatus(errno, path);
  }
  return absl::InternalError("no rank of this node receives the state");
}

// The state in `file`, on every rank, if all can read it; `fetched` says whether it is there.
absl::Status OpenOnAll(const Gang& gang, const absl::Status& fetched, int file, int64_t step,
                       std::optional<Checkpoint>& to) {
  absl::StatusOr<Checkpoint> checkpoint =
      fetched.ok() ? OpenState(file, step) : absl::StatusOr<Checkpoint>(fetched);
  TY_RETURN_IF_ERROR(gang.Agree(WithFault(Fault::kStorage, checkpoint.status())));
  to = *std::move(checkpoint);
  return absl::OkStatus();
}

absl::Status Empty(int file) {
  if (ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0) return absl::OkStatus();
  return WithFault(Fault::kStorage, ErrnoStatus(errno, "cannot empty the file for the state"));
}

// Of each rank the number, not negative, that it calls it with.
absl::StatusOr<std::vector<int64_t>> GatherNumbers(const Gang& gang, int64_t mine) {
  if (gang.alone()) return std::vector<int64_t>{mine};
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gang.Gather(absl::StrCat(mine)));
  std::vector<int64_t> numbers(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!absl::SimpleAtoi(texts[rank], &numbers[rank]) || numbers[rank] < 0) numbers[rank] = 0;
  }
  return numbers;
}

// How many bytes each rank has of the state that the first of those has which have one; 0: none, or
// those of another one. Nodes that each kept a state by itself may have several: what was measured
// after the step is in some of them, perhaps, and not in others.
absl::StatusOr<std::vector<int64_t>> BytesOfOneState(const Gang& gang, const FoundState& mine,
                                                     bool may_differ) {
  TY_ASSIGN_OR_RETURN(std::vector<int64_t> bytes_at, GatherNumbers(gang, mine.bytes));
  if (gang.alone() || !may_differ) return bytes_at;
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> digests, gang.Gather(mine.sha256));
  const auto has = [](int64_t bytes) { return bytes > 0; };
  const size_t first = std::find_if(bytes_at.begin(), bytes_at.end(), has) - bytes_at.begin();
  for (size_t rank = first; rank < bytes_at.size(); ++rank) {
    if (digests[rank] != digests[first]) bytes_at[rank] = 0;
  }
  return bytes_at;
}

}  // namespace

absl::StatusOr<TakenState> TakeState(const Gang& gang, const StateInMemory& state) {
  FileDescriptor file;  // the checkpoint has a descriptor of its own
  if (state.take != nullptr) file = state.take();
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes_at,
                      BytesOfOneState(gang, Find(file.get(), state.step), state.may_differ));
  const auto lacks = [](int64_t bytes) { return bytes <= 0; };
  if (std::all_of(bytes_at.begin(), bytes_at.end(), lacks)) {
    return TakenState{.why_not = "no node has it any more"};
  }
  absl::Status fetched;
  if (std::any_of(bytes_at.begin(), bytes_at.end(), lacks)) {
    fetched = Fetch(gang, state.room, bytes_at, file);
    if (FaultOf(fetched) == Fault::kGang) return fetched;
  }
  TakenState taken;
  const absl::Status opened = OpenOnAll(gang, fetched, file.get(), state.step, taken.checkpoint);
  if (opened.ok()) return taken;
  if (FaultOf(opened) == Fault::kGang) return opened;
  taken.why_not = std::string(opened.message());
  return taken;
}

absl::StatusOr<Keeper> FindKeeper(const Gang& gang, const std::optional<RoomForState>& room) {
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> room_at,
                      GatherNumbers(gang, room && room->stays ? room->bytes : 0));
  const auto most = std::max_element(room_at.begin(), room_at.end());
  const auto keeper = room_at[0] > 0 ? room_at.begin() : most;
  if (*keeper <= 0) return Keeper{};
  return Keeper{.rank = static_cast<int>(keeper - room_at.begin()), .bytes = *keeper};
}

absl::Status LeaveState(const Gang& gang, const std::optional<RoomForState>& room, int keeper,
                        const absl::Status& packed) {
  const bool keeps = gang.rank() == keeper;
  const auto leave = [&]() -> absl::Status {
    TY_RETURN_IF_ERROR(gang.OfLeader(packed));
    if (keeper == 0) return absl::OkStatus();
    const int64_t here = gang.leads() ? lseek(room->fd, 0, SEEK_END) : 0;
    TY_ASSIGN_OR_RETURN(const int64_t bytes, gang.OfLeader(here));
    TY_RETURN_IF_ERROR(gang.Agree(keeps ? Empty(room->fd) : absl::OkStatus()));
    return gang.Agree(Spread(gang, {0, keeper}, bytes, room ? room->fd : -1));
  };
  const absl::Status left = leave();
  // What is on a node that leaves, or is not whole, is of no use to anybody.
  const bool useless = !left.ok() || !keeps;
  if (useless && room && (gang.leads() || keeps)) Empty(room->fd).IgnoreError();
  return left;
}

uint8_t WishToLeave(bool leads, bool told_to_stop, const std::optional<RoomForState>& room,
                    uint8_t before, bool impatient) {
  if (room && room->alone) return 0;        // it is about to leave the gang
  if (told_to_stop && !room) return kStop;  // with a checkpoint
  uint8_t wish = leads && impatient ? kStop : 0;
  if (!told_to_stop) return wish;
  wish |= kAskedToKeep | (room->stays ? kCanKeep : 0);
  const bool somebody_can = room->stays || (before & kCanKeep) != 0;
  return wish | (leads && somebody_can ? kStop : 0);
}

}  // namespace trainyard::engine
