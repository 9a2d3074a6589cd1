// absl::Mutex is built without annotations in the packaged library, so ThreadSanitizer would report
// every member that one guards. These definitions carry the names of the library's functions; the
// program is searched before its libraries, so calls from the libraries (gRPC locks with
// absl::Mutex) come here too. The annotations are those of Abseil's own build for ThreadSanitizer.

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

using absl::Condition;
using absl::Duration;
using absl::Mutex;
using absl::Time;

namespace {

constexpr unsigned kWrite = 0;
constexpr unsigned kRead = __tsan_mutex_read_lock;

template <typename Fn>
Fn* Next(const char* symbol) {
  return reinterpret_cast<Fn*>(dlsym(RTLD_NEXT, symbol));
}

template <typename Call>
void Lock(void* mu, unsigned flags, const Call& call) {
  __tsan_mutex_pre_lock(mu, flags);
  call();
  __tsan_mutex_post_lock(mu, flags, 0);
}

template <typename Call>
void Unlock(void* mu, unsigned flags, const Call& call) {
  __tsan_mutex_pre_unlock(mu, flags);
  call();
  __tsan_mutex_post_unlock(mu, flags);
}

template <typename Call>
bool TryLock(void* mu, unsigned flags, const Call& call) {
  __tsan_mutex_pre_lock(mu, flags | __tsan_mutex_try_lock);
  const bool locked = call();
  __tsan_mutex_post_lock(
      mu, flags | __tsan_mutex_try_lock | (locked ? 0 : __tsan_mutex_try_lock_failed), 0);
  return locked;
}

// The library's waits call each other, and so come here again.
thread_local bool waits = false;

// Gives the lock away and takes it again.
class Waiting {
 public:
  explicit Waiting(void* mu) : mu_(mu) {
    __tsan_mutex_pre_unlock(mu_, kWrite);
    __tsan_mutex_post_unlock(mu_, kWrite);
    __tsan_mutex_pre_lock(mu_, kWrite);
    waits = true;
  }
  ~Waiting() {
    waits = false;
    __tsan_mutex_post_lock(mu_, kWrite, 0);
  }

 private:
  void* const mu_;
};

template <typename Call>
auto Wait(void* mu, const Call& call) {
  if (waits) return call();
  const Waiting waiting(mu);
  return call();
}

// Takes the lock, whether or not the condition came to hold.
template <typename Call>
bool LockWhen(void* mu, const Call& call) {
  if (waits) return call();
  __tsan_mutex_pre_lock(mu, kWrite);
  waits = true;
  const bool held = call();
  waits = false;
  __tsan_mutex_post_lock(mu, kWrite, 0);
  return held;
}

}  // namespace

#define MUTEX(method) "_ZN4absl7debian35Mutex" method
#define CONDVAR(method) "_ZN4absl7debian37CondVar" method

// Defines `name` under the library's `symbol`; what follows the parameters is what it returns, in
// which `next` is the library's function.
#define INTERPOSE(result, name, symbol, parameters, ...) \
  extern "C++" result name parameters asm(symbol);       \
  result name parameters {                               \
    using Fn = result parameters;                        \
    static Fn* const next = Next<Fn>(symbol);            \
    return __VA_ARGS__;                                  \
  }

INTERPOSE(void, MutexLock, MUTEX("4LockEv"), (Mutex * mu), Lock(mu, kWrite, [&] { next(mu); }))
INTERPOSE(void, MutexUnlock, MUTEX("6UnlockEv"), (Mutex * mu),
          Unlock(mu, kWrite, [&] { next(mu); }))
INTERPOSE(void, MutexReaderLock, MUTEX("10ReaderLockEv"), (Mutex * mu),
          Lock(mu, kRead, [&] { next(mu); }))
INTERPOSE(void, MutexReaderUnlock, MUTEX("12ReaderUnlockEv"), (Mutex * mu),
          Unlock(mu, kRead, [&] { next(mu); }))
INTERPOSE(bool, MutexTryLock, MUTEX("7TryLockEv"), (Mutex * mu),
          TryLock(mu, kWrite, [&] { return next(mu); }))
INTERPOSE(bool, MutexReaderTryLock, MUTEX("13ReaderTryLockEv"), (Mutex * mu),
          TryLock(mu, kRead, [&] { return next(mu); }))
INTERPOSE(void, MutexLockWhen, MUTEX("8LockWhenERKNS0_9ConditionE"),
          (Mutex * mu, const Condition& c), Lock(mu, kWrite, [&] { next(mu, c); }))
INTERPOSE(bool, MutexLockWhenWithTimeout,
          MUTEX("19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE"),
          (Mutex * mu, const Condition& c, Duration timeout),
          LockWhen(mu, [&] { return next(mu, c, timeout); }))
INTERPOSE(bool, MutexLockWhenWithDeadline,
          MUTEX("20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE"),
          (Mutex * mu, const Condition& c, Time deadline),
          LockWhen(mu, [&] { return next(mu, c, deadline); }))
INTERPOSE(void, MutexAwait, MUTEX("5AwaitERKNS0_9ConditionE"), (Mutex * mu, const Condition& c),
          Wait(mu, [&] { return next(mu, c); }))
INTERPOSE(bool, MutexAwaitWithTimeout, MUTEX("16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"),
          (Mutex * mu, const Condition& c, Duration timeout),
          Wait(mu, [&] { return next(mu, c, timeout); }))
INTERPOSE(bool, MutexAwaitWithDeadline, MUTEX("17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"),
          (Mutex * mu, const Condition& c, Time deadline),
          Wait(mu, [&] { return next(mu, c, deadline); }))
INTERPOSE(void, CondVarWait, CONDVAR("4WaitEPNS0_5MutexE"), (absl::CondVar * cv, Mutex* mu),
          Wait(mu, [&] { return next(cv, mu); }))
INTERPOSE(bool, CondVarWaitWithTimeout, CONDVAR("15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"),
          (absl::CondVar * cv, Mutex* mu, Duration timeout),
          Wait(mu, [&] { return next(cv, mu, timeout); }))
INTERPOSE(bool, CondVarWaitWithDeadline, CONDVAR("16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"),
          (absl::CondVar * cv, Mutex* mu, Time deadline),
          Wait(mu, [&] { return next(cv, mu, deadline); }))
