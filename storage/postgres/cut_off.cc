#include "storage/postgres/cut_off.h"

#include <sys/socket.h>

#include "absl/time/clock.h"

namespace trainyard::postgres {

CutOffs::CutOffs() : thread_([this] { Run(); }) {}

CutOffs::~CutOffs() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
}

CutOffs::Guard::Guard(CutOffs& owner, int socket, absl::Time deadline)
    : owner_(owner), socket_(socket) {
  absl::MutexLock lock(&owner_.mu_);
  place_ = owner_.guards_.emplace(deadline, this);
  // The thread has to wake earlier only for a new first one.
  if (place_ == owner_.guards_.begin()) owner_.changed_.Signal();
}

CutOffs::Guard::~Guard() {
  absl::MutexLock lock(&owner_.mu_);
  if (!fired_) owner_.guards_.erase(place_);
}

bool CutOffs::Guard::fired() const {
  absl::MutexLock lock(&owner_.mu_);
  return fired_;
}

void CutOffs::Run() {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    if (guards_.empty()) {
      changed_.Wait(&mu_);
      continue;
    }
    const auto first = guards_.begin();
    if (absl::Now() < first->first) {
      changed_.WaitWithDeadline(&mu_, first->first);
      continue;
    }
    // Under the lock: the guard, and with it the descriptor, lives until its destructor gets it.
    shutdown(first->second->socket_, SHUT_RDWR);
    first->second->fired_ = true;
    guards_.erase(first);
  }
}

}  // namespace trainyard::postgres
