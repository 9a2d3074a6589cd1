#pragma once

// The state of training that rank 0 does not have, read by it from the ranks that do.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/gang.h"

namespace trainyard::engine {

// What rank 0 asks for: `n` elements from `first` on. As the ranks of a gang are programs of one
// build, it travels as it lies in memory.
struct StateRequest {
  int64_t kind = kEnd, place = 0;  // whoever reads says what they mean
  int64_t first = 0;
  int64_t n = 0;

  static constexpr int64_t kEnd = -1000;
};

// Rank 0 reads, while the others serve, piece by piece: nobody holds more than a piece of what is
// not its own. For one thread at a time. Failures of others have the fault kGang. Who serves waits
// for rank 0 as long as its process lives: it may wait for a disk, or for its lease.
class StateExchange {
 public:
  static constexpr int64_t kMostInAnswer = int64_t{1} << 18;  // elements

  // Reads what this rank has; refuses what it does not have.
  using ReadOwn = std::function<absl::Status(const StateRequest& request, absl::Span<float> to)>;

  // What `gang` stands for must outlive it.
  StateExchange(const Gang& gang, ReadOwn read_own);

  // Rank 0: reads all of `to` from rank `owner`, whatever request.n is.
  absl::Status Read(int owner, StateRequest request, absl::Span<float> to);

  // Rank 0: lets Serve return everywhere.
  absl::Status End();

  // The other ranks: hands out what Read asks for, until End.
  absl::Status Serve();

 private:
  // Of rank 0: does not wait for ever for a rank that hangs.
  absl::Status ExchangeSoon(absl::Span<const Transfer> transfers);

  const Gang gang_;
  const ReadOwn read_own_;
};

}  // namespace trainyard::engine
