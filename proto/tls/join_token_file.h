#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

// What a machine is given so that it may join a yard as a node: a file for its agent alone.
struct JoinTokenFile {
  std::string token;        // 64 hex digits; secret
  std::string authorities;  // the certificate of the yard's authority, as PEM text: no secret
};

// A new token that nobody can guess.
std::string MakeJoinToken();

// The file: PEM text, with the token as a block of its own.
std::string JoinTokenFileText(const JoinTokenFile& file);

// kInvalidArgument: `text` is no such file; `source` says where it is from. Never names the token.
absl::StatusOr<JoinTokenFile> ParseJoinTokenFile(const std::string& text,
                                                 const std::string& source);

}  // namespace trainyard
