#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/work/task_pool.h"

namespace trainyard {

// Something with one line of work and no thread of its own: Work runs on a pool, never twice at
// once, and once more after every Poke that came while it ran. Lives in a shared_ptr, because tasks
// in the pool hold it; `pool` must outlive it.
class Actor : public std::enable_shared_from_this<Actor> {
 public:
  virtual ~Actor() = default;

  // Thread-safe, never blocks.
  void Poke();
  void PokeAfter(absl::Duration delay);

 protected:
  explicit Actor(TaskPool& pool) : pool_(pool) {}

  TaskPool& pool() const { return pool_; }

  // May block. Looks at what changed and does it; called for no reason now and then.
  virtual void Work() = 0;

  // Call from Work: Work does not run again for `delay`, whatever pokes come, and then once.
  void Rest(absl::Duration delay);

 private:
  void Run();

  TaskPool& pool_;
  absl::Mutex mu_;
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;  // in the pool or running
  bool again_ ABSL_GUARDED_BY(mu_) = false;      // poked while scheduled_ and running
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool resting_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard
