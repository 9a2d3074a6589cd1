#include "executor/engine/parallel/lane.h"

#include <utility>

namespace trainyard::engine {

Lane::Lane() : thread_([this] { Run(); }) {}

Lane::~Lane() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void Lane::Start(std::function<absl::Status()> task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
}

absl::Status Lane::Wait() {
  const auto idle = [this] {
    mu_.AssertReaderHeld();
    return tasks_.empty() && !busy_;
  };
  absl::MutexLock lock(&mu_, absl::Condition(&idle));
  return std::exchange(failure_, absl::OkStatus());
}

void Lane::Run() {
  const auto due = [this] {
    mu_.AssertReaderHeld();
    return stop_ || !tasks_.empty();
  };
  for (;;) {
    std::function<absl::Status()> task;
    {
      absl::MutexLock lock(&mu_, absl::Condition(&due));
      if (stop_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      if (!failure_.ok()) continue;
      busy_ = true;
    }
    absl::Status done = task();
    absl::MutexLock lock(&mu_);
    busy_ = false;
    if (!done.ok()) failure_ = std::move(done);
  }
}

}  // namespace trainyard::engine
