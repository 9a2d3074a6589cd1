#pragma once

// How the ranks of a gang exchange bytes between their GPUs.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/engine/parallel/device_communicator.h"
#include "kernels/device.h"

namespace trainyard::engine {

// One rank's end of the links between the GPUs of a gang (kernels/links.h), whose ranks also have a
// communicator between their hosts. Every rank makes the same calls in the same order. A call
// enqueues on a stream and returns; what it moves is there once the stream has come that far. Calls
// on several streams run in the order in which they are made.
//
// A GPU waits without end for another one that does not do its part, and whoever synchronizes with
// its stream waits with it. Hosts therefore wait by Await, which gives up: when the host
// communicator knows that a rank ended or is silent, when NCCL reports an error, or when patience
// is over. The links are aborted then, which ends the work of the stream, and so is the host
// communicator, so that all ranks name the same first cause. A communicator that failed once is of
// no use any more: every call returns the first failure, with the codes of Communicator.
//
// For the thread that drives the device, but for Abort. `device` and `host` outlive it.
class NcclCommunicator : public DeviceCommunicator {
 public:
  // Links the GPUs of all ranks of `host`: its ranks call this at the same time. Waits for up to
  // `timeout` until all have come, as long again until their GPUs are linked, and a few seconds
  // more. Leaves `host` without a limit of its patience. `progress_timeout`: takes the place of
  // every patience that is set later. After a failure `host` has failed, too.
  //
  // kFailedPrecondition: this rank has no NCCL.
  // kDeadlineExceeded: the message names the ranks that did not come.
  // kUnavailable, kCancelled, kUnimplemented: a rank ended, or has no NCCL or no such device; the
  // message names it.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Make(
      kernels::Device& device, Communicator& host, absl::Duration timeout,
      std::optional<absl::Duration> progress_timeout = {});

  // Ends the links in good order, for which this rank's work is waited for, a few seconds at most;
  // what is not done then makes the others fail.
  ~NcclCommunicator() override;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  // Two ranks that expect another number of bytes from each other, or whose calls differ, never
  // come to an end; Await does, once its patience is over. May be recorded (Device::Record) if the
  // same exchange has been made before without; what is wrong then shows in Await.
  absl::Status Exchange(kernels::Stream& stream, absl::Span<const Transfer> transfers) override;

  absl::Status AllGather(kernels::Stream& stream,
                         absl::Span<const absl::Span<char>> parts) override;

  absl::Status Await(kernels::Event& event) override;

  // OK, or the failure that every call returns from now on. Waits for nobody.
  absl::Status Health();

  // Lets every operation of this rank, and as far as they can be told of all others, fail. The
  // first call counts. Thread-safe: the links are aborted by the next call, or an Await in
  // progress.
  void Abort(absl::Status why);

  // No effect with Make's progress_timeout, which takes its place.
  void SetPatience(absl::Duration patience) override {
    patience_ = progress_timeout_.value_or(patience);
  }

  // Bytes that calls have enqueued to be sent to others so far. A recording counts once.
  int64_t bytes_sent() const { return bytes_sent_; }

  // "4 ranks with a GPU each, linked by NCCL 2.28.9"
  std::string description() const;

 private:
  NcclCommunicator(kernels::Device& device, Communicator& host) : device_(device), host_(host) {}

  absl::Status Meet(absl::Duration timeout);
  absl::Status TellName(kernels::LinksId& name);
  // Waits until the last call has been enqueued.
  absl::Status AwaitReady(absl::Time until);
  // Enqueues what `call` does, and waits until it is.
  template <typename Call>
  absl::Status Enqueue(Call call);
  absl::Status Fail(absl::Status why);
  // With the name of this rank in front of its words.
  absl::Status OfThisRank(const absl::Status& status) const;
  std::string Others() const;

  kernels::Device& device_;
  Communicator& host_;
  std::unique_ptr<kernels::Links> links_;
  std::vector<bool> partners_;  // ranks that this one has exchanged with
  std::optional<absl::Duration> progress_timeout_;
  absl::Duration patience_ = absl::InfiniteDuration();
  int64_t bytes_sent_ = 0;
  absl::Status failure_;
};

}  // namespace trainyard::engine
