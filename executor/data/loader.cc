#include "executor/data/loader.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// The micro-batches of a loader in all.
int64_t BatchesOf(int64_t held_out, const Loader::Options& options) {
  if (held_out == 0) return std::numeric_limits<int64_t>::max();
  const int64_t left = std::max<int64_t>(0, held_out - options.first_sample);
  return (left + options.batch_size - 1) / options.batch_size;
}

}  // namespace

Loader::Loader(const Dataset& dataset, const Options& options)
    : dataset_(dataset),
      options_(options),
      order_(options.seed, dataset.size(Split::kTrain), dataset.sampled_with_replacement()),
      grain_(dataset.grain() > 0 ? dataset.grain() : options.micro_batch),
      parts_((options.micro_batch + grain_ - 1) / grain_),
      held_out_(options.held_out),
      batches_(BatchesOf(options.held_out, options)) {
  TY_CHECK(
      options.micro_batch > 0 && options.samples > 0 && options.samples % options.micro_batch == 0,
      "a share of ", options.samples, " in micro-batches of ", options.micro_batch);
  TY_CHECK(
      options.first_sample >= 0 && options.first_sample + options.samples <= options.batch_size,
      "a share of ", options.samples, " from ", options.first_sample, " in a batch of ",
      options.batch_size);
  for (const int64_t first : options.first_samples) {
    TY_CHECK(first >= 0 && first + options.micro_batch <= options.batch_size, "a micro-batch of ",
             options.micro_batch, " from ", first, " in a batch of ", options.batch_size);
  }
  TY_CHECK(options.first_samples.empty() ||
               static_cast<int64_t>(options.first_samples.size()) * options.micro_batch ==
                   options.samples,
           options.first_samples.size(), " micro-batches of a share of ", options.samples);
  TY_CHECK(options.held_out == 0 || options.samples == options.micro_batch, "a share of ",
           options.samples, " held-out samples in micro-batches of ", options.micro_batch);
  TY_CHECK(options.prefetch >= 1 && options.first_step >= 0, "prefetch ", options.prefetch);
  TY_CHECK(options.threads >= 1, options.threads, " threads");
  TY_CHECK(options.in_use >= 1, options.in_use, " in use");
  const auto allocate = [&](int64_t bytes) {
    return options.allocate ? options.allocate(bytes)
                            : std::make_shared_for_overwrite<char[]>(bytes);
  };
  ring_.resize(static_cast<size_t>(options.prefetch + options.in_use));
  for (Slot& slot : ring_) {
    slot.inputs = allocate(options.micro_batch * dataset.input_bytes());
    slot.targets = allocate(options.micro_batch * dataset.target_bytes());
    slot.samples.resize(options.micro_batch);
    slot.epochs.resize(options.micro_batch);
  }
  for (int64_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Run(); });
}

Loader::~Loader() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

int64_t Loader::bytes() const {
  return static_cast<int64_t>(ring_.size()) * options_.micro_batch *
         (dataset_.input_bytes() + dataset_.target_bytes());
}

void Loader::Restart(int64_t held_out) {
  TY_CHECK(options_.held_out > 0 && held_out > 0, "a restart with ", held_out, " held-out samples");
  absl::MutexLock lock(&mu_);
  restarting_ = true;
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return filling_ == 0; };
  mu_.Await(absl::Condition(&idle));
  restarting_ = false;
  held_out_ = held_out;
  batches_ = BatchesOf(held_out, options_);
  next_ = {};
  filled_ = taken_ = 0;
}

absl::StatusOr<Loader::Batch> Loader::Next() {
  absl::MutexLock lock(&mu_);
  if (taken_ == batches_) return absl::OutOfRangeError("the held-out samples are over");
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return filled_ > taken_; };
  if (!ready()) {
    const auto start = std::chrono::steady_clock::now();
    mu_.Await(absl::Condition(&ready));
    waited_ += absl::FromChrono(std::chrono::steady_clock::now() - start);
  }
  const Slot& slot = SlotOf(taken_);
  if (!slot.status.ok()) return slot.status;
  ++taken_;
  return slot.batch;
}

absl::Duration Loader::waited() const {
  absl::MutexLock lock(&mu_);
  return waited_;
}

bool Loader::MayFill() const { return !restarting_ && Ahead(); }

// Whether there is a part to fill. Those in use stay untouched.
bool Loader::Ahead() const {
  const int64_t end =
      std::max<int64_t>(0, taken_ - options_.in_use) + static_cast<int64_t>(ring_.size());
  return next_.batch < std::min(end, batches_);
}

Loader::Part Loader::TakePart() {
  const Part part = next_;
  Slot& slot = SlotOf(part.batch);
  if (part.number == 0) {
    const int64_t per_step = options_.samples / options_.micro_batch;
    slot.batch.step = options_.first_step + part.batch / per_step;
    const int64_t number = part.batch % per_step;  // of the micro-batches of its step
    slot.batch.first_sample = options_.first_samples.empty()
                                  ? options_.first_sample + number * options_.micro_batch
                                  : options_.first_samples[number];
    slot.batch.inputs = slot.inputs.get();
    slot.batch.targets = slot.targets.get();
    slot.parts_left = parts_;
    slot.status = absl::OkStatus();
  }
  if (++next_.number == parts_) next_ = {.batch = part.batch + 1};
  return part;
}

absl::Status Loader::Fill(const Part& part, int64_t held_out, Slot& slot) const {
  const int64_t begin = part.number * grain_;
  const int64_t n = std::min(begin + grain_, options_.micro_batch) - begin;
  const int64_t index =
      BatchOfStep(slot.batch.step, options_.skips) * options_.batch_size + slot.batch.first_sample;
  for (int64_t i = begin; i < begin + n; ++i) {
    if (held_out > 0) {
      slot.samples[i] = index + i < held_out ? index + i : -1;
    } else {
      slot.samples[i] = order_.Sample(index + i);
      slot.epochs[i] = order_.Epoch(index + i);
    }
  }
  const auto samples = absl::MakeConstSpan(slot.samples).subspan(begin, n);
  void* inputs = slot.inputs.get() + begin * dataset_.input_bytes();
  void* targets = slot.targets.get() + begin * dataset_.target_bytes();
  if (held_out > 0) return dataset_.Fill(Split::kValidation, samples, inputs, targets);
  return dataset_.FillForTraining(
      options_.seed, samples, absl::MakeConstSpan(slot.epochs).subspan(begin, n), inputs, targets);
}

// Of several failures in a micro-batch the first one counts, whichever thread was faster.
void Loader::PutBack(const Part& part, const absl::Status& status) {
  Slot& slot = SlotOf(part.batch);
  if (!status.ok() && (slot.status.ok() || part.number < slot.failed_part)) {
    slot.status = status;
    slot.failed_part = part.number;
  }
  --slot.parts_left;
  while (filled_ < next_.batch && SlotOf(filled_).parts_left == 0) ++filled_;
}

void Loader::Run() {
  const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || MayFill(); };
  for (;;) {
    Part part;
    int64_t held_out = 0;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&work));
      if (stop_) return;
      part = TakePart();
      held_out = held_out_;
      ++filling_;
    }
    const absl::Status status = Fill(part, held_out, SlotOf(part.batch));
    absl::MutexLock lock(&mu_);
    --filling_;
    PutBack(part, status);
  }
}

}  // namespace trainyard::data
