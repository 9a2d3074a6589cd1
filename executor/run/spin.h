#pragma once

// How long libgomp's threads spin at the end of a parallel region before they sleep. It reads this
// from the environment once, when it is loaded: the agent puts it there for its workers, and a
// worker that was started without it puts it there and starts again.

namespace trainyard::run {

inline constexpr char kSpinVariable[] = "GOMP_SPINCOUNT";
// Whoever names one of the two has said how to wait.
inline constexpr char kWaitPolicyVariable[] = "OMP_WAIT_POLICY";

// Rounds of a pause instruction, 20 to 50 us: more than the threads of a small kernel differ by
// (with 300 a step of a small model takes 10 % longer, without any 40 %), and far less than a time
// slice. By default it is 300,000, in which threads that wait for each other's core starve.
inline constexpr char kSpinRounds[] = "1000";

}  // namespace trainyard::run
