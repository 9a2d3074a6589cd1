#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/token_store.h"

namespace trainyard {

// A token that the server shall accept from its start on: the flag --token-file ROLE:NAME:PATH.
struct TokenFile {
  Principal principal;
  std::string path;
};

// kInvalidArgument says which part of `flag` is wrong.
absl::StatusOr<TokenFile> ParseTokenFlag(absl::string_view flag);

// Reads the token and adds its hash to the store. The file must be readable by its owner alone and
// hold at least 32 printable characters on one line.
absl::Status AddTokenFile(const TokenFile& file, TokenStore& tokens);

}  // namespace trainyard
