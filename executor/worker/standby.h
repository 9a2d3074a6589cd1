#pragma once

#include "executor/worker/rank.h"

namespace trainyard::worker {

// A warm worker: loads and touches what the first step needs, then waits for its orders on stdin
// (executor/run/orders.h), becomes the user whom they name, and runs that rank. Returns its exit
// code; 0 when stdin ends before orders came. With `open_device` the device of `options` is opened
// beforehand, which the log says ("waiting, warm, on …"; tests/gpu waits for it), and used if the
// orders are for the same device and threads.
// `confined`: it may start no process and no program from then on.
int RunStandby(const RankOptions& options, bool open_device, bool confined);

}  // namespace trainyard::worker
