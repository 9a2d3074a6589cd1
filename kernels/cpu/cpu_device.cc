#include "kernels/cpu/cpu_device.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

CpuDevice::CpuDevice(int threads, const VectorTable& vectors)
    : threads_(threads), vectors_(vectors), dnnl_(threads) {}

CpuDevice::~CpuDevice() {
  for (void* data : allocations_) std::free(data);
}

std::vector<const VectorTable*> CpuDevice::SupportedTables() {
  __builtin_cpu_init();
  std::vector<const VectorTable*> tables;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    tables.push_back(&avx512::Table());
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    tables.push_back(&avx2::Table());
  }
  tables.push_back(&baseline::Table());
  return tables;
}

std::string CpuDevice::Description() const { return absl::StrCat("cpu x", threads_); }

int64_t CpuDevice::PeakMemoryBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

absl::StatusOr<void*> CpuDevice::Allocate(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  const size_t wanted = bytes == 0 ? alignment : bytes;
  void* data = nullptr;
  if (posix_memalign(&data, alignment, wanted) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Description(), ": cannot allocate ", bytes, " bytes of memory"));
  }
  // An arena is walked from end to end each step: fewer, larger pages miss the TLB less. It does no
  // harm if the system refuses.
  if (alignment == kHugePage) madvise(data, wanted, MADV_HUGEPAGE);
  allocations_.insert(data);
  return data;
}

void CpuDevice::Free(void* data) {
  if (allocations_.erase(data) == 1) std::free(data);
}

std::unique_ptr<Stream> CpuDevice::MakeStream() { return std::make_unique<Stream>(); }

void CpuDevice::CopyIn(Stream&, void* device_to, const void* host_from, size_t bytes) {
  if (bytes > 0) std::memcpy(device_to, host_from, bytes);
}

void CpuDevice::CopyOut(Stream&, void* host_to, const void* device_from, size_t bytes) {
  if (bytes > 0) std::memcpy(host_to, device_from, bytes);
}

void CpuDevice::Copy(Stream&, void* device_to, const void* device_from, size_t bytes) {
  if (bytes > 0) std::memcpy(device_to, device_from, bytes);
}

absl::Status CpuDevice::Synchronize(Stream&) { return absl::OkStatus(); }

absl::StatusOr<Kernel> CpuDevice::Record(Stream&, std::shared_ptr<const Kernels> program) {
  return Kernel{[program = std::move(program)](Stream& stream) {
    for (const Kernel& kernel : *program) kernel.launch(stream);
  }};
}

absl::StatusOr<std::unique_ptr<Device>> OpenCpu(int threads) {
  constexpr int kMost = 4096;
  if (threads < 1 || threads > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", threads, "; expected 1 to ", kMost));
  }
  return std::make_unique<CpuDevice>(threads, *CpuDevice::SupportedTables().front());
}

}  // namespace trainyard::kernels
