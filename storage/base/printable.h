#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// Returns `text` with a '?' in place of each byte that is not UTF-8 (RFC 3629) and of each control
// character except newline and tab. The result may be stored in a message and shown, wherever
// `text` came from.
std::string Printable(absl::string_view text);

// Escapes `text` so that a terminal shows it and obeys nothing in it: control characters (ESC and
// DEL among them), C1 controls, marks that change the direction of writing (U+202A..U+202E,
// U+2066..U+2069, U+200E, U+200F, U+061C), line and paragraph separators and bytes that are not
// UTF-8 become \n, \t, \x1b, \u202e and the like. Everything else stays as it is, backslashes too.
std::string EscapedLine(absl::string_view text);
std::string EscapedLines(absl::string_view text);  // the same, but newlines and tabs stay

// How many bytes the UTF-8 character (RFC 3629) at the start of `text` has; 0: none is there.
// `text` must not be empty.
size_t CharacterBytes(absl::string_view text);

// "8.0 GiB", "512.0 MiB", "12 B".
std::string DescribeBytes(int64_t bytes);

// How many bytes at the end of `text` begin a character whose rest is missing: 0 to 3.
size_t UnfinishedBytes(absl::string_view text);

}  // namespace trainyard
