#pragma once

// Numbered events in an append-only file. Each record is
//   uint32 payload bytes | uint32 CRC-32C of the payload | payload (RankEvent, binary), little-endian.
// A record torn by a kill or a full disk is ignored by readers and cut off by the next writer.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"
#include "trainyard/v1/run.pb.h"

namespace trainyard::run {

// One writer at a time: the worker, and after its death the agent. Thread-safe.
class EventWriter {
 public:
  // Continues an existing log after its last whole record.
  static absl::StatusOr<std::unique_ptr<EventWriter>> Open(const std::string& path, Clock& clock);

  // Sets sequence and time, appends with one write(2). kResourceExhausted: the disk is full; the log
  // is as before.
  absl::Status Append(v1::RankEvent event);

  int64_t last_sequence();

 private:
  EventWriter(FileDescriptor fd, int64_t last_sequence, Clock& clock)
      : fd_(std::move(fd)), last_sequence_(last_sequence), clock_(clock) {}

  absl::Mutex mu_;
  FileDescriptor fd_ ABSL_GUARDED_BY(mu_);
  int64_t last_sequence_ ABSL_GUARDED_BY(mu_);
  Clock& clock_;
};

// Reads on from where it stopped. Not thread-safe.
class EventReader {
 public:
  explicit EventReader(std::string path) : path_(std::move(path)) {}

  // Events that became whole since the last call, at most `limit`. A file that does not exist yet
  // has none. kDataLoss: a record that is not the last one is damaged.
  absl::StatusOr<std::vector<v1::RankEvent>> Read(int limit);

 private:
  std::string path_;
  FileDescriptor fd_;
  int64_t offset_ = 0;
};

}  // namespace trainyard::run
