#pragma once

// Prepares training micro-batches ahead of the trainer.

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "executor/data/dataset.h"
#include "executor/data/order.h"

namespace trainyard::data {

// Delivers the micro-batches of step `first_step`, then of the next, and so on without end. One
// thread fills a ring of buffers that are allocated once; nothing is allocated after that. Next is
// for one thread. The destructor stops the thread.
class Loader {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t batch_size = 0;    // of the global batch
    int64_t first_sample = 0;  // of this rank's share within the global batch
    int64_t samples = 0;       // of this rank's share; a multiple of micro_batch
    int64_t micro_batch = 0;
    int64_t first_step = 0;  // steps done before: the only position that a checkpoint keeps
    int64_t prefetch = 4;    // micro-batches ready ahead
  };

  struct Batch {
    int64_t step = 0;
    int64_t first_sample = 0;      // within the global batch (StepState::first_sample)
    const void* inputs = nullptr;  // micro_batch * dataset.input_bytes()
    const void* targets = nullptr;
  };

  // `dataset` must outlive the loader.
  Loader(const Dataset& dataset, const Options& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits for the next micro-batch, which stays valid until the next call. An error of the data set
  // comes in its place and stays.
  absl::StatusOr<Batch> Next();

  // Host memory of the ring.
  int64_t bytes() const;

 private:
  struct Slot {
    Batch batch;
    std::unique_ptr<char[]> inputs, targets;
  };

  void Run();
  absl::Status FillSlot(int64_t number, Slot& slot);

  const Dataset& dataset_;
  const Options options_;
  const Order order_;
  std::vector<int64_t> samples_, epochs_;  // of the filling thread
  std::vector<Slot> ring_;                 // micro-batch i goes to slot i % size

  absl::Mutex mu_;
  int64_t filled_ ABSL_GUARDED_BY(mu_) = 0;  // micro-batches ready so far
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;   // micro-batches handed out; the last is still in use
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard::data
