#pragma once

// How the ranks of a gang exchange bytes.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace trainyard::engine {

// Which of a communicator's calls a rank is in, for the words of failures.
enum class Collective : uint8_t { kExchange, kAllGather, kBroadcast, kBarrier };

// What one rank exchanges with one other rank, or with itself, in Communicator::Exchange. Either
// span may be empty; sizes must match at both ends: what rank a sends to b is as long as what b
// receives from a.
struct Transfer {
  int peer = 0;
  absl::Span<const char> send = {};
  absl::Span<char> receive = {};
};

// Numbers as a Transfer sends and receives them: as they lie in memory.
template <typename T>
absl::Span<const char> Sent(absl::Span<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <typename T>
absl::Span<char> Received(absl::Span<T> values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(T)};
}

// One rank's end of the links between the ranks of a gang. Every rank makes the same calls in the
// same order; a call returns when this rank's part of it is done: what it sends may be changed
// again, what it receives is there. For one thread at a time, but for Abort.
//
// Nothing waits without end. A rank whose process ends is known to the others within 2 s, one that
// is silent (stopped, its link cut) within Rendezvous::silence. Every operation then returns the
// first failure, which names the rank and its address, and so does every later one: a communicator
// that failed once is of no use any more. kUnavailable: a link or another rank failed. kCancelled:
// Abort was called, here or by another rank, whose words are in the message. kInternal: the ranks
// do not make the same calls; the message says what was sent and what was expected.
//
// Noticed only within SetPatience: a rank that never calls, but whose process lives on.
// kDeadlineExceeded names it, with the collective that it was last in.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // in [0, size)
  virtual int size() const = 0;

  // Makes all transfers at once, in an order that cannot deadlock. A peer is named at most once;
  // peers that exchange nothing need not be named, nor the call be made by ranks that exchange
  // nothing. A peer that sends another number of bytes than is received is an error at both ends.
  virtual absl::Status Exchange(absl::Span<const Transfer> transfers) = 0;

  // Lets every operation of this rank and, as far as they can be told, of all others fail. The
  // first call counts. Thread-safe.
  virtual void Abort(absl::Status why) = 0;

  // OK, or the failure that every operation would return now. Thread-safe; waits for nobody.
  virtual absl::Status Failure() const = 0;

  // "rank 2 (10.0.0.3:7011)"
  virtual std::string name(int rank) const = 0;

  // How long an exchange may stand still from now on, because a rank does not do its part; for ever
  // unless told. No effect with Rendezvous::progress_timeout.
  virtual void SetPatience(absl::Duration patience) = 0;

  // Bytes of messages that this rank has sent to others so far, without headers.
  virtual int64_t bytes_sent() const = 0;

  // Over what the bytes travel: "4 ranks: 3 others by shared memory, 0 by TCP".
  virtual std::string description() const { return ""; }

  // Whether this rank exchanges with `rank`, another one, by memory that both map: they are
  // processes of one host.
  virtual bool shares_memory(int /*rank*/) const { return false; }

  // parts[r] is what rank r contributes, as long on every rank: parts[rank()] is read, the others
  // are written.
  absl::Status AllGather(absl::Span<const absl::Span<char>> parts);

  // `bytes` of rank `root` become those of every rank.
  absl::Status Broadcast(int root, absl::Span<char> bytes);

  // Returns once every rank has called it.
  absl::Status Barrier();

 protected:
  // What the exchange that begins now is part of.
  Collective collective() const { return collective_; }

 private:
  absl::Status ExchangeFor(Collective collective, absl::Span<const Transfer> transfers);

  Collective collective_ = Collective::kExchange;
};

}  // namespace trainyard::engine
