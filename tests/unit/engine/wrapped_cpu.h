#pragma once

// The CPU, of which a test changes what launches do.

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace trainyard::engine {

class WrappedCpu : public kernels::Device {
 public:
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

#define TY_PREPARE_WRAPPED(Op)                                           \
  absl::StatusOr<kernels::Kernel> Bind(const kernels::Op& op) override { \
    return Around(OperandsOf(op), cpu_->Prepare(op));                    \
  }
  TY_FOR_EACH_OP(TY_PREPARE_WRAPPED)
#undef TY_PREPARE_WRAPPED

 protected:
  using Launch = std::function<void(kernels::Stream&)>;

  // What launches in place of `launch`, the kernel of an op whose operands begin at `operands`.
  virtual Launch Wrap(const std::vector<const void*>& operands, Launch launch) = 0;

 private:
  template <typename Field>
  static void AddOperand(const Field& field, std::vector<const void*>& to) {
    if constexpr (kernels::kIsTouched<Field>) {
      if constexpr (requires { field.at.first; }) {
        for (int64_t t = 0; t < field.at.list.count; ++t) to.push_back(field.at.At(t).data);
      } else {
        to.push_back(field.at.data);
      }
    }
  }

  template <typename Op>
  static std::vector<const void*> OperandsOf(const Op& op) {
    std::vector<const void*> operands;
    std::apply([&](const auto&... fields) { (AddOperand(fields, operands), ...); }, op.Fields());
    return operands;
  }

  absl::StatusOr<kernels::Kernel> Around(const std::vector<const void*>& operands,
                                         absl::StatusOr<kernels::Kernel> kernel) {
    if (!kernel.ok()) return kernel;
    return kernels::Kernel{.launch = Wrap(operands, std::move(kernel->launch)),
                           .scratch_bytes = kernel->scratch_bytes};
  }

  const std::unique_ptr<kernels::Device> cpu_ = kernels::OpenCpu(1).value();
};

}  // namespace trainyard::engine
