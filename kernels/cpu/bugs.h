#pragma once

// Ends the process on a bug: where what was checked before a step does not hold, for instance the
// ids that the loader checked. Going on would hide it.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels {

[[noreturn]] inline void AbortWith(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::abort();
}

// Checks that ids[0, n) are in [0, vocab).
inline void RequireInVocabulary(const char* op, const int32_t* ids, int64_t n, int64_t vocab) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    AbortWith(absl::StrCat(op, ": id ", ids[i], " at place ", i, "; the vocabulary has ", vocab));
  }
}

}  // namespace trainyard::kernels
