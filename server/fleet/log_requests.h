#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace trainyard {

// One answer of an agent about a log.
struct LogPiece {
  std::string data;
  int64_t offset = 0;
  bool end = false;  // nothing more will be written
};

// What an agent was asked about its logs and has not answered yet. `done` of each question is
// called once, without a lock held: by the agent's answer, by whoever has waited for it long
// enough, or by the end of the session. Thread-safe.
class LogRequests {
 public:
  using Done = std::function<void(absl::StatusOr<LogPiece>)>;

  // Keeps `done` and asks by `send`. After Close it returns false, keeps nothing and does not call
  // `send`.
  bool Ask(const std::string& id, const Done& done, absl::FunctionRef<void()> send);

  // Nothing happens if it was answered already.
  void Answer(const std::string& id, absl::StatusOr<LogPiece> answer);

  // Answers all of them.
  void Close(const absl::Status& why);

 private:
  absl::Mutex mu_;
  std::map<std::string, Done> waiting_ ABSL_GUARDED_BY(mu_);  // by id
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard
