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
  WakeOne();
}

void TaskPool::PostAfter(absl::Duration delay, std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  const auto at = later_.emplace(clock_.Now() + delay, std::move(task));
  if (at != later_.begin()) return;
  if (timekeeper_ != nullptr) {
    timekeeper_->Signal();  // to look at its time anew
  } else {
    WakeOne();  // to become the timekeeper, if there is nothing else to do
  }
}

void TaskPool::WakeOne() {
  if (on_its_way_) return;
  absl::CondVar* const called = idle_.empty() ? timekeeper_ : idle_.back();
  if (called == nullptr) return;  // all are at work, and look when they are done
  if (!idle_.empty()) idle_.pop_back();
  on_its_way_ = true;
  called->Signal();
}

void TaskPool::Stop() {
  std::deque<std::function<void()>> dropped;
  std::multimap<absl::Time, std::function<void()>> dropped_later;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    dropped.swap(ready_);
    dropped_later.swap(later_);
    for (absl::CondVar* one : idle_) one->Signal();
    if (timekeeper_ != nullptr) timekeeper_->Signal();
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

void TaskPool::Rest(absl::CondVar& called) {
  if (timekeeper_ == nullptr && !later_.empty()) {
    timekeeper_ = &called;
    called.WaitWithDeadline(&mu_, later_.begin()->first);
    timekeeper_ = nullptr;
  } else {
    idle_.push_back(&called);
    called.Wait(&mu_);
    std::erase(idle_, &called);  // it may have woken by itself
  }
  on_its_way_ = false;
}

void TaskPool::Run() {
  absl::CondVar called;
  mu_.Lock();
  while (!stopping_) {
    TakeDue();
    if (ready_.empty()) {
      Rest(called);
      continue;
    }
    std::function<void()> task = std::move(ready_.front());
    ready_.pop_front();
    if (!ready_.empty() || (timekeeper_ == nullptr && !later_.empty())) WakeOne();
    mu_.Unlock();
    task();
    task = nullptr;
    mu_.Lock();
  }
  mu_.Unlock();
}

}  // namespace trainyard
