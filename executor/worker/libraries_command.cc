#include "executor/worker/libraries_command.h"

#include <iostream>
#include <string>
#include <vector>

#include "executor/run/run_directory.h"
#include "kernels/libraries.h"

namespace trainyard::worker {

int RunLibraries() {
  std::vector<kernels::Library> libraries = kernels::CpuLibraries();
  const std::vector<kernels::Library> of_gpus = kernels::CudaLibraries();
  libraries.insert(libraries.end(), of_gpus.begin(), of_gpus.end());
  if (of_gpus.empty()) std::cout << "built without CUDA\n";
  for (const kernels::Library& library : libraries) {
    std::cout << library.name << ": "
              << (library.version.ok() ? *library.version
                                       : std::string(library.version.status().message()))
              << '\n';
  }
  return run::kExitDone;
}

}  // namespace trainyard::worker
