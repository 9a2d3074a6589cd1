#pragma once

// The CPU as a device that computes while the host goes on, as late as it may: what was enqueued
// runs when somebody waits for it, the host or another stream, no more of it than that, and host
// memory of its own is read and written then.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "storage/base/status.h"

namespace trainyard::engine {

class LateDevice : public kernels::Device {
 public:
  explicit LateDevice(int threads) : cpu_(kernels::OpenCpu(threads).value()) {}

  // Most work that was left when what somebody waited for was done.
  int64_t most_left() const { return most_left_; }

  std::string Description() const override { return "late " + cpu_->Description(); }
  std::map<std::string, std::string> Arithmetic() const override { return cpu_->Arithmetic(); }
  bool Asynchronous() const override { return true; }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return cpu_->Allocate(bytes); }
  void Free(void* data) override { cpu_->Free(data); }

  std::shared_ptr<char[]> AllocateHost(size_t bytes) override {
    std::shared_ptr<char[]> memory = Device::AllocateHost(bytes);
    host_[memory.get()] = {bytes, memory};
    return memory;
  }

  std::unique_ptr<kernels::Stream> MakeStream() override {
    return std::make_unique<LateStream>(cpu_->MakeStream());
  }

  void CopyIn(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    if (IsOurs(from)) return Copy(stream, to, from, bytes);
    const auto bytes_of = static_cast<const char*>(from);
    Enqueue(stream, [to, taken = std::vector<char>(bytes_of, bytes_of + bytes)] {
      std::copy(taken.begin(), taken.end(), static_cast<char*>(to));
    });
  }
  void CopyOut(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    Copy(stream, to, from, bytes);
  }
  void Copy(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    Enqueue(stream, [to, from, bytes] {
      std::copy_n(static_cast<const char*>(from), bytes, static_cast<char*>(to));
    });
  }

  absl::Status Synchronize(kernels::Stream& stream) override {
    RunTo(Late(stream), Late(stream).enqueued);
    return absl::OkStatus();
  }
  std::unique_ptr<kernels::Event> MakeEvent() override { return std::make_unique<LateEvent>(); }
  void RecordEvent(kernels::Event& event, kernels::Stream& stream) override {
    static_cast<LateEvent&>(event) = LateEvent(&Late(stream), Late(stream).enqueued);
  }
  absl::Status Wait(kernels::Event& event) override {
    const auto& late = static_cast<LateEvent&>(event);
    if (late.stream != nullptr) RunTo(*late.stream, late.behind);
    return absl::OkStatus();
  }

  void StreamWait(kernels::Stream& stream, const kernels::Event& event) override {
    const LateEvent& late = static_cast<const LateEvent&>(event);
    if (late.stream == nullptr) return;
    Enqueue(stream, [this, on = late.stream, behind = late.behind] { RunTo(*on, behind); });
  }

  absl::StatusOr<kernels::Kernel> Record(kernels::Stream&,
                                         std::shared_ptr<const kernels::Kernels> program) override {
    return kernels::Kernel{[program = std::move(program)](kernels::Stream& stream) {
      for (const kernels::Kernel& kernel : *program) kernel.launch(stream);
    }};
  }

#define TY_PREPARE_LATE(Op)                                              \
  absl::StatusOr<kernels::Kernel> Bind(const kernels::Op& op) override { \
    return LateKernel(cpu_->Prepare(op));                                \
  }
  TY_FOR_EACH_OP(TY_PREPARE_LATE)
#undef TY_PREPARE_LATE

 private:
  struct LateStream : kernels::Stream {
    explicit LateStream(std::unique_ptr<kernels::Stream> on) : cpu(std::move(on)) {}
    std::unique_ptr<kernels::Stream> cpu;
    std::deque<std::function<void()>> waiting;
    int64_t enqueued = 0;
  };
  struct LateEvent : kernels::Event {
    explicit LateEvent(LateStream* on = nullptr, int64_t count = 0) : stream(on), behind(count) {}
    LateStream* stream;
    int64_t behind;  // so many of what was enqueued
  };

  static LateStream& Late(kernels::Stream& stream) { return static_cast<LateStream&>(stream); }

  static void Enqueue(kernels::Stream& stream, std::function<void()> work) {
    Late(stream).waiting.push_back(std::move(work));
    ++Late(stream).enqueued;
  }

  void RunTo(LateStream& stream, int64_t count) {
    stream.cpu->scratch = stream.scratch;
    stream.cpu->scratch_bytes = stream.scratch_bytes;
    while (stream.enqueued - static_cast<int64_t>(stream.waiting.size()) < count) {
      const std::function<void()> next = std::move(stream.waiting.front());
      stream.waiting.pop_front();
      next();
    }
    most_left_ = std::max(most_left_, static_cast<int64_t>(stream.waiting.size()));
  }

  static absl::StatusOr<kernels::Kernel> LateKernel(absl::StatusOr<kernels::Kernel> kernel) {
    if (!kernel.ok()) return kernel;
    const auto early = std::make_shared<const kernels::Kernel>(*std::move(kernel));
    return kernels::Kernel{
        .launch =
            [early](kernels::Stream& stream) {
              Enqueue(stream, [early, on = Late(stream).cpu.get()] { early->launch(*on); });
            },
        .scratch_bytes = early->scratch_bytes};
  }

  bool IsOurs(const void* data) const {
    const char* const at = static_cast<const char*>(data);
    const auto after = host_.upper_bound(at);
    if (after == host_.begin()) return false;
    const auto& [begin, block] = *std::prev(after);
    return at < begin + block.bytes && !block.memory.expired();
  }

  struct HostBlock {
    size_t bytes = 0;
    std::weak_ptr<char[]> memory;
  };

  const std::unique_ptr<kernels::Device> cpu_;
  std::map<const char*, HostBlock> host_;
  int64_t most_left_ = 0;
};

}  // namespace trainyard::engine
