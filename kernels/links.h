#pragma once

// The links between the GPUs of a gang: bytes that go from the memory of one to that of another in
// the order of a stream, past the host.

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace trainyard::kernels {

class Stream;

// Names the links of one gang. One of its devices makes it (Device::NameLinks), and every one is
// told.
using LinksId = std::array<char, 128>;

// What one GPU exchanges with one other, or with itself. Either count of bytes may be 0.
struct LinkTransfer {
  int peer = 0;
  const void* send = nullptr;
  size_t send_bytes = 0;
  void* receive = nullptr;
  size_t receive_bytes = 0;
};

// Device memory that one GPU of a gather fills for all.
struct LinkPart {
  void* data = nullptr;
  size_t bytes = 0;
};

// One GPU's end. Every rank makes the same calls in the same order, on whatever streams; calls that
// do not fit together never end, until Abort. For the thread that drives the device. Nothing here
// waits for another rank, but Close for a few seconds.
class Links {
 public:
  // Aborts, unless the links were closed. What was recorded with them (Device::Record) must be
  // gone.
  virtual ~Links() = default;

  // Whether the links are made and the last call has been enqueued, which takes other ranks where a
  // connection is used for the first time. No other call may be made while it is false, but Health
  // and Abort, nor anything be enqueued behind the last call. An error is that of Health.
  virtual absl::StatusOr<bool> Ready() = 0;

  // Enqueues all transfers at once, each with another rank or with this one. What a rank sends is
  // as long as what the other receives. May be recorded (Device::Record) once the same transfers
  // have been made without.
  virtual absl::Status Exchange(Stream& stream, absl::Span<const LinkTransfer> transfers) = 0;

  // Enqueues that parts[r] of rank r becomes parts[r] of every rank. A part is as long on every
  // rank.
  virtual absl::Status Gather(Stream& stream, absl::Span<const LinkPart> parts) = 0;

  // What went wrong since, if anything did. kUnavailable: a link or another rank failed.
  virtual absl::Status Health() = 0;

  // Gives up: work of these links that is enqueued ends at once, its result undefined. Tells nobody
  // else. Every later call fails.
  virtual void Abort() = 0;

  // Ends the links in good order, once what was enqueued is done. What was recorded with them must
  // be gone. kDeadlineExceeded: one or the other was not within some seconds, and the links are
  // aborted.
  virtual absl::Status Close() = 0;

  // "NCCL 2.28.9"
  virtual std::string Description() const = 0;
};

}  // namespace trainyard::kernels
