#include "executor/engine/parallel/lane.h"

#include <utility>

namespace trainyard::engine {

Lane::Lane() : thread_([this] { Run(); }) {}

void Lane::End() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

int64_t Lane::Start(std::function<absl::Status()> task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
  return ++started_;
}

bool Lane::Ended(int64_t number) {
  absl::MutexLock lock(&mu_);
  return ended_ >= number;
}

void Lane::WaitFor(int64_t number) {
  const auto ended = [this, number] {
    mu_.AssertReaderHeld();
    return ended_ >= number;
  };
  absl::MutexLock lock(&mu_, absl::Condition(&ended));
}

absl::Status Lane::Failure() {
  absl::MutexLock lock(&mu_);
  return failure_;
}

absl::Status Lane::Wait() {
  const auto idle = [this] {
    mu_.AssertReaderHeld();
    return ended_ == started_;
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
      if (!failure_.ok()) {
        ++ended_;
        continue;
      }
    }
    absl::Status done = task();
    absl::MutexLock lock(&mu_);
    ++ended_;
    if (!done.ok()) failure_ = std::move(done);
  }
}

}  // namespace trainyard::engine
