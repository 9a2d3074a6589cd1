#pragma once

// The CPU, with a pause before each kernel.

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/device.h"

namespace trainyard::engine {

class SlowDevice : public kernels::Device {
 public:
  explicit SlowDevice(absl::Duration pause) : pause_(pause), cpu_(kernels::OpenCpu(1).value()) {}

  std::string Description() const override { return cpu_->Description(); }
  std::map<std::string, std::string> Arithmetic() const override { return cpu_->Arithmetic(); }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return cpu_->Allocate(bytes); }
  void Free(void* data) override { cpu_->Free(data); }
  std::unique_ptr<kernels::Stream> MakeStream() override { return cpu_->MakeStream(); }
  void CopyIn(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    cpu_->CopyIn(stream, to, from, bytes);
  }
  void CopyOut(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    cpu_->CopyOut(stream, to, from, bytes);
  }
  void Copy(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    cpu_->Copy(stream, to, from, bytes);
  }
  const void* HostView(const void* data) const override { return cpu_->HostView(data); }
  int64_t PeakMemoryBytes() override { return cpu_->PeakMemoryBytes(); }
  absl::Status Synchronize(kernels::Stream& stream) override { return cpu_->Synchronize(stream); }
  absl::StatusOr<kernels::Kernel> Record(kernels::Stream& stream,
                                         std::shared_ptr<const kernels::Kernels> program) override {
    return cpu_->Record(stream, std::move(program));
  }

#define TY_PREPARE_SLOW(Op)                                              \
  absl::StatusOr<kernels::Kernel> Bind(const kernels::Op& op) override { \
    return Slow(cpu_->Prepare(op));                                      \
  }
  TY_FOR_EACH_OP(TY_PREPARE_SLOW)
#undef TY_PREPARE_SLOW

 private:
  absl::StatusOr<kernels::Kernel> Slow(absl::StatusOr<kernels::Kernel> kernel) const {
    if (!kernel.ok()) return kernel;
    return kernels::Kernel{.launch =
                               [pause = pause_, launch = kernel->launch](kernels::Stream& stream) {
                                 absl::SleepFor(pause);
                                 launch(stream);
                               },
                           .scratch_bytes = kernel->scratch_bytes};
  }

  const absl::Duration pause_;
  const std::unique_ptr<kernels::Device> cpu_;
};

}  // namespace trainyard::engine
