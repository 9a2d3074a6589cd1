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

// Who may read a file: its owner alone, or its group, too.
inline constexpr int kForOwner = 0600;
inline constexpr int kForGroup = 0640;

// Writes the file anew.
absl::Status WritePlainFile(const std::string& path, absl::string_view data, int mode = kForOwner);

// The same, by a temporary file: readers see the old content or the new one, whole.
absl::Status ReplacePlainFile(const std::string& path, absl::string_view data,
                              int mode = kForOwner);

}  // namespace trainyard::run
