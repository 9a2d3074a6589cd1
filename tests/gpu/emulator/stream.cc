// Streams and graphs of the CUDA runtime.

#include "tests/gpu/emulator/stream.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

namespace trainyard::emulator {

// What was recorded: one of the two.
struct RecordedWork {
  std::function<void()> work;
  std::function<Advance()> issue;
};

}  // namespace trainyard::emulator

using trainyard::emulator::Advance;
using Work = std::vector<trainyard::emulator::RecordedWork>;

// What is being recorded: the work of one stream, and of those that wait for it meanwhile. Work is
// in the order of the calls, which is one that the events allow.
struct Recording {
  cudaStream_t origin = nullptr;
  bool refused = false;
  Work work;
  // Streams that take part, with how much each has put into `work`, and how much of that the origin
  // has waited for.
  struct Part {
    int put = 0, joined = 0;
  };
  std::map<cudaStream_t, Part> parts;
};

struct CUstream_st {
  std::deque<Advance> waiting;
  std::shared_ptr<Recording> recording;
};
struct CUevent_st {
  // If it was put into a stream that was being recorded: where in that stream's part.
  std::shared_ptr<Recording> recording;
  int put_in_recording = 0;
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

// Held by whoever puts work on streams, runs it or asks for it: the host's thread, and others that
// work for another process.
std::mutex& Streaming() {
  static std::mutex& streaming = *new std::mutex;
  return streaming;
}

bool Never() { return false; }

// Runs what waits, up to where `enough` says that it is. Returns false if the next work cannot go
// on now.
bool Run(cudaStream_t stream, const std::function<bool()>& enough = Never) {
  while (!stream->waiting.empty() && !enough()) {
    if (!stream->waiting.front()()) return false;
    stream->waiting.pop_front();
  }
  return true;
}

// Runs `stream` until `enough`, and the others meanwhile whenever it cannot go on: they are streams
// of their own, and what it waits for may need them.
void RunUntil(std::unique_lock<std::mutex>& lock, cudaStream_t stream,
              const std::function<bool()>& enough = Never) {
  for (std::chrono::microseconds pause(20); !Run(stream, enough);
       pause = std::min(2 * pause, std::chrono::microseconds(500))) {
    for (const cudaStream_t other : Streams()) {
      if (other != stream) Run(other);
    }
    if (Run(stream, enough)) return;
    lock.unlock();
    std::this_thread::sleep_for(pause);  // another process goes on meanwhile
    lock.lock();
  }
}

// Ends a recording for good; EndCapture tells.
cudaError_t Refuse(cudaStream_t stream) {
  if (stream->recording) stream->recording->refused = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t PutIntoRecording(cudaStream_t stream, trainyard::emulator::RecordedWork work) {
  Recording& recording = *stream->recording;
  if (recording.refused) return cudaErrorStreamCaptureInvalidated;
  recording.work.push_back(std::move(work));
  ++recording.parts[stream].put;
  return cudaSuccess;
}

cudaError_t EnqueueLocked(cudaStream_t stream, const void* code, std::function<void()> work) {
  if (!Streams().contains(stream)) return cudaErrorInvalidResourceHandle;
  if (!stream->recording) {
    Loaded().insert(code);
    stream->waiting.push_back([work = std::move(work)] {
      work();
      return true;
    });
    return cudaSuccess;
  }
  if (code != nullptr && !Loaded().contains(code)) return Refuse(stream);
  return PutIntoRecording(stream, {std::move(work), nullptr});
}

// What a launch of a graph runs.
Advance Issue(const std::shared_ptr<const Work>& work) {
  std::vector<Advance> issued;
  for (const RecordedWork& item : *work) issued.push_back(item.issue ? item.issue() : nullptr);
  return [work, issued = std::move(issued), at = size_t{0}]() mutable {
    for (; at < work->size(); ++at) {
      if (issued[at] == nullptr) {
        (*work)[at].work();
      } else if (!issued[at]()) {
        return false;
      }
    }
    return true;
  };
}

}  // namespace

cudaError_t Enqueue(cudaStream_t stream, const void* code, std::function<void()> work) {
  const std::unique_lock<std::mutex> lock(Streaming());
  return EnqueueLocked(stream, code, std::move(work));
}

cudaError_t EnqueueIssued(cudaStream_t stream, std::function<Advance()> issue) {
  const std::unique_lock<std::mutex> lock(Streaming());
  if (!Streams().contains(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->recording) return PutIntoRecording(stream, {nullptr, std::move(issue)});
  stream->waiting.push_back(issue());
  return cudaSuccess;
}

bool IsRecording(cudaStream_t stream) {
  const std::unique_lock<std::mutex> lock(Streaming());
  return Streams().contains(stream) && stream->recording != nullptr;
}

cudaError_t RefuseRecording(cudaStream_t stream) {
  const std::unique_lock<std::mutex> lock(Streaming());
  return Refuse(stream);
}

void RunAllUntil(const std::function<bool()>& enough) {
  const std::unique_lock<std::mutex> lock(Streaming());
  for (const cudaStream_t stream : Streams()) Run(stream, enough);
}

float& Clock() {
  static float now = 0;
  return now;
}

void RunAll() {
  std::unique_lock<std::mutex> lock(Streaming());
  const std::set<cudaStream_t> all = Streams();
  for (const cudaStream_t stream : all) RunUntil(lock, stream);
}

}  // namespace trainyard::emulator

using trainyard::emulator::EnqueueLocked;
using trainyard::emulator::Issue;
using trainyard::emulator::Refuse;
using trainyard::emulator::Run;
using trainyard::emulator::RunUntil;
using trainyard::emulator::Streaming;
using trainyard::emulator::Streams;
using Lock = std::unique_lock<std::mutex>;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(Streaming());
  *stream = new CUstream_st;
  Streams().insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(Streaming());
  RunUntil(lock, stream);
  Streams().erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(Streaming());
  if (stream->recording) return Refuse(stream);
  RunUntil(lock, stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock(Streaming());
  if (event->waiting()) RunUntil(lock, event->stream, [event] { return !event->waiting(); });
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(Streaming());
  event->recording = stream->recording;
  if (stream->recording) {
    event->stream = stream;
    event->put_in_recording = stream->recording->parts[stream].put;
    return cudaSuccess;
  }
  event->stream = stream;
  ++event->times->put;
  return EnqueueLocked(stream, nullptr, [times = event->times] {
    ++times->passed;
    times->at = trainyard::emulator::Clock();
  });
}
// Behind where the event lies now, wherever it is put later. A stream that waits for what is being
// recorded is recorded, too, from then on. Nothing that is recorded waits for what is not.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(Streaming());
  if (event->recording) {
    if (stream->recording == nullptr) {
      // A recording that has ended: its events cannot be waited for.
      if (event->recording->origin->recording != event->recording) {
        return cudaErrorStreamCaptureIsolation;
      }
      stream->recording = event->recording;
      stream->recording->parts[stream] = {};
    }
    if (stream->recording != event->recording) return Refuse(stream);
    if (stream == event->recording->origin) {
      Recording::Part& part = event->recording->parts[event->stream];
      part.joined = std::max(part.joined, event->put_in_recording);
    }
    return cudaSuccess;
  }
  if (stream->recording) return Refuse(stream);
  if (!event->waiting()) return cudaSuccess;
  const auto enough = [times = event->times, put = event->times->put] {
    return times->passed >= put;
  };
  stream->waiting.push_back([on = event->stream, enough] { return enough() || Run(on, enough); });
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(Streaming());
  *milliseconds = end->times->at - start->times->at;
  return cudaSuccess;
}
// Runs no more of the stream than it must.
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(Streaming());
  if (event->waiting()) RunUntil(lock, event->stream, [event] { return !event->waiting(); });
  return cudaSuccess;
}
// Who asks waits in the end, so work goes on; but what was not done before is not done yet.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(Streaming());
  if (!event->waiting()) return cudaSuccess;
  const auto enough = [event] { return !event->waiting(); };
  if (!Run(event->stream, enough)) {
    for (const cudaStream_t stream : Streams()) Run(stream, enough);
  }
  return cudaErrorNotReady;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(Streaming());
  if (stream->recording) return cudaErrorIllegalState;
  stream->recording = std::make_shared<Recording>(Recording{.origin = stream});
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(Streaming());
  *graph = nullptr;
  const std::shared_ptr<Recording> recording = stream->recording;
  if (recording == nullptr || recording->origin != stream) return cudaErrorIllegalState;
  bool joined = true;
  for (const auto& [part, work] : recording->parts) {
    part->recording = nullptr;
    joined = joined && (part == stream || work.joined == work.put);
  }
  stream->recording = nullptr;
  if (recording->refused) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{std::make_shared<const Work>(std::move(recording->work))};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const Lock lock(Streaming());
  if (stream->recording) return Refuse(stream);
  stream->waiting.push_back(Issue(graph->work));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
