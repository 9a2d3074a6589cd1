#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/fleet/fleet.h"
#include "server/work/actor.h"
#include "storage/records/attempt.h"

namespace trainyard {

// The client's end of a log; the rules of WatchSink apply.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // Exactly one LogTail::Sent() follows.
  virtual void Send(const RankRecord& rank, const LogPiece& piece) = 0;
  virtual void Finish(const absl::Status& status) = 0;
};

struct LogTailOptions {
  int64_t last_bytes = 64 << 10;
  bool follow = false;
  int64_t piece_bytes = 256 << 10;
  absl::Duration pause = absl::Milliseconds(250);  // before an empty log is asked for again
};

// Reads one log from its node, piece by piece, the next only once the client took the last.
class LogTail : public Actor {
 public:
  // Checks the caller's credentials and finds the rank; may block.
  using Open = std::function<absl::StatusOr<RankRecord>()>;

  // `fleet` must outlive it, `sink` must live until Finish was called on it.
  LogTail(TaskPool& pool, Fleet& fleet, Open open, const LogTailOptions& options, LogSink& sink);

  // Thread-safe, never block.
  void Sent();
  void Cancel() { EndWith(absl::CancelledError("the client left")); }
  void EndWith(const absl::Status& status);

 private:
  void Work() override;
  void Ask();
  void Take(const LogPiece& piece);
  void Finish(const absl::Status& status);

  Fleet& fleet_;
  const Open open_;
  const LogTailOptions options_;
  LogSink& sink_;

  // Used by Work alone.
  bool finished_ = false;
  std::optional<RankRecord> rank_;
  int64_t offset_;  // negative: from the end, before the first piece
  int64_t sent_bytes_ = 0;
  bool last_ = false;  // nothing is asked for after what is being sent

  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // an answer, the client or a pause is waited for
  std::optional<absl::StatusOr<LogPiece>> answer_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
