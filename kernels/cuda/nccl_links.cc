#include "kernels/cuda/nccl_links.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime.h"

namespace trainyard::kernels::cuda {
namespace {

// How long Close waits for work in which the other ranks have a part.
constexpr std::chrono::seconds kGoodEnd(3);
constexpr std::chrono::microseconds kPoll(100);

static_assert(sizeof(LinksId) == sizeof(NcclUniqueId));

// Equal parts that lie one behind the other are what ncclAllGather knows.
bool AreOneBlock(absl::Span<const LinkPart> parts) {
  for (size_t r = 1; r < parts.size(); ++r) {
    if (parts[r].bytes != parts[0].bytes ||
        parts[r].data != static_cast<char*>(parts[0].data) + r * parts[0].bytes) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> NcclVersion(const Nccl& nccl) {
  int version = 0;
  if (nccl.GetVersion(&version) != kNcclSuccess) {
    return absl::UnavailableError("NCCL does not say which version it is");
  }
  // 22809 is 2.28.9; up to 2.8 the form was 2804 for 2.8.4.
  const int major = version < 10000 ? 1000 : 10000;
  return absl::StrCat(version / major, ".", version % major / 100, ".", version % 100);
}

absl::StatusOr<LinksId> NameNcclLinks() {
  const absl::StatusOr<const Nccl*> nccl = LoadNccl();
  if (!nccl.ok()) return absl::FailedPreconditionError(nccl.status().message());
  NcclUniqueId id = {};
  if (const NcclResult result = (*nccl)->GetUniqueId(&id); result != kNcclSuccess) {
    return absl::UnavailableError(absl::StrCat("ncclGetUniqueId: ", (*nccl)->GetErrorString(result),
                                               ": ", (*nccl)->GetLastError(nullptr)));
  }
  LinksId name;
  std::memcpy(name.data(), &id, sizeof(id));
  return name;
}

absl::StatusOr<std::unique_ptr<Links>> NcclLinks::Begin(const LinksId& id, int rank, int size) {
  const absl::StatusOr<const Nccl*> nccl = LoadNccl();
  if (!nccl.ok()) return absl::FailedPreconditionError(nccl.status().message());
  std::unique_ptr<NcclLinks> links(new NcclLinks(**nccl, rank, size));
  NcclUniqueId unique;
  std::memcpy(&unique, id.data(), sizeof(unique));
  NcclConfig config = {.blocking = 0};
  const NcclResult result = (*nccl)->CommInitRankConfig(&links->comm_, size, unique, rank, &config);
  const absl::Status status = links->Check(result, "ncclCommInitRankConfig");
  if (!status.ok()) return status;
  return links;
}

absl::Status NcclLinks::Check(NcclResult result, absl::string_view doing) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return absl::OkStatus();
  const std::string words =
      absl::StrCat(doing, ": ", nccl_.GetErrorString(result), ": ", nccl_.GetLastError(comm_));
  if (result == kNcclInvalidArgument || result == kNcclInvalidUsage) {
    return absl::InternalError(words);
  }
  return absl::UnavailableError(words);
}

absl::StatusOr<bool> NcclLinks::Ready() {
  if (comm_ == nullptr) return absl::CancelledError("the links between GPUs were aborted");
  NcclResult error = kNcclSuccess;
  absl::Status status = Check(nccl_.CommGetAsyncError(comm_, &error), "ncclCommGetAsyncError");
  if (status.ok()) status = Check(error, "NCCL");
  if (!status.ok()) return status;
  return error == kNcclSuccess;
}

absl::Status NcclLinks::Health() { return Ready().status(); }

absl::Status NcclLinks::Exchange(Stream& stream, absl::Span<const LinkTransfer> transfers) {
  if (comm_ == nullptr) return Health();
  const cudaStream_t on = CudaStream::From(stream).handle();
  absl::Status status = Check(nccl_.GroupStart(), "ncclGroupStart");
  for (const LinkTransfer& transfer : transfers) {
    if (status.ok() && transfer.send_bytes > 0) {
      status = Check(
          nccl_.Send(transfer.send, transfer.send_bytes, kNcclBytes, transfer.peer, comm_, on),
          "ncclSend");
    }
    if (status.ok() && transfer.receive_bytes > 0) {
      status = Check(nccl_.Recv(transfer.receive, transfer.receive_bytes, kNcclBytes, transfer.peer,
                                comm_, on),
                     "ncclRecv");
    }
  }
  const absl::Status ended = Check(nccl_.GroupEnd(), "ncclGroupEnd");
  return status.ok() ? ended : status;
}

absl::Status NcclLinks::Gather(Stream& stream, absl::Span<const LinkPart> parts) {
  if (comm_ == nullptr) return Health();
  if (static_cast<int>(parts.size()) != size_) {
    return absl::InternalError(absl::StrCat(parts.size(), " parts of ", size_, " GPUs"));
  }
  const cudaStream_t on = CudaStream::From(stream).handle();
  if (AreOneBlock(parts)) {
    if (parts[0].bytes == 0) return absl::OkStatus();
    return Check(
        nccl_.AllGather(parts[rank_].data, parts[0].data, parts[0].bytes, kNcclBytes, comm_, on),
        "ncclAllGather");
  }
  absl::Status status = Check(nccl_.GroupStart(), "ncclGroupStart");
  for (int r = 0; r < size_ && status.ok(); ++r) {
    if (parts[r].bytes == 0) continue;
    status = Check(
        nccl_.Broadcast(parts[r].data, parts[r].data, parts[r].bytes, kNcclBytes, r, comm_, on),
        "ncclBroadcast");
  }
  const absl::Status ended = Check(nccl_.GroupEnd(), "ncclGroupEnd");
  return status.ok() ? ended : status;
}

// ncclCommAbort lets the kernels end at once, but returns only when every graph that has recorded
// operations of the communicator was destroyed: its caller may own them.
void NcclLinks::Abort() {
  if (comm_ == nullptr) return;
  aborts_ =
      std::thread([&nccl = nccl_, comm = std::exchange(comm_, nullptr)] { nccl.CommAbort(comm); });
}

NcclLinks::~NcclLinks() {
  Abort();
  if (aborts_.joinable()) aborts_.join();
}

absl::Status NcclLinks::Close() {
  absl::StatusOr<bool> done = Ready();
  if (done.ok() && *done) {
    const absl::Status begun = Check(nccl_.CommFinalize(comm_), "ncclCommFinalize");
    done = begun.ok() ? Ready() : begun;
  }
  const auto until = std::chrono::steady_clock::now() + kGoodEnd;
  while (done.ok() && !*done && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kPoll);
    done = Ready();
  }
  if (done.ok() && *done) {
    nccl_.CommDestroy(std::exchange(comm_, nullptr));
    return absl::OkStatus();
  }
  Abort();
  if (!done.ok()) return done.status();
  return absl::DeadlineExceededError("the work of the links between GPUs is not done at their end");
}

std::string NcclLinks::Description() const {
  return absl::StrCat("NCCL ", NcclVersion(nccl_).value_or("of unknown version"));
}

}  // namespace trainyard::kernels::cuda
