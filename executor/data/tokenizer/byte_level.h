#pragma once

// GPT-2's way to write bytes as visible characters, which is how tokenizer files name tokens: byte
// 0x20 is U+0120 'Ġ', 0x0A is U+010A 'Ċ', 'a' is 'a' (openai/gpt-2, encoder.py, bytes_to_unicode).

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::data {

// The bytes in the order of their characters: the ids that a tokenizer begins with.
const std::array<uint8_t, 256>& BytesByCharacter();

std::string ToByteLevel(absl::string_view bytes);

// nullopt when a character stands for no byte. `text` is UTF-8.
std::optional<std::string> FromByteLevel(absl::string_view text);

}  // namespace trainyard::data
