#pragma once

// Measures which of several ways to do the same work is the fastest. Only candidates that give the
// same bits as the first one that runs, the library's own choice, take part: the outcome shows in
// the time that a step takes and in nothing else.

#include <functional>

#include "absl/time/time.h"
#include "kernels/buffer.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// The time that a process may still spend on measuring, so that a first step does not wait for much
// more. The next process measures what is left.
struct TrialTime {
  absl::Duration left = absl::Seconds(1);
};

struct Trial {
  int candidates = 0;
  // Fills the operands, in the memory that they have in the work. With `cancel` the terms of each
  // sum cancel, so that only rounding errors are left (trial_data.h).
  std::function<void(bool cancel)> fill;
  // Writes anew, before each run, what runs of candidates read and change.
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

// `parts` has room for kMostDigestParts words and may lie in the stream's scratch, which candidates
// use, too.
Choice FastestOfSameBits(Stream& stream, const Trial& trial, uint64_t* parts, TrialTime& time);

}  // namespace trainyard::kernels::cuda
