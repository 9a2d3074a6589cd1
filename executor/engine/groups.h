#pragma once

// The ranks of a gang by what they share out: logical ranks, and the shards of each.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/engine/gang.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/engine/parallel/device_communicator.h"

namespace trainyard::engine {

// Some of the ranks of a communicator, in the order of `members`, as a communicator of their own:
// rank i is members[i] there. It is for one thread at a time together with what it is part of, and
// with the others that are.
class PartOfCommunicator : public Communicator {
 public:
  // `whole`, of which this rank is a member, must outlive it.
  PartOfCommunicator(Communicator& whole, std::vector<int> members);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  absl::Status Exchange(absl::Span<const Transfer> transfers) override;
  void Abort(absl::Status why) override { whole_.Abort(std::move(why)); }
  absl::Status Failure() const override { return whole_.Failure(); }
  std::string name(int rank) const override { return whole_.name(members_[rank]); }
  bool shares_memory(int rank) const override { return whole_.shares_memory(members_[rank]); }
  void SetPatience(absl::Duration patience) override { whole_.SetPatience(patience); }
  int64_t bytes_sent() const override { return whole_.bytes_sent(); }
  std::string description() const override { return whole_.description(); }

 private:
  Communicator& whole_;
  const std::vector<int> members_;
  const int rank_;
  std::vector<Transfer> transfers_;
};

// The same of the links between their GPUs.
class PartOfLinks : public DeviceCommunicator {
 public:
  PartOfLinks(DeviceCommunicator& whole, std::vector<int> members);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  absl::Status Exchange(kernels::Stream& stream, absl::Span<const Transfer> transfers) override;
  absl::Status AllGather(kernels::Stream& stream,
                         absl::Span<const absl::Span<char>> parts) override;
  absl::Status Await(kernels::Event& event) override { return whole_.Await(event); }
  void SetPatience(absl::Duration patience) override { whole_.SetPatience(patience); }

 private:
  DeviceCommunicator& whole_;
  const std::vector<int> members_;
  const int rank_;
};

// A gang of which each `sharing` neighbours host the same logical ranks, and share their shards
// (plan::Mesh). Copies are the same groups.
class Groups {
 public:
  // What `all` stands for must outlive it.
  Groups(const Gang& all, int sharing = 1);  // NOLINT: a gang whose ranks share no shards

  // Who decides together.
  const Gang& all() const { return all_; }
  // The ranks with this one's place in their groups: they share out the logical ranks.
  const Gang& data() const { return data_; }
  // This rank's group; alone: it hosts all shards of its logical ranks.
  const Gang& shards() const { return shards_; }

 private:
  Gang all_;
  // Some of its ranks, as a gang of their own.
  class Part;
  std::shared_ptr<Part> of_data_, of_shards_;
  Gang data_, shards_;
};

}  // namespace trainyard::engine
