#pragma once

// Files in which a process keeps for the next one what it may lose. Several may write the same one:
// each writes a whole new file, so that no reader sees half. Knows nothing of CUDA.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::kernels::cuda {

// Letters, digits and dots of `name` as they are, '-' for the rest; at most 128 characters.
std::string PlainName(absl::string_view name);

// The file's first `most` bytes; "" of what is no plain file, or cannot be read.
std::string ReadCacheFile(const std::string& path, size_t most);

// Writes `text` into a file of its own and gives it the name `path`; makes the folder. Whatever
// fails leaves what was there.
void ReplaceCacheFile(const std::string& path, absl::string_view text);

}  // namespace trainyard::kernels::cuda
