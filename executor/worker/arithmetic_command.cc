#include "executor/worker/arithmetic_command.h"

#include <iostream>
#include <memory>

#include "executor/engine/arithmetic.h"
#include "executor/run/run_directory.h"
#include "executor/worker/exit_code.h"
#include "executor/worker/open_device.h"
#include "storage/base/arithmetic.h"

namespace trainyard::worker {

int RunArithmetic(const std::string& device) {
  const absl::StatusOr<std::unique_ptr<kernels::Device>> opened = OpenDevice(device, 1);
  if (!opened.ok()) {
    std::cerr << "trainyard-worker: " << opened.status().message() << '\n';
    return ExitCodeOf(opened.status());
  }
  std::cout << ArithmeticToText(engine::ArithmeticOf(**opened)) << '\n';
  return run::kExitDone;
}

}  // namespace trainyard::worker
