#include "clients/cli/option_checks.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace trainyard::cli {

CLI::Validator AtLeast(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        int64_t value = 0;
        if (absl::SimpleAtoi(text, &value) && value >= least) return std::string();
        return absl::StrCat("expected a whole number of at least ", least, ", found '", text, "'");
      },
      absl::StrCat("NUMBER >= ", least));
}

CLI::Validator Seconds() {
  return CLI::Validator(
      [](std::string& text) {
        double seconds = 0;
        absl::Duration span;
        if (!absl::SimpleAtod(text, &seconds)) {
          seconds = absl::ParseDuration(text, &span) ? absl::ToDoubleSeconds(span) : -1;
          double days = 0;  // absl::ParseDuration knows no days
          if (absl::EndsWith(text, "d") && absl::SimpleAtod(absl::StripSuffix(text, "d"), &days)) {
            seconds = days * 24 * 60 * 60;
          }
        }
        if (!(seconds >= 0 && std::isfinite(seconds))) {
          return absl::StrCat("expected seconds, or a span such as 90s or 20m; found '", text, "'");
        }
        text = absl::StrFormat("%.17g", seconds);  // StrCat keeps six digits
        return std::string();
      },
      "SECONDS");
}

}  // namespace trainyard::cli
