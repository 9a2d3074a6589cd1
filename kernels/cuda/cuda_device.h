#pragma once

// One GPU behind the contract of kernels/device.h. Each Bind is defined in the file named after its
// op. Bind chooses (algorithms, tiles, scratch); a launch only enqueues: it allocates
// nothing, waits for nothing and may be captured in a CUDA graph once it has run outside of one
// (libraries load their kernels at first use). Not thread-safe: one thread drives a device. A
// thread other than the one that opened it begins with MakeStream, a copy or Synchronize, which
// make the device current; a launch alone does not.

#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/matmul_tuner.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/trial.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, const cudaDeviceProp& properties, std::unique_ptr<CublasLt> blas,
             const std::string& cache_folder);
  ~CudaDevice() override;

  std::string Description() const override;
  std::map<std::string, std::string> Arithmetic() const override;
  bool IsGpu() const override { return true; }
  double PeakFlops(DType type) const override;
  int64_t PeakMemoryBytes() override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* data) override;
  std::unique_ptr<Stream> MakeStream() override;
  bool Asynchronous() const override { return true; }
  std::shared_ptr<char[]> AllocateHost(size_t bytes) override;
  void CopyIn(Stream& stream, void* device_to, const void* host_from, size_t bytes) override;
  void CopyOut(Stream& stream, void* host_to, const void* device_from, size_t bytes) override;
  void Copy(Stream& stream, void* device_to, const void* device_from, size_t bytes) override;
  absl::Status Synchronize(Stream& stream) override;
  std::unique_ptr<Event> MakeEvent() override;
  void RecordEvent(Event& event, Stream& stream) override;
  absl::Status Wait(Event& event) override;
  absl::StatusOr<bool> Passed(Event& event) override;
  void StreamWait(Stream& stream, const Event& event) override;
  absl::StatusOr<Kernel> Record(Stream& stream, std::shared_ptr<const Kernels> program) override;
  absl::StatusOr<LinksId> NameLinks() override;
  absl::StatusOr<std::unique_ptr<Links>> Link(const LinksId& id, int rank, int size) override;

#define TY_BIND(Op) absl::StatusOr<Kernel> Bind(const Op& op) override;
  TY_FOR_EACH_OP(TY_BIND)
#undef TY_BIND

 private:
  // Made for the first op that takes it: loading cuDNN costs memory and time that an MLP need not
  // spend.
  absl::StatusOr<Cudnn*> OpenCudnn();

  const int index_;
  const std::string name_;
  const std::string compute_capability_;
  const int multiprocessors_;
  Fault fault_;
  TrialTime trial_time_;
  std::unique_ptr<CublasLt> blas_;
  MatmulTuner tuner_;
  const std::string cache_folder_;
  std::unique_ptr<Cudnn> dnn_;
  std::unordered_map<void*, DeviceMemory> allocations_;
  int64_t peak_memory_ = 0;
};

}  // namespace trainyard::kernels::cuda
