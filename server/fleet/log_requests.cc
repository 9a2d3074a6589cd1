#include "server/fleet/log_requests.h"

#include <utility>

namespace trainyard {

bool LogRequests::Ask(const std::string& id, const Done& done, absl::FunctionRef<void()> send) {
  absl::MutexLock lock(&mu_);
  if (closed_) return false;
  waiting_.emplace(id, done);
  send();  // under the lock: after Close the stream may be gone
  return true;
}

void LogRequests::Answer(const std::string& id, absl::StatusOr<LogPiece> answer) {
  Done done;
  {
    absl::MutexLock lock(&mu_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;
    done = std::move(found->second);
    waiting_.erase(found);
  }
  done(std::move(answer));
}

void LogRequests::Close(const absl::Status& why) {
  std::map<std::string, Done> left;
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    left.swap(waiting_);
  }
  for (const auto& [id, done] : left) done(why);
}

}  // namespace trainyard
