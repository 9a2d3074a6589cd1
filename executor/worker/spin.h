#pragma once

namespace trainyard::worker {

// Makes OpenMP's threads spin briefly (executor/run/spin.h): unless the environment says how they
// wait, sets how long they spin and executes the program again, once. An agent sets it for its
// workers, so that they start only once. What the user set stays.
void SpinBriefly(char** argv);

}  // namespace trainyard::worker
