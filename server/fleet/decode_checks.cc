#include "server/fleet/decode_checks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace trainyard {

bool IsPrintable(absl::string_view text, size_t longest) {
  return !text.empty() && text.size() <= longest &&
         std::none_of(text.begin(), text.end(), absl::ascii_iscntrl);
}

absl::Status CheckPrintable(absl::string_view field, absl::string_view text, size_t longest) {
  if (IsPrintable(text, longest)) return absl::OkStatus();
  return FieldError(field, absl::StrCat(text.size(), " bytes"),
                    absl::StrCat("1 to ", longest, " printable characters"));
}

absl::Status CheckPrintableOrEmpty(absl::string_view field, absl::string_view text,
                                   size_t longest) {
  if (text.empty() || IsPrintable(text, longest)) return absl::OkStatus();
  return FieldError(field, absl::StrCat(text.size(), " bytes"),
                    absl::StrCat("at most ", longest, " printable characters"));
}

absl::Status CheckCount(absl::string_view field, int count, int most) {
  if (count <= most) return absl::OkStatus();
  return FieldError(field, count, absl::StrCat("at most ", most));
}

std::string Readable(absl::string_view text) {
  if (text.size() > kLongestText) {
    size_t end = kLongestText;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  std::string readable(text);
  std::replace(readable.begin(), readable.end(), '\0', '?');
  return readable;
}

}  // namespace trainyard
