#include "server/work/actor.h"

namespace trainyard {

void Actor::Poke() {
  {
    absl::MutexLock lock(&mu_);
    if (resting_) return;
    if (scheduled_) {
      if (running_) again_ = true;
      return;
    }
    scheduled_ = true;
  }
  pool_.Post([self = shared_from_this()] { self->Run(); });
}

void Actor::PokeAfter(absl::Duration delay) {
  pool_.PostAfter(delay, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Poke();
  });
}

void Actor::Rest(absl::Duration delay) {
  {
    absl::MutexLock lock(&mu_);
    resting_ = true;
  }
  pool_.PostAfter(delay, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mu_);
      self->resting_ = false;
    }
    self->Poke();
  });
}

void Actor::Run() {
  {
    absl::MutexLock lock(&mu_);
    running_ = true;
    again_ = false;
  }
  Work();
  {
    absl::MutexLock lock(&mu_);
    running_ = false;
    if (!again_ || resting_) {
      scheduled_ = false;
      return;
    }
  }
  // Through the pool again rather than in a loop: a busy actor must not starve the others.
  pool_.Post([self = shared_from_this()] { self->Run(); });
}

}  // namespace trainyard
