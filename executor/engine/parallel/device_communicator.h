#pragma once

// How ranks exchange bytes between their devices, in the order of a stream.

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "executor/engine/parallel/communicator.h"
#include "kernels/device.h"

namespace trainyard::engine {

// As a Communicator, but with device memory: a call enqueues on a stream and returns, and what it
// moves is there once the stream has come that far. Every rank makes the same calls in the same
// order; calls on several streams run in the order in which they are made. What was exchanged once
// may be recorded (Device::Record) from then on. After a failure every call returns the first one,
// with the codes of Communicator.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // As Communicator::Exchange. With itself a rank exchanges between places that do not overlap, or
  // are the same.
  virtual absl::Status Exchange(kernels::Stream& stream, absl::Span<const Transfer> transfers) = 0;

  // As Communicator::AllGather. Where it is of all ranks of the links, parts of one length that lie
  // one behind the other are the fastest.
  virtual absl::Status AllGather(kernels::Stream& stream,
                                 absl::Span<const absl::Span<char>> parts) = 0;

  // Waits for the work before `event`, or for a reason to give up.
  virtual absl::Status Await(kernels::Event& event) = 0;

  // How long an Await may wait from now on; without limit unless told. Besides exchanges that
  // covers all work before the event.
  virtual void SetPatience(absl::Duration patience) = 0;
};

}  // namespace trainyard::engine
