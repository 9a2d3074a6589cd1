#include "executor/data/files/json_depth.h"

#include "absl/strings/str_cat.h"

namespace trainyard::data {

namespace {
constexpr int kDeepest = 64;
}  // namespace

absl::Status CheckJsonDepth(absl::string_view json) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) {
        return absl::InvalidArgumentError(
            absl::StrCat("found more than ", kDeepest, " brackets in each other at byte ", at));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::data
