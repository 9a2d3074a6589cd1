#pragma once

// One emulated communicator, and a group of its operations on their way.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cuda/nccl_library.h"
#include "tests/gpu/emulator/nccl_memory.h"
#include "tests/gpu/emulator/stream.h"

namespace trainyard::emulator {

enum class Collective : uint32_t { kSend, kReceive, kAllGather, kBroadcast };

struct Operation {
  Collective kind;
  const char* from = nullptr;
  char* to = nullptr;
  size_t bytes = 0;  // of one rank
  int peer = 0;      // or root
};

// This process's end of a communicator. What graphs and streams hold of it may outlive its handle.
class NcclEnd {
 public:
  using NcclResult = kernels::cuda::NcclResult;

  NcclEnd(std::shared_ptr<NcclMemory> memory, int rank, int size)
      : memory_(std::move(memory)), rank_(rank), size_(size), connected_(size) {}
  ~NcclEnd();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Whether all ranks are there; from then on this process does its part when others wait for it.
  bool Linked();
  // Marks the ranks that the operations need as connected. Returns whether all were so before.
  bool Connect(const std::vector<Operation>& operations, bool only_look);
  bool Done() const { return done_ == issued_; }
  NcclResult error() const { return error_; }
  // Lets what is on streams end at once, whatever it has moved.
  void Abort();
  // Ends the thread. Operations after that are an error of the program.
  void Stop();

 private:
  friend Advance IssueGroup(std::shared_ptr<NcclEnd> end, const std::vector<Operation>& operations);
  friend class NcclGroup;
  void Serve();

  const std::shared_ptr<NcclMemory> memory_;
  const int rank_, size_;
  std::vector<bool> connected_;
  // Groups, in the order in which they are put on streams, which is that in which they run.
  std::atomic<uint64_t> issued_ = 0, done_ = 0;
  std::atomic<bool> aborted_ = false, stopped_ = false;
  std::atomic<NcclResult> error_ = kernels::cuda::kNcclSuccess;
  std::thread server_;
};

// For EnqueueIssued.
Advance IssueGroup(std::shared_ptr<NcclEnd> end, const std::vector<Operation>& operations);

}  // namespace trainyard::emulator
