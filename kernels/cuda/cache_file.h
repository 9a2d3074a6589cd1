#pragma once

// Files in which a process keeps for the next one what may get lost without harm. Several may write
// the same file: each writes a whole new one, so that no reader sees half. Knows nothing of CUDA.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::kernels::cuda {

// Letters, digits and dots of `name` as they are, '-' for the rest; at most 128 characters.
std::string PlainName(absl::string_view name);

// The file's first `most` bytes; "" if it is not a regular file or cannot be read.
std::string ReadCacheFile(const std::string& path, size_t most);

// Writes `text` to a new file and renames that to `path`; makes the folder. If anything fails, the
// old file stays.
void ReplaceCacheFile(const std::string& path, absl::string_view text);

}  // namespace trainyard::kernels::cuda
