#include "executor/data/loader.h"

#include <algorithm>

#include "storage/base/status.h"

namespace trainyard::data {

Loader::Loader(const Dataset& dataset, const Options& options)
    : dataset_(dataset),
      options_(options),
      order_(options.seed, dataset.size(Split::kTrain), dataset.sampled_with_replacement()) {
  TY_CHECK(
      options.micro_batch > 0 && options.samples > 0 && options.samples % options.micro_batch == 0,
      "a share of ", options.samples, " in micro-batches of ", options.micro_batch);
  TY_CHECK(
      options.first_sample >= 0 && options.first_sample + options.samples <= options.batch_size,
      "a share of ", options.samples, " from ", options.first_sample, " in a batch of ",
      options.batch_size);
  TY_CHECK(options.prefetch >= 1 && options.first_step >= 0, "prefetch ", options.prefetch);
  samples_.resize(static_cast<size_t>(options.micro_batch));
  epochs_.resize(samples_.size());
  ring_.resize(static_cast<size_t>(options.prefetch) + 1);  // one more: the trainer holds it
  for (Slot& slot : ring_) {
    slot.inputs = std::make_unique<char[]>(options.micro_batch * dataset.input_bytes());
    slot.targets = std::make_unique<char[]>(options.micro_batch * dataset.target_bytes());
  }
  thread_ = std::thread([this] { Run(); });
}

Loader::~Loader() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

int64_t Loader::bytes() const {
  return static_cast<int64_t>(ring_.size()) * options_.micro_batch *
         (dataset_.input_bytes() + dataset_.target_bytes());
}

absl::StatusOr<Loader::Batch> Loader::Next() {
  absl::MutexLock lock(&mu_);
  const auto ready = [this] { return filled_ > taken_ || !error_.ok(); };
  mu_.Await(absl::Condition(&ready));
  if (filled_ == taken_) return error_;
  return ring_[static_cast<size_t>(taken_++) % ring_.size()].batch;
}

absl::Status Loader::FillSlot(int64_t number, Slot& slot) {
  const int64_t per_step = options_.samples / options_.micro_batch;
  slot.batch.step = options_.first_step + number / per_step;
  slot.batch.first_sample = options_.first_sample + number % per_step * options_.micro_batch;
  slot.batch.inputs = slot.inputs.get();
  slot.batch.targets = slot.targets.get();
  const int64_t index = slot.batch.step * options_.batch_size + slot.batch.first_sample;
  for (int64_t i = 0; i < options_.micro_batch; ++i) {
    samples_[i] = order_.Sample(index + i);
    epochs_[i] = order_.Epoch(index + i);
  }
  return dataset_.FillForTraining(options_.seed, samples_, epochs_, slot.inputs.get(),
                                  slot.targets.get());
}

void Loader::Run() {
  const auto size = static_cast<int64_t>(ring_.size());
  for (int64_t number = 0;; ++number) {
    // The newest batch handed out stays untouched until the next is asked for.
    const auto may_fill = [&] { return stop_ || number < std::max<int64_t>(0, taken_ - 1) + size; };
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&may_fill));
      if (stop_) return;
    }
    const absl::Status status = FillSlot(number, ring_[static_cast<size_t>(number % size)]);
    absl::MutexLock lock(&mu_);
    if (!status.ok()) {
      error_ = status;
      return;
    }
    filled_ = number + 1;
  }
}

}  // namespace trainyard::data
