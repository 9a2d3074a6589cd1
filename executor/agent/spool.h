#pragma once

// Events of one rank on their way to the server. The spool is the rank's own events.log: nothing is
// copied, what is not acknowledged is read and sent again, and the blocks of what is acknowledged
// are given back to the disk.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/run/event_log.h"
#include "executor/run/run_directory.h"
#include "storage/base/clock.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// Not thread-safe.
class Spool {
 public:
  // Continues behind the last event that the `acked` file says is stored.
  Spool(const run::RunDirectory& directory, v1::RankKey key);

  // The next batch to send: consecutive events, or nothing when all was sent or enough is on its
  // way. kDataLoss: the log is damaged there, or the worker wrote an Exited itself; only AppendLast
  // helps. Other errors may be temporary.
  absl::StatusOr<std::optional<v1::EventBatch>> NextBatch();

  // The server stored everything up to `sequence`. `fenced`: it takes no more events of this rank.
  void Acknowledge(int64_t sequence, bool fenced);

  // The server takes events again after it said that it takes no more. False: it never said so, or
  // Exited was stored.
  bool Reopen();

  // A new session: what was sent and not acknowledged is sent again.
  void Rewind();

  // Ends the log, once no worker can write any more: appends `extra` and then Exited after the last
  // whole record, unless the log has its Exited already. A log that was removed is begun anew.
  absl::Status AppendLast(const std::vector<v1::RankEvent>& extra,
                          const v1::RankEvent::Exited& exited, Clock& clock);

  // Writes the `acked` file when it changed.
  absl::Status Save();

  bool has_begun() const { return has_begun_; }        // the worker wrote its first event
  bool has_restored() const { return has_restored_; }  // it has the state that it goes on from
  bool has_metrics() const { return has_metrics_; }    // the worker made a step
  bool has_state() const { return has_state_; }        // the worker said so when its gang broke
  // The step of the state that the worker has left in memory; 0: it has left none, as far as the
  // log was read.
  int64_t kept_step() const { return kept_step_; }
  // The log ends with Exited. Becomes false again when the server turns out to have stored later
  // events, which a crash of the machine took from the log: then AppendLast is due again.
  bool ended() const { return ended_; }
  bool done() const { return done_; }  // Exited was stored, or the server wants no more
  bool idle() const { return in_flight_.empty(); }

 private:
  void FreeAcknowledged();

  struct Sent {
    run::EventPosition end;
    bool last = false;  // holds Exited
  };

  run::RunDirectory directory_;
  v1::RankKey key_;
  run::EventReader reader_;
  run::EventPosition acked_position_;  // end of a batch: may lag behind acked_
  int64_t acked_ = 0;
  int64_t sent_ = 0;  // the highest sequence that was sent in any session
  std::deque<Sent> in_flight_;
  bool has_begun_ = false;
  bool has_restored_ = false;
  bool has_metrics_ = false;
  bool has_state_ = false;
  int64_t kept_step_ = 0;
  bool ended_ = false;
  bool end_written_ = false;  // Exited is in the log; else `ended_` says that nobody wants it
  bool done_ = false;
  bool refused_ = false;  // done, because the server wanted no more
  bool unsaved_ = false;
  // Bytes at the beginning of the log that nobody needs: they were acknowledged so long ago that
  // the `acked` file that says so is on the disk by now, without an fsync that could hold up a
  // heartbeat.
  int64_t freeable_ = 0;
};

}  // namespace trainyard
