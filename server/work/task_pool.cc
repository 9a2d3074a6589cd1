#include "server/work/task_pool.h"

#include <utility>

namespace trainyard {

TaskPool::TaskPool(int threads, Clock& clock) : clock_(clock) {
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

void TaskPool::Post(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  ready_.push_back(std::move(task));
  changed_.Signal();
}

void TaskPool::PostAfter(absl::Duration delay, std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  const auto at = later_.emplace(clock_.Now() + delay, std::move(task));
  if (at == later_.begin()) changed_.Signal();
}

void TaskPool::Stop() {
  std::deque<std::function<void()>> dropped;
  std::multimap<absl::Time, std::function<void()>> dropped_later;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    dropped.swap(ready_);
    dropped_later.swap(later_);
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  // Dropped tasks are destroyed without the lock: what they hold may post from its destructor.
}

void TaskPool::TakeDue() {
  if (later_.empty()) return;
  const absl::Time now = clock_.Now();
  while (!later_.empty() && later_.begin()->first <= now) {
    ready_.push_back(std::move(later_.begin()->second));
    later_.erase(later_.begin());
    changed_.Signal();
  }
}

bool TaskPool::RunOne() {
  std::function<void()> task;
  {
    absl::MutexLock lock(&mu_);
    TakeDue();
    if (ready_.empty()) return false;
    task = std::move(ready_.front());
    ready_.pop_front();
  }
  task();
  return true;
}

void TaskPool::Run() {
  mu_.Lock();
  while (!stopping_) {
    TakeDue();
    if (ready_.empty()) {
      changed_.WaitWithDeadline(&mu_,
                                later_.empty() ? absl::InfiniteFuture() : later_.begin()->first);
      continue;
    }
    std::function<void()> task = std::move(ready_.front());
    ready_.pop_front();
    mu_.Unlock();
    task();
    task = nullptr;
    mu_.Lock();
  }
  mu_.Unlock();
}

}  // namespace trainyard
