#pragma once

// Whether the files that a spec names are still those that were read. Runs in the helper: even to
// ask a file system for a file's times may take for ever.

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {

// The paths of all files that sizing `spec` may open; nullopt where the spec names a folder, whose
// content is not known, something that is no local path, or more than 4,096 files.
std::optional<std::vector<std::string>> FilesNamedBy(const v1::JobSpec& spec);

// Identifies the content of the files: as long as the text stays the same, so do they. It is made
// of device, inode, size and times of change of each, or of its absence; of no files it is
// kNoFiles. nullopt where a file could change without its times telling: one that was changed
// within kSettled, since times are those of a clock that ticks slowly, or one of a file system that
// is not of this machine alone.
std::optional<std::string> IdentityOf(const std::vector<std::string>& paths);

inline constexpr absl::Duration kSettled = absl::Seconds(1);

}  // namespace trainyard
