// Streams and graphs of the CUDA runtime.

#include "tests/gpu/emulator/stream.h"

#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

using Work = std::vector<std::function<void()>>;

struct CUstream_st {
  std::deque<std::function<void()>> waiting;
  bool recording = false, refused = false;
  Work recorded;
};
struct CUevent_st {
  // Outlives the event in the work of streams.
  struct Times {
    int put = 0, passed = 0;
    float at = 0;  // when it was passed
  };
  cudaStream_t stream = nullptr;  // that it was put into
  std::shared_ptr<Times> times = std::make_shared<Times>();

  bool waiting() const { return times->passed < times->put; }
};
struct CUgraph_st {
  std::shared_ptr<const Work> work;
};
struct CUgraphExec_st {
  std::shared_ptr<const Work> work;
};

namespace trainyard::emulator {
namespace {

std::set<cudaStream_t>& Streams() {
  static std::set<cudaStream_t>& streams = *new std::set<cudaStream_t>;
  return streams;
}

// Code that has run, or waits to.
std::set<const void*>& Loaded() {
  static std::set<const void*>& loaded = *new std::set<const void*>;
  return loaded;
}

// Runs what waits, up to where `enough` says that it is.
void Run(
    cudaStream_t stream, const std::function<bool()>& enough = [] { return false; }) {
  while (!stream->waiting.empty() && !enough()) {
    const std::function<void()> one = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    one();
  }
}

// Ends a recording for good; EndCapture tells.
cudaError_t Refuse(cudaStream_t stream) {
  stream->refused = true;
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

cudaError_t Enqueue(cudaStream_t stream, const void* code, std::function<void()> work) {
  if (!Streams().contains(stream)) return cudaErrorInvalidResourceHandle;
  if (!stream->recording) {
    Loaded().insert(code);
    stream->waiting.push_back(std::move(work));
    return cudaSuccess;
  }
  if (stream->refused) return cudaErrorStreamCaptureInvalidated;
  if (code != nullptr && !Loaded().contains(code)) return Refuse(stream);
  stream->recorded.push_back(std::move(work));
  return cudaSuccess;
}

float& Clock() {
  static float now = 0;
  return now;
}

void RunAll() {
  for (const cudaStream_t stream : Streams()) Run(stream);
}

}  // namespace trainyard::emulator

using trainyard::emulator::Refuse;
using trainyard::emulator::Run;
using trainyard::emulator::Streams;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  Streams().insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Run(stream);
  Streams().erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->recording) return Refuse(stream);
  Run(stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event->waiting()) Run(event->stream);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream->recording) return Refuse(stream);
  event->stream = stream;
  ++event->times->put;
  return trainyard::emulator::Enqueue(stream, nullptr, [times = event->times] {
    ++times->passed;
    times->at = trainyard::emulator::Clock();
  });
}
// Behind where the event lies now, wherever it is put later.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (stream->recording) return Refuse(stream);
  if (!event->waiting()) return cudaSuccess;
  const auto enough = [times = event->times, put = event->times->put] {
    return times->passed >= put;
  };
  return trainyard::emulator::Enqueue(stream, nullptr,
                                      [on = event->stream, enough] { Run(on, enough); });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = end->times->at - start->times->at;
  return cudaSuccess;
}
// Runs no more of the stream than it must.
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->waiting()) Run(event->stream, [event] { return !event->waiting(); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->recording) return cudaErrorIllegalState;
  stream->recording = true;
  stream->refused = false;
  stream->recorded.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!stream->recording) return cudaErrorIllegalState;
  stream->recording = false;
  if (stream->refused) return cudaErrorStreamCaptureInvalidated;
  *graph = new CUgraph_st{std::make_shared<const Work>(std::move(stream->recorded))};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (stream->recording) return Refuse(stream);
  return trainyard::emulator::Enqueue(stream, nullptr, [work = graph->work] {
    for (const auto& one : *work) one();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
