#pragma once

// Reads and writes the files of a run directory. Nothing here calls fsync: after a crash of the
// machine no worker runs, and a rank whose files cannot be read counts as lost.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard::run {

// The bytes of `fd` from `offset` on, at most `limit`; fewer at the end of the file. `path` is for
// messages.
absl::StatusOr<std::string> ReadAt(int fd, int64_t offset, int64_t limit, const std::string& path);

// Writes the file anew, for its owner alone.
absl::Status WritePlainFile(const std::string& path, absl::string_view data);

// The same, by a temporary file: readers see the old content or the new one, whole.
absl::Status ReplacePlainFile(const std::string& path, absl::string_view data);

}  // namespace trainyard::run
