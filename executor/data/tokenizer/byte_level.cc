#include "executor/data/tokenizer/byte_level.h"

#include "executor/data/files/utf8.h"

namespace trainyard::data {

namespace {

constexpr char32_t kLargestCharacter = 0x143;  // 256 + the 67th byte that shows nothing

struct Alphabet {
  std::array<char32_t, 256> character_of{};
  std::array<int16_t, kLargestCharacter + 1> byte_of{};  // -1: none
  std::array<uint8_t, 256> by_character{};
};

constexpr bool ShowsItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Alphabet MakeAlphabet() {
  Alphabet a;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    a.character_of[byte] = ShowsItself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  for (auto& byte : a.byte_of) byte = -1;
  for (int byte = 0; byte < 256; ++byte) a.byte_of[a.character_of[byte]] = byte;
  int place = 0;
  for (const int16_t byte : a.byte_of) {
    if (byte >= 0) a.by_character[place++] = static_cast<uint8_t>(byte);
  }
  return a;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

const std::array<uint8_t, 256>& BytesByCharacter() { return kAlphabet.by_character; }

std::string ToByteLevel(absl::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    AppendUtf8(kAlphabet.character_of[static_cast<unsigned char>(byte)], text);
  }
  return text;
}

std::optional<std::string> FromByteLevel(absl::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    char32_t c;
    if (!TakeCodePoint(text, at, c) || c > kLargestCharacter || kAlphabet.byte_of[c] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[c]));
  }
  return bytes;
}

}  // namespace trainyard::data
