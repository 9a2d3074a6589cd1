#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace trainyard::cli {

// Escapes every text in `message`, keys of maps too: what came from a file, an agent or a log must
// not control the terminal or look like a line that the program itself prints. Newlines stay where
// a text may have several lines (fields named `message`); whoever prints such a field indents the
// lines after the first.
void EscapeTexts(google::protobuf::Message& message);

// A copy to be shown.
template <typename Message>
Message Shown(Message message) {
  EscapeTexts(message);
  return message;
}

// `text` with every line but the first indented.
std::string Indented(absl::string_view text, absl::string_view indent = "    ");

// `json` with those characters written as \uXXXX that protobuf's printer leaves raw and a terminal
// obeys (C1 controls, changes of the writing direction). It parses to the same values.
std::string EscapedJson(absl::string_view json);

}  // namespace trainyard::cli
