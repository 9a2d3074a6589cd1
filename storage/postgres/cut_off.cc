#include "storage/postgres/cut_off.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>

#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace trainyard::postgres {
namespace {

constexpr absl::Duration kLongestSleep = absl::Hours(1);

}  // namespace

CutOffs::CutOffs() : earlier_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TY_CHECK(earlier_.valid(), "eventfd");
  thread_ = std::thread([this] { Run(); });
}

CutOffs::~CutOffs() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  eventfd_write(earlier_.get(), 1);
  thread_.join();
}

CutOffs::Guard::Guard(CutOffs& owner, int socket, absl::Duration deadline)
    : owner_(owner), socket_(socket) {
  absl::MutexLock lock(&owner_.mu_);
  place_ = owner_.guards_.emplace(deadline, this);
  // Rarely needed: most deadlines are later than that of a transaction which began a moment ago.
  if (deadline < owner_.looks_at_) {
    owner_.looks_at_ = deadline;
    eventfd_write(owner_.earlier_.get(), 1);
  }
}

CutOffs::Guard::~Guard() {
  absl::MutexLock lock(&owner_.mu_);
  if (!fired_) owner_.guards_.erase(place_);
}

bool CutOffs::Guard::fired() const {
  absl::MutexLock lock(&owner_.mu_);
  return fired_;
}

void CutOffs::SleepUntil(absl::Duration deadline) {
  const absl::Duration left = deadline - SystemClock().SinceBoot() + absl::Milliseconds(1);
  pollfd earlier{earlier_.get(), POLLIN, 0};
  poll(&earlier, 1,
       static_cast<int>(
           absl::ToInt64Milliseconds(std::clamp(left, absl::ZeroDuration(), kLongestSleep))));
  eventfd_t count = 0;
  eventfd_read(earlier_.get(), &count);
}

void CutOffs::Run() {
  while (true) {
    absl::Duration next = absl::InfiniteDuration();
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
      const absl::Duration now = SystemClock().SinceBoot();
      while (!guards_.empty() && guards_.begin()->first <= now) {
        // Under the lock, for which the destructor of the guard waits: the guard, and with it the
        // descriptor, still lives.
        Guard& guard = *guards_.begin()->second;
        shutdown(guard.socket_, SHUT_RDWR);
        guard.fired_ = true;
        guards_.erase(guards_.begin());
      }
      if (!guards_.empty()) next = guards_.begin()->first;
      looks_at_ = next;
    }
    SleepUntil(next);
  }
}

}  // namespace trainyard::postgres
