#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace trainyard::cli {

// Escapes every text in `message`, keys of maps too: what came from a file, an agent or a log must
// not steer the terminal or look like lines of ours. Newlines stay where a text may have several
// lines (fields named `message`); whoever prints those indents what follows the first.
void EscapeTexts(google::protobuf::Message& message);

// A copy to be shown.
template <typename Message>
Message Shown(Message message) {
  EscapeTexts(message);
  return message;
}

// `text` with what follows each newline moved to the right.
std::string Indented(absl::string_view text, absl::string_view indent = "    ");

// `json` with what protobuf's printer leaves raw and a terminal obeys as \uXXXX: the same values.
std::string EscapedJson(absl::string_view json);

}  // namespace trainyard::cli
