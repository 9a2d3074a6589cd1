#include "storage/local_wakeups.h"

#include <utility>
#include <vector>

namespace trainyard {

void LocalWakeups::Wake(const std::string& topic) {
  std::vector<std::shared_ptr<Subscriber>> subscribers;
  {
    absl::MutexLock lock(&mu_);
    subscribers.reserve(subscribers_.size());
    for (const auto& [id, subscriber] : subscribers_) subscribers.push_back(subscriber);
  }
  for (const std::shared_ptr<Subscriber>& subscriber : subscribers) {
    absl::MutexLock lock(&subscriber->mu);
    if (subscriber->wake) subscriber->wake(topic);
  }
}

int64_t LocalWakeups::Subscribe(std::function<void(const std::string& topic)> wake) {
  auto subscriber = std::make_shared<Subscriber>();
  {
    absl::MutexLock lock(&subscriber->mu);
    subscriber->wake = std::move(wake);
  }
  absl::MutexLock lock(&mu_);
  subscribers_.emplace(++last_id_, std::move(subscriber));
  return last_id_;
}

void LocalWakeups::Unsubscribe(int64_t id) {
  std::shared_ptr<Subscriber> subscriber;
  {
    absl::MutexLock lock(&mu_);
    const auto found = subscribers_.find(id);
    if (found == subscribers_.end()) return;
    subscriber = std::move(found->second);
    subscribers_.erase(found);
  }
  absl::MutexLock lock(&subscriber->mu);  // waits until it is not running
  subscriber->wake = nullptr;
}

}  // namespace trainyard
