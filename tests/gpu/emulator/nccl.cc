// The calls of NCCL that we make, between processes of this machine, each of which has an emulated
// GPU of its own.

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/nccl_library.h"
#include "tests/gpu/emulator/nccl_group.h"

namespace trainyard::kernels::cuda {

// The handle. One thread uses it.
struct ncclComm {
  std::shared_ptr<emulator::NcclEnd> end;
  bool blocking = true;
  bool linked = false, finalizing = false;
  // A group that connects ranks for the first time is put on its stream only at the last of so many
  // questions whether it has been.
  int questions = 0;
  std::function<NcclResult()> late = nullptr;
  // Held by every graph with one of its operations.
  std::shared_ptr<char> recorded = std::make_shared<char>();
};

namespace {

using emulator::Collective;
using emulator::NcclEnd;
using emulator::Operation;

constexpr std::chrono::microseconds kLook(200);

struct Called {
  NcclComm comm;
  cudaStream_t stream;
  Operation operation;
};

// The group that this thread is about to make.
struct Calls {
  int depth = 0;
  NcclResult wrong = kNcclSuccess;
  std::vector<Called> calls;
  std::string words;
};

Calls& Mine() {
  static thread_local Calls calls;
  return calls;
}

NcclResult Refuse(NcclResult result, std::string words) {
  Mine().words = std::move(words);
  return Mine().wrong = result;
}

NcclResult PutGroup(NcclComm comm, cudaStream_t stream, const std::vector<Operation>& operations) {
  const std::shared_ptr<char> recorded = emulator::IsRecording(stream) ? comm->recorded : nullptr;
  const cudaError_t error = emulator::EnqueueIssued(
      stream,
      [end = comm->end, operations, recorded] { return emulator::IssueGroup(end, operations); });
  return error == cudaSuccess ? kNcclSuccess : kNcclUnhandledCudaError;
}

NcclResult LaunchGroup(NcclComm comm, cudaStream_t stream,
                       const std::vector<Operation>& operations) {
  const bool recording = emulator::IsRecording(stream);
  if (comm->end->Connect(operations, recording)) return PutGroup(comm, stream, operations);
  if (recording) {
    emulator::RefuseRecording(stream);
    return Refuse(kNcclUnhandledCudaError, "ranks connect for the first time in a recording");
  }
  if (comm->blocking) return PutGroup(comm, stream, operations);
  comm->late = [comm, stream, operations] { return PutGroup(comm, stream, operations); };
  comm->questions = 3;
  return kNcclInProgress;
}

NcclResult LaunchCalls(std::vector<Called> calls) {
  NcclResult result = kNcclSuccess;
  while (!calls.empty()) {
    const NcclComm comm = calls.front().comm;
    const cudaStream_t stream = calls.front().stream;
    std::vector<Operation> operations;
    std::vector<Called> others;
    for (const Called& call : calls) {
      if (call.comm != comm) {
        others.push_back(call);
      } else if (call.stream != stream) {
        return Refuse(kNcclInvalidUsage, "a group of several streams is not emulated");
      } else {
        operations.push_back(call.operation);
      }
    }
    const NcclResult launched = LaunchGroup(comm, stream, operations);
    if (launched != kNcclSuccess && launched != kNcclInProgress) return launched;
    if (launched == kNcclInProgress) result = launched;
    calls = std::move(others);
  }
  return result;
}

NcclResult GroupStart() {
  if (Mine().depth++ == 0) Mine().wrong = kNcclSuccess;
  return kNcclSuccess;
}

NcclResult GroupEnd() {
  Calls& mine = Mine();
  if (mine.depth == 0) return Refuse(kNcclInvalidUsage, "the end of no group");
  if (--mine.depth > 0) return kNcclSuccess;
  std::vector<Called> calls = std::exchange(mine.calls, {});
  return mine.wrong == kNcclSuccess ? LaunchCalls(std::move(calls)) : mine.wrong;
}

NcclResult Call(NcclComm comm, cudaStream_t stream, int type, const Operation& operation) {
  GroupStart();
  if (comm == nullptr || operation.peer < 0 || operation.peer >= comm->end->size()) {
    Refuse(kNcclInvalidArgument, "no communicator, or no such rank");
  } else if (type != kNcclBytes) {
    Refuse(kNcclInvalidArgument, "only bytes are emulated");
  } else if (!comm->linked || comm->finalizing || comm->late != nullptr) {
    Refuse(kNcclInvalidUsage, "the last call is still in progress");
  } else {
    Mine().calls.push_back({comm, stream, operation});
  }
  const NcclResult wrong = Mine().wrong;
  const NcclResult ended = GroupEnd();
  return wrong == kNcclSuccess ? ended : wrong;
}

NcclResult Send(const void* from, size_t count, int type, int peer, NcclComm comm,
                cudaStream_t stream) {
  return Call(comm, stream, type,
              {Collective::kSend, static_cast<const char*>(from), nullptr, count, peer});
}

NcclResult Receive(void* to, size_t count, int type, int peer, NcclComm comm, cudaStream_t stream) {
  return Call(comm, stream, type,
              {Collective::kReceive, nullptr, static_cast<char*>(to), count, peer});
}

NcclResult AllGather(const void* from, void* to, size_t count, int type, NcclComm comm,
                     cudaStream_t stream) {
  return Call(
      comm, stream, type,
      {Collective::kAllGather, static_cast<const char*>(from), static_cast<char*>(to), count, 0});
}

NcclResult Broadcast(const void* from, void* to, size_t count, int type, int root, NcclComm comm,
                     cudaStream_t stream) {
  return Call(comm, stream, type,
              {Collective::kBroadcast, static_cast<const char*>(from), static_cast<char*>(to),
               count, root});
}

NcclResult GetVersion(int* version) {
  *version = 22809;
  return kNcclSuccess;
}

NcclResult GetUniqueId(NcclUniqueId* id) {
  return emulator::MakeNcclMemory(*id) ? kNcclSuccess : kNcclSystemError;
}

// A rank that never comes is waited for without end, by whoever blocks.
NcclResult InitRank(NcclComm* comm, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  *comm = nullptr;
  if (size < 1 || size > emulator::kMostRanks || rank < 0 || rank >= size ||
      config->magic != NcclConfig().magic) {
    return Refuse(kNcclInvalidArgument, "no such rank, or a configuration that is none");
  }
  const std::shared_ptr<emulator::NcclMemory> memory = emulator::OpenNcclMemory(id);
  if (memory == nullptr) return Refuse(kNcclRemoteError, "who made the id has ended");
  int agreed = 0;
  if (!memory->size.compare_exchange_strong(agreed, size) && agreed != size) {
    return Refuse(kNcclInvalidArgument, "another rank says another number of ranks");
  }
  if ((memory->joined.fetch_or(uint32_t{1} << rank) >> rank & 1) != 0) {
    return Refuse(kNcclInvalidArgument, "another process has this rank");
  }
  *comm = new ncclComm{.end = std::make_shared<NcclEnd>(memory, rank, size),
                       .blocking = config->blocking != 0};
  if (!(*comm)->blocking) return kNcclInProgress;
  while (!(*comm)->end->Linked()) std::this_thread::sleep_for(kLook);
  (*comm)->linked = true;
  return kNcclSuccess;
}

// What was enqueued is done, and no graph holds one of its operations.
bool IsOver(const ncclComm& comm) { return comm.end->Done() && comm.recorded.use_count() == 1; }

NcclResult GetAsyncError(NcclComm comm, NcclResult* error) {
  *error = comm->end->error();
  if (*error != kNcclSuccess) return kNcclSuccess;
  comm->linked = comm->linked || comm->end->Linked();
  if (!comm->linked) {
    *error = kNcclInProgress;
  } else if (comm->late != nullptr) {
    *error = --comm->questions > 0 ? kNcclInProgress : std::exchange(comm->late, nullptr)();
  } else if (comm->finalizing && !IsOver(*comm)) {
    emulator::RunAllUntil([comm] { return comm->end->Done(); });
    *error = kNcclInProgress;
  }
  return kNcclSuccess;
}

NcclResult Finalize(NcclComm comm) {
  if (!comm->linked || comm->finalizing || comm->late != nullptr) {
    return Refuse(kNcclInvalidUsage, "the last call is still in progress");
  }
  comm->finalizing = true;
  return IsOver(*comm) ? kNcclSuccess : kNcclInProgress;
}

NcclResult Destroy(NcclComm comm) {
  while (!comm->end->Done()) {
    emulator::RunAllUntil([comm] { return comm->end->Done(); });
    std::this_thread::sleep_for(kLook);
  }
  comm->end->Stop();
  delete comm;
  return kNcclSuccess;
}

NcclResult Abort(NcclComm comm) {
  comm->end->Abort();
  // As NCCL does, once the work of streams may end.
  while (comm->recorded.use_count() > 1) std::this_thread::sleep_for(kLook);
  delete comm;
  return kNcclSuccess;
}

const char* GetErrorString(NcclResult result) {
  constexpr const char* kWords[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return kWords[result];
}

const char* GetLastError(NcclComm) { return Mine().words.c_str(); }

}  // namespace

absl::StatusOr<const Nccl*> LoadNccl() {
  static constexpr Nccl kNccl = {.GetVersion = GetVersion,
                                 .GetUniqueId = GetUniqueId,
                                 .CommInitRankConfig = InitRank,
                                 .CommFinalize = Finalize,
                                 .CommDestroy = Destroy,
                                 .CommAbort = Abort,
                                 .CommGetAsyncError = GetAsyncError,
                                 .GetErrorString = GetErrorString,
                                 .GetLastError = GetLastError,
                                 .GroupStart = GroupStart,
                                 .GroupEnd = GroupEnd,
                                 .Send = Send,
                                 .Recv = Receive,
                                 .AllGather = AllGather,
                                 .Broadcast = Broadcast};
  return &kNccl;
}

}  // namespace trainyard::kernels::cuda
