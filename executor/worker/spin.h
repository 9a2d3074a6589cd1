#pragma once

namespace trainyard::worker {

// libgomp's threads spin for milliseconds at the end of each parallel region before they sleep. On
// a machine where anything else runs they then spin for a thread that waits for their core: a step
// of a small model was seen to take 100 times as long. The limit is read from the environment when
// the library is loaded, so this sets it and starts the program again, once. A limit or policy that
// the user set stays.
void SpinBriefly(char** argv);

}  // namespace trainyard::worker
