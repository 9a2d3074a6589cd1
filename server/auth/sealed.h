#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

inline constexpr size_t kSealKeyBytes = 32;

// A key for Seal that nobody can guess.
std::string MakeSealKey();

// `text` encrypted under `key` by AES-256-GCM (NIST SP 800-38D), with a nonce of its own in front.
// `about` is not part of it, and opens it only if it is the same again: what is sealed for one
// thing cannot be passed off as another's.
absl::StatusOr<std::string> Seal(const std::string& key, absl::string_view text,
                                 absl::string_view about);

// kDataLoss: it was sealed under another key or for something else, or it was changed.
absl::StatusOr<std::string> Unseal(const std::string& key, absl::string_view sealed,
                                   absl::string_view about);

}  // namespace trainyard
