#pragma once

// What a worker printed, bounded in size. Offsets count from the first byte that it ever wrote, so
// that rotation does not confuse a reader that follows the log.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trainyard {

class LogFile {
 public:
  // `path` is appended to by the worker and may not exist yet; `path`.1 and `path`.start are ours.
  explicit LogFile(std::string path) : path_(std::move(path)) {}

  // Once `path` holds more than `limit` bytes, moves them to `path`.1, whose old content is
  // dropped. They are copied and then truncated, since the worker keeps its descriptor; what it
  // writes in between is copied too, except in the last microseconds. Of a flood only the last two
  // to three times `limit` bytes are kept.
  absl::Status RotateIfLarger(int64_t limit);

  struct Chunk {
    std::string data;
    int64_t offset = 0;  // of the first byte of data
    int64_t end = 0;     // of all that was written
  };
  // From `offset` (negative: counted from the end) at most `max_bytes`. What was rotated away is
  // skipped: the chunk begins with the oldest byte there is.
  absl::StatusOr<Chunk> Read(int64_t offset, int64_t max_bytes) const;

  // The last lines that fit into `max_bytes`, as valid UTF-8 without control characters.
  std::string LastLines(int64_t max_bytes) const;

 private:
  // How many bytes the worker wrote before those in `path`.1, and before those in `path`.
  struct Starts {
    int64_t old = 0;
    int64_t current = 0;
  };
  Starts ReadStarts() const;

  std::string path_;
};

}  // namespace trainyard
