#pragma once

// A rank among the ranks of its job, and what they decide together.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executor/engine/fault.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/engine/parallel/device_communicator.h"
#include "executor/engine/parallel/rendezvous.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// How long the ranks of a job wait for one that does nothing, or is not heard of, as its spec says.
void SetBounds(const v1::Parallel& parallel, Rendezvous& rendezvous);

// Every rank makes the same calls in the same order. A rank that is alone decides for itself.
// Failures have the fault kGang. Copies are the same gang. For one thread at a time, but for Fail.
class Gang {
 public:
  // `communicator` and `links` must outlive the gang and its copies. Without a communicator there
  // is only this rank; without links the ranks exchange through their hosts alone.
  explicit Gang(Communicator* communicator = nullptr, DeviceCommunicator* links = nullptr)
      : communicator_(communicator), links_(links) {}

  // The same ranks, and the links between their GPUs.
  Gang LinkedBy(DeviceCommunicator* links) const { return Gang(communicator_, links); }

  int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  int size() const { return communicator_ == nullptr ? 1 : communicator_->size(); }
  bool alone() const { return size() == 1; }
  // Whether this rank writes what is written once: metrics and checkpoints.
  bool leads() const { return rank() == 0; }
  Communicator& communicator() const { return *communicator_; }  // unless alone
  DeviceCommunicator* links() const { return links_; }           // between the GPUs, if it has any

  // Whether any rank calls it with true.
  absl::StatusOr<bool> Any(bool mine) const;

  // The bits that any rank calls it with.
  absl::StatusOr<uint8_t> AnyOf(uint8_t mine) const;

  // What rank 0 calls it with, on every rank.
  absl::StatusOr<int64_t> OfLeader(int64_t mine) const;

  // How it went for rank 0, on every rank: its fault, its words, and whether it rolled back.
  absl::Status OfLeader(const absl::Status& mine) const;

  // How it went for the first rank for which it did not go well, or OK.
  absl::Status Agree(const absl::Status& mine) const;

  // What each rank calls it with, by rank; what is longer than 1 KiB is cut.
  absl::StatusOr<std::vector<std::string>> Gather(const std::string& mine) const;

  // What each rank calls it with, as long on every rank, goes to rank 0: there `all` has room for
  // that of every rank, by rank; elsewhere it is empty. Ranks but 0 do not wait for one another.
  absl::Status ToLeader(absl::Span<const char> mine, absl::Span<char> all) const;

  // kFailedPrecondition with the fault `fault`, on every rank, if not all call it with the same;
  // names `what`, and which rank has what.
  absl::Status CheckSame(const std::string& what, const std::string& mine, Fault fault) const;

  // parts[r] is what rank r contributes, as long on every rank: parts[rank()] is read, the others
  // are written.
  absl::Status AllGather(absl::Span<const absl::Span<char>> parts) const;

  // Lets the other ranks fail for `why`. Thread-safe.
  void Fail(const absl::Status& why) const;

 private:
  Communicator* communicator_;
  DeviceCommunicator* links_;
};

}  // namespace trainyard::engine
