#include "executor/data/tokenizer/words.h"

#include "executor/data/files/utf8.h"
#include "executor/data/tokenizer/unicode_classes.h"

namespace trainyard::data {

namespace {

struct Char {
  char32_t code = 0;
  CharClass kind = CharClass::kOther;
  size_t end = 0;  // in the text
};

Char CharAt(absl::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {byte, kCharClasses[byte], at + 1};
  Char c{.end = at};
  TakeCodePoint(text, c.end, c.code);
  c.kind = ClassOf(c.code);
  return c;
}

size_t RunEnd(absl::string_view text, size_t at, CharClass kind) {
  while (at < text.size()) {
    const Char c = CharAt(text, at);
    if (c.kind != kind) break;
    at = c.end;
  }
  return at;
}

bool IsLineEnd(char32_t c) { return c == '\n' || c == '\r'; }

// 's|'t|'re|'ve|'m|'ll|'d: its end, or `at` when there is none. With `any_case` the letters may be
// upper case, and a long s (U+017F) is an s.
size_t ContractionEnd(absl::string_view text, size_t at, bool any_case) {
  if (text[at] != '\'') return at;
  const absl::string_view rest = text.substr(at + 1);
  if (any_case && rest.substr(0, 2) == "\xC5\xBF") return at + 3;
  const auto letter = [&](size_t i) -> char {
    if (i >= rest.size()) return 0;
    return any_case && rest[i] >= 'A' && rest[i] <= 'Z' ? static_cast<char>(rest[i] | 0x20)
                                                        : rest[i];
  };
  const char first = letter(0), second = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  return at;
}

// \s+(?!\S)|\s+: the last space before something else belongs to that, unless it is the only one.
size_t SpacesEnd(absl::string_view text, size_t at) {
  size_t last = at, end = at;
  while (end < text.size()) {
    const Char c = CharAt(text, end);
    if (c.kind != CharClass::kSpace) return last == at ? end : last;
    last = end;
    end = c.end;
  }
  return end;
}

size_t Gpt2WordEnd(absl::string_view text, size_t at) {
  if (const size_t end = ContractionEnd(text, at, /*any_case=*/false); end > at) return end;
  Char c = CharAt(text, at);
  if (c.code == ' ' && c.end < text.size()) c = CharAt(text, c.end);
  return c.kind == CharClass::kSpace ? SpacesEnd(text, at) : RunEnd(text, c.end, c.kind);
}

// \s*[\r\n]+|\s+(?!\S)|\s+
size_t SpacesOrLinesEnd(absl::string_view text, size_t at) {
  size_t after_line = at;
  for (size_t end = at; end < text.size();) {
    const Char c = CharAt(text, end);
    if (c.kind != CharClass::kSpace) break;
    end = c.end;
    if (IsLineEnd(c.code)) after_line = end;
  }
  return after_line > at ? after_line : SpacesEnd(text, at);
}

size_t Llama3WordEnd(absl::string_view text, size_t at) {
  if (const size_t end = ContractionEnd(text, at, /*any_case=*/true); end > at) return end;
  const Char first = CharAt(text, at);
  if (first.kind == CharClass::kLetter) return RunEnd(text, first.end, CharClass::kLetter);
  if (first.kind == CharClass::kNumber) {
    size_t end = first.end;
    for (int more = 0; more < 2 && end < text.size(); ++more) {
      const Char c = CharAt(text, end);
      if (c.kind != CharClass::kNumber) break;
      end = c.end;
    }
    return end;
  }
  const Char second = first.end < text.size() ? CharAt(text, first.end) : Char{};
  const bool has_second = second.end > 0;
  if (!IsLineEnd(first.code) && has_second && second.kind == CharClass::kLetter) {
    return RunEnd(text, second.end, CharClass::kLetter);
  }
  const bool led = first.code == ' ' && has_second && second.kind == CharClass::kOther;
  if (!led && first.kind == CharClass::kSpace) return SpacesOrLinesEnd(text, at);
  size_t end = RunEnd(text, led ? second.end : first.end, CharClass::kOther);
  while (end < text.size() && IsLineEnd(static_cast<unsigned char>(text[end]))) ++end;
  return end;
}

}  // namespace

size_t WordEnd(absl::string_view text, size_t at, WordPattern pattern) {
  switch (pattern) {
    case WordPattern::kWhole:
      return text.size();
    case WordPattern::kGpt2:
      return Gpt2WordEnd(text, at);
    case WordPattern::kLlama3:
      return Llama3WordEnd(text, at);
  }
  return text.size();
}

}  // namespace trainyard::data
