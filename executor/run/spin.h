#pragma once

// How long libgomp's threads spin at the end of a parallel region before they sleep. libgomp reads
// this from the environment once, when it is loaded: the agent sets it for its workers, and a
// worker that was started without it sets it and executes itself again.

namespace trainyard::run {

inline constexpr char kSpinVariable[] = "GOMP_SPINCOUNT";
// If the user set either of the two variables, that says how threads wait.
inline constexpr char kWaitPolicyVariable[] = "OMP_WAIT_POLICY";

// Rounds of a pause instruction, 20 to 50 us: longer than the threads of a small kernel finish
// apart (with 300 rounds a step of a small model takes 10 % longer, with none 40 %), and far
// shorter than a time slice. libgomp's default is 300,000, during which threads that wait for each
// other's core starve.
inline constexpr char kSpinRounds[] = "1000";

}  // namespace trainyard::run
