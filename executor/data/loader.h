#pragma once

// Prepares micro-batches ahead of whoever trains or evaluates.

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/order.h"

namespace trainyard::data {

// Delivers the micro-batches of step `first_step`, then of the next, and so on. Threads fill a ring
// of buffers that are allocated once; nothing is allocated after that. How many threads there are
// changes neither order nor bits. Next is for one thread. The destructor stops the threads.
class Loader {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t batch_size = 0;    // of the global batch
    int64_t first_sample = 0;  // of this rank's share within the global batch
    int64_t samples = 0;       // of this rank's share; a multiple of micro_batch
    // Of a share that is no run of samples: where each of its micro-batches begins, in order, in
    // place of first_sample.
    std::vector<int64_t> first_samples = {};
    int64_t micro_batch = 0;
    int64_t first_step = 0;  // steps done before: with `skips` the whole position
    int64_t prefetch = 4;    // micro-batches ready ahead
    int64_t threads = 1;
    // Above 0: instead of training without end the first so many samples of the held-out split, in
    // order, once (or again, after Restart): of each `batch_size` of them this rank's share, a
    // micro-batch; the last one is padded.
    int64_t held_out = 0;
    std::vector<Skip> skips = {};
    // Micro-batches that stay as they are after they were handed out: the newest, and those that a
    // device still copies.
    int64_t in_use = 1;
    // Where the ring lies; null: ordinary memory.
    std::function<std::shared_ptr<char[]>(size_t bytes)> allocate = nullptr;
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

  // Waits for the next micro-batch, which stays valid until Options::in_use more calls. An error of
  // the data set comes in its place and stays. kOutOfRange: the held-out samples are over.
  absl::StatusOr<Batch> Next();

  // Begins anew, with the first `held_out` samples of the held-out split; for loaders of that split
  // alone. Nothing that was handed out may be in use any more.
  void Restart(int64_t held_out);

  // How long calls of Next found nothing ready, together.
  absl::Duration waited() const;

  // Host memory of the ring.
  int64_t bytes() const;

 private:
  struct Slot {
    Batch batch;
    std::shared_ptr<char[]> inputs, targets;
    std::vector<int64_t> samples, epochs;
    int64_t parts_left = 0;  // parts_left, failed_part, status: guarded by mu_
    int64_t failed_part = 0;
    absl::Status status;
  };

  // A run of samples of a micro-batch: what one thread fills at a time.
  struct Part {
    int64_t batch = 0;   // micro-batches before it
    int64_t number = 0;  // within the micro-batch
  };

  void Run();
  bool MayFill() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Ahead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Part TakePart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Fill(const Part& part, int64_t held_out, Slot& slot) const;
  void PutBack(const Part& part, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Slot& SlotOf(int64_t batch) { return ring_[static_cast<size_t>(batch) % ring_.size()]; }

  const Dataset& dataset_;
  const Options options_;
  const Order order_;
  const int64_t grain_;     // samples of a part
  const int64_t parts_;     // of a micro-batch
  std::vector<Slot> ring_;  // micro-batch i goes to slot i % size

  mutable absl::Mutex mu_;
  int64_t held_out_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t batches_ ABSL_GUARDED_BY(mu_) = 0;  // micro-batches in all
  Part next_ ABSL_GUARDED_BY(mu_);            // the next one to fill
  int64_t filled_ ABSL_GUARDED_BY(mu_) = 0;   // micro-batches ready so far
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;    // micro-batches handed out; the last are still in use
  absl::Duration waited_ ABSL_GUARDED_BY(mu_);
  int64_t filling_ ABSL_GUARDED_BY(mu_) = 0;  // parts that threads have at hand
  bool restarting_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace trainyard::data
