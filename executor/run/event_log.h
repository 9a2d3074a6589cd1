#pragma once

// Numbered events in an append-only file. Each record is
//   uint32 payload bytes | uint32 CRC-32C of the payload | payload (RankEvent, binary),
//   little-endian.
// A record torn by a kill or a full disk is ignored by readers and cut off by the next writer.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"
#include "trainyard/v1/run.pb.h"

namespace trainyard::run {

// Longer events are refused by the writer and taken for damage by the reader.
inline constexpr int64_t kMaxEventBytes = int64_t{1} << 20;

// A place between two records.
struct EventPosition {
  int64_t offset = 0;    // bytes before it
  int64_t sequence = 0;  // of the record before it, 0 at the beginning
};

// One writer at a time: the worker, and after its death the agent. Thread-safe.
class EventWriter {
 public:
  // Continues an existing log after its last whole record. kDataLoss: a record that is not the last
  // one is damaged; the log is left as it is.
  static absl::StatusOr<std::unique_ptr<EventWriter>> Open(const std::string& path, Clock& clock);

  // Continues at `at`, where a reader stopped: whatever follows (a torn or damaged record) is cut
  // off. `at.sequence` may be ahead of the log when a crash of the machine lost the end of it,
  // which the server has.
  static absl::StatusOr<std::unique_ptr<EventWriter>> OpenAt(const std::string& path, Clock& clock,
                                                             EventPosition at);

  // Sets sequence and time, appends with one write(2). kResourceExhausted: the disk is full; the
  // log is as before. kInvalidArgument: the event is larger than kMaxEventBytes.
  absl::Status Append(v1::RankEvent event);

  int64_t last_sequence();

 private:
  EventWriter(std::string path, FileDescriptor fd, EventPosition end, Clock& clock)
      : path_(std::move(path)), fd_(std::move(fd)), end_(end), clock_(clock) {}

  const std::string path_;  // for messages
  absl::Mutex mu_;
  FileDescriptor fd_ ABSL_GUARDED_BY(mu_);
  EventPosition end_ ABSL_GUARDED_BY(mu_);
  bool torn_ ABSL_GUARDED_BY(mu_) = false;  // bytes of a failed append may lie past end_
  Clock& clock_;
};

// Reads on from where it stopped. Not thread-safe.
class EventReader {
 public:
  explicit EventReader(std::string path, EventPosition start = {})
      : path_(std::move(path)), position_(start) {}

  // Events that became whole since the last call, at most `limit`, and no more once `max_bytes` are
  // reached. A file that does not exist yet has none. kDataLoss: a record that is not the last one
  // is damaged; what lies before it was returned by earlier calls.
  absl::StatusOr<std::vector<v1::RankEvent>> Read(int limit,
                                                  int64_t max_bytes = kMaxEventBytes << 10);

  // After the last event that was returned.
  EventPosition position() const { return position_; }

 private:
  std::string path_;
  FileDescriptor fd_;
  EventPosition position_;
};

}  // namespace trainyard::run
