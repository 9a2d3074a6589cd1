#include "kernels/cuda/cuda_device.h"

#include <cudnn.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/nccl_links.h"
#include "kernels/cuda/peak.h"
#include "kernels/cuda/probe.h"

namespace trainyard::kernels::cuda {

CudaDevice::CudaDevice(int index, const cudaDeviceProp& properties, std::unique_ptr<CublasLt> blas,
                       const std::string& cache_folder)
    : index_(index),
      name_(properties.name),
      compute_capability_(absl::StrCat(properties.major, ".", properties.minor)),
      multiprocessors_(properties.multiProcessorCount),
      blas_(std::move(blas)),
      tuner_(blas_->handle(), cache_folder, absl::StrCat(name_, "-cublaslt-", cublasLtGetVersion()),
             trial_time_),
      cache_folder_(cache_folder) {}

CudaDevice::~CudaDevice() { cudaSetDevice(index_); }

std::string CudaDevice::Description() const { return absl::StrCat("cuda:", index_, " ", name_); }

// The driver is not among them: it runs what was compiled, and chooses no order of sums.
std::map<std::string, std::string> CudaDevice::Arithmetic() const {
  return {{"device", name_},
          {"compute capability", compute_capability_},
          {"multiprocessors", absl::StrCat(multiprocessors_)},
          {"cuBLASLt", absl::StrCat(cublasLtGetVersion())},
          {"cuDNN", absl::StrCat(cudnnGetVersion())}};
}

double CudaDevice::PeakFlops(DType type) const { return cuda::PeakFlops(name_, type); }

int64_t CudaDevice::PeakMemoryBytes() {
  cudaSetDevice(index_);
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) {
    peak_memory_ = std::max(peak_memory_, static_cast<int64_t>(total - free));
  }
  return peak_memory_;
}

absl::StatusOr<void*> CudaDevice::Allocate(size_t bytes) {
  cudaSetDevice(index_);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  if (error != cudaSuccess) {
    cudaGetLastError();  // lack of memory is no fault: later launches shall not report it
    return ToStatus(error, absl::StrCat("cuda:", index_, ": allocating ", bytes, " bytes"));
  }
  allocations_.emplace(data, DeviceMemory(data));
  PeakMemoryBytes();
  return data;
}

void CudaDevice::Free(void* data) { allocations_.erase(data); }

std::unique_ptr<Stream> CudaDevice::MakeStream() {
  cudaSetDevice(index_);
  return std::make_unique<CudaStream>(fault_);
}

std::shared_ptr<char[]> CudaDevice::AllocateHost(size_t bytes) {
  cudaSetDevice(index_);
  void* data = nullptr;
  if (cudaHostAlloc(&data, std::max<size_t>(bytes, 1), cudaHostAllocDefault) != cudaSuccess) {
    cudaGetLastError();  // memory cannot be pinned: copies wait, then
    return Device::AllocateHost(bytes);
  }
  return {static_cast<char*>(data), [index = index_](char* pinned) {
            cudaSetDevice(index);
            cudaDeviceSynchronize();  // no copy may still use the memory
            cudaFreeHost(pinned);
          }};
}

// From pageable memory the runtime stages the bytes before it returns, so that the caller may reuse
// them at once; from pinned memory they must stay until the copy is done.
void CudaDevice::CopyIn(Stream& stream, void* device_to, const void* host_from, size_t bytes) {
  cudaSetDevice(index_);
  const CudaStream& on = CudaStream::From(stream);
  fault_.Note(cudaMemcpyAsync(device_to, host_from, bytes, cudaMemcpyHostToDevice, on.handle()),
              "copy to the device");
}

void CudaDevice::CopyOut(Stream& stream, void* host_to, const void* device_from, size_t bytes) {
  cudaSetDevice(index_);
  const CudaStream& on = CudaStream::From(stream);
  fault_.Note(cudaMemcpyAsync(host_to, device_from, bytes, cudaMemcpyDeviceToHost, on.handle()),
              "copy from the device");
}

void CudaDevice::Copy(Stream& stream, void* device_to, const void* device_from, size_t bytes) {
  cudaSetDevice(index_);
  const CudaStream& on = CudaStream::From(stream);
  fault_.Note(cudaMemcpyAsync(device_to, device_from, bytes, cudaMemcpyDeviceToDevice, on.handle()),
              "copy within the device");
}

