#pragma once

// The CPU, with a pause before each kernel.

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/unit/engine/wrapped_cpu.h"

namespace trainyard::engine {

class SlowDevice : public WrappedCpu {
 public:
  explicit SlowDevice(absl::Duration pause) : pause_(pause) {}

 private:
  Launch Wrap(const std::vector<const void*>&, Launch launch) override {
    return [pause = pause_, launch = std::move(launch)](kernels::Stream& stream) {
      absl::SleepFor(pause);
      launch(stream);
    };
  }

  const absl::Duration pause_;
};

}  // namespace trainyard::engine
