#include "storage/base/ids.h"

#include <sys/random.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "storage/base/status.h"

namespace trainyard {

std::string RandomHex(int bytes) {
  std::string raw(bytes, '\0');
  TY_CHECK(getrandom(raw.data(), raw.size(), 0) == static_cast<ssize_t>(raw.size()), "getrandom");
  return absl::BytesToHexString(raw);
}

bool IsResourceId(absl::string_view id) {
  if (id.empty() || id.size() > 63 || !absl::ascii_islower(id[0]) || id.back() == '-') return false;
  for (char c : id) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') return false;
  }
  return true;
}

std::string MakeJobId(absl::string_view hint) { return JobIdWith(hint, RandomHex(6)); }

std::string JobIdWith(absl::string_view hint, absl::string_view suffix) {
  std::string id;
  for (char c : hint.substr(0, 40)) {
    c = absl::ascii_tolower(c);
    const bool keep = absl::ascii_islower(c) || (!id.empty() && absl::ascii_isdigit(c));
    if (keep) {
      id += c;
    } else if (!id.empty() && id.back() != '-') {
      id += '-';
    }
  }
  while (!id.empty() && id.back() == '-') id.pop_back();
  if (id.empty()) id = "job";
  return absl::StrCat(id, "-", suffix);
}

}  // namespace trainyard
