#pragma once

// Which of several ways to do the same work is the fastest, by measuring. Only those count that
// give the bits of the first that runs, the library's own choice: what was measured, here or
// elsewhere, shows in the time a step takes and in nothing else.

#include <functional>

#include "absl/time/time.h"
#include "kernels/buffer.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// What a process spends on measuring: a first step shall not wait for much more. The next process
// goes on from there.
struct TrialTime {
  absl::Duration left = absl::Seconds(1);
};

struct Trial {
  int candidates = 0;
  // Writes the operands, on the memory that they have in the work; with `cancel` numbers whose sums
  // cancel, so that what is left is what rounding left (trial_data.h).
  std::function<void(bool cancel)> fill;
  // Writes anew what a run of a candidate changes and reads.
  std::function<void(bool cancel)> reset = nullptr;
  // Enqueues the work; false: this candidate cannot do it.
  std::function<bool(int candidate)> run;
  // What is compared: `rows` rows of `cols` elements that lie `step` apart.
  Buffer result;
  int64_t rows = 0, cols = 0, step = 0;
};

struct Choice {
  int candidate = 0;
  bool complete = false;  // all were tried in time
};

// Uses the stream's scratch beyond `parts`, where kMostDigestParts words have room.
Choice FastestOfSameBits(Stream& stream, const Trial& trial, uint64_t* parts, TrialTime& time);

}  // namespace trainyard::kernels::cuda
