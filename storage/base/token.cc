#include "storage/base/token.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace trainyard {

absl::StatusOr<std::string> ParseToken(absl::string_view text, absl::string_view source) {
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  for (size_t i = 0; i < token.size(); ++i) {
    const auto c = static_cast<unsigned char>(token[i]);
    if (c > ' ' && c <= '~') continue;
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": character ", i + 1, " of the token is ",
                     c == '\n' || c == '\r' ? "a line break"
                     : c == ' '             ? "a space"
                                            : absl::StrCat("the byte ", static_cast<int>(c)),
                     "; a token is visible characters of ASCII, without spaces"));
  }
  return std::string(token);
}

}  // namespace trainyard