absl::Status CudaDevice::Synchronize(Stream& stream) {
  cudaSetDevice(index_);
  fault_.Note(cudaStreamSynchronize(CudaStream::From(stream).handle()),
              absl::StrCat("cuda:", index_));
  return fault_.status();
}

std::unique_ptr<Event> CudaDevice::MakeEvent() {
  cudaSetDevice(index_);
  return std::make_unique<CudaEvent>(fault_);
}

void CudaDevice::RecordEvent(Event& event, Stream& stream) {
  cudaSetDevice(index_);
  fault_.Note(cudaEventRecord(CudaEvent::From(event).handle(), CudaStream::From(stream).handle()),
              "cudaEventRecord");
}

absl::Status CudaDevice::Wait(Event& event) {
  cudaSetDevice(index_);
  fault_.Note(cudaEventSynchronize(CudaEvent::From(event).handle()), absl::StrCat("cuda:", index_));
  return fault_.status();
}

absl::StatusOr<bool> CudaDevice::Passed(Event& event) {
  cudaSetDevice(index_);
  const cudaError_t error = cudaEventQuery(CudaEvent::From(event).handle());
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // no fault
  } else {
    fault_.Note(error, absl::StrCat("cuda:", index_));
  }
  if (!fault_.status().ok()) return fault_.status();
  return error == cudaSuccess;
}

void CudaDevice::StreamWait(Stream& stream, const Event& event) {
  cudaSetDevice(index_);
  fault_.Note(
      cudaStreamWaitEvent(CudaStream::From(stream).handle(), CudaEvent::From(event).handle(), 0),
      "cudaStreamWaitEvent");
}

// The kernel keeps the program: its graph holds addresses of memory that the program's kernels may
// own.
absl::StatusOr<Kernel> CudaDevice::Record(Stream& stream, std::shared_ptr<const Kernels> program) {
  cudaSetDevice(index_);
  const auto enqueue = [&] {
    for (const Kernel& kernel : *program) kernel.launch(stream);
  };
  absl::StatusOr<std::shared_ptr<const Graph>> graph =
      Graph::Record(CudaStream::From(stream), enqueue);
  if (!graph.ok()) return graph.status();
  return Kernel{[program = std::move(program), graph = *std::move(graph)](Stream& on) {
    graph->Launch(CudaStream::From(on));
  }};
}

absl::StatusOr<LinksId> CudaDevice::NameLinks() {
  cudaSetDevice(index_);
  return NameNcclLinks();
}

absl::StatusOr<std::unique_ptr<Links>> CudaDevice::Link(const LinksId& id, int rank, int size) {
  cudaSetDevice(index_);
  return NcclLinks::Begin(id, rank, size);
}

absl::StatusOr<Cudnn*> CudaDevice::OpenCudnn() {
  cudaSetDevice(index_);
  if (dnn_ == nullptr) {
    absl::StatusOr<std::unique_ptr<Cudnn>> made = Cudnn::Make(cache_folder_, name_, trial_time_);
    if (!made.ok()) return made.status();
    dnn_ = *std::move(made);
  }
  return dnn_.get();
}

}  // namespace trainyard::kernels::cuda

namespace trainyard::kernels {

absl::StatusOr<std::unique_ptr<Device>> OpenCuda(int index, const std::string& cache_folder) {
  int count = 0;  // stays as it is when there is no driver
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    cudaGetLastError();
    return absl::UnavailableError(absl::StrCat("cuda:", index, ": no usable GPU driver here (",
                                               cudaGetErrorName(counted), ": ",
                                               cudaGetErrorString(counted), ")"));
  }
  if (index < 0 || index >= count) {
    return absl::UnavailableError(
        absl::StrCat("cuda:", index, ": no such GPU; this machine shows ", count));
  }
  cudaDeviceProp properties = {};
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index);
  if (error == cudaSuccess) error = cuda::ProbeKernelImage();
  if (error != cudaSuccess) {
    cudaGetLastError();
    return absl::UnavailableError(absl::StrCat(
        "cuda:", index, " ", properties.name, " of compute capability ", properties.major, ".",
        properties.minor, " cannot be used: ", cudaGetErrorName(error), ": ",
        cudaGetErrorString(error)));
  }
  absl::StatusOr<std::unique_ptr<cuda::CublasLt>> blas = cuda::CublasLt::Make();
  if (!blas.ok()) return blas.status();
  return std::make_unique<cuda::CudaDevice>(index, properties, *std::move(blas), cache_folder);
}

}  // namespace trainyard::kernels
