#pragma once

#include <string>

#include "executor/engine/sampler.h"

namespace trainyard::worker {

struct SampleCommand {
  std::string checkpoint;  // a checkpoint, a folder of some (the newest), or FOLDER/best
  std::string prompt;      // "": a line break, if the vocabulary has one
  std::string device = "cpu";
  int threads = 1;
  engine::SampleOptions options;
};

// Prints the prompt and what the model makes of it. Returns the exit code.
int RunSample(const SampleCommand& command);

}  // namespace trainyard::worker
