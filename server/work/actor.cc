#include "server/work/actor.h"

namespace trainyard {

void Actor::Poke() {
  {
    absl::MutexLock lock(&mu_);
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
    if (!again_) {
      scheduled_ = false;
      return;
    }
  }
  // Through the pool again rather than in a loop: a busy actor must not starve the others.
  pool_.Post([self = shared_from_this()] { self->Run(); });
}

}  // namespace trainyard
