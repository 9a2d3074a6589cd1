#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace trainyard {

// What an agent was asked and has not answered yet. `done` of each question is called once, without
// a lock held: by the agent's answer, by whoever has waited for it long enough, or by the end of
// the session. Thread-safe.
template <typename Answer>
class AgentRequests {
 public:
  using Done = std::function<void(absl::StatusOr<Answer>)>;

  // Keeps `done` and asks by `send`. After Close it returns false, keeps nothing and does not call
  // `send`.
  bool Ask(const std::string& id, const Done& done, absl::FunctionRef<void()> send) {
    absl::MutexLock lock(&mu_);
    if (closed_) return false;
    waiting_.emplace(id, done);
    send();  // under the lock: after Close the stream may be gone
    return true;
  }

  // Nothing happens if it was answered already.
  void TakeAnswer(const std::string& id, absl::StatusOr<Answer> answer) {
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

  // Answers all of them.
  void Close(const absl::Status& why) {
    std::map<std::string, Done> left;
    {
      absl::MutexLock lock(&mu_);
      closed_ = true;
      left.swap(waiting_);
    }
    for (const auto& [id, done] : left) done(why);
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, Done> waiting_ ABSL_GUARDED_BY(mu_);  // by id
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// One answer of an agent about a log.
struct LogPiece {
  std::string data;
  int64_t offset = 0;
  bool end = false;  // nothing more will be written
};

using LogRequests = AgentRequests<LogPiece>;

}  // namespace trainyard
