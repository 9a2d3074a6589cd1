#pragma once

namespace trainyard::worker {

// Sees to it that OpenMP's threads spin briefly (executor/run/spin.h): unless the environment says
// how long, sets it and starts the program again, once. An agent says it, so that its workers start
// but once. What the user set stays.
void SpinBriefly(char** argv);

}  // namespace trainyard::worker
