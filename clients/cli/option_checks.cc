#include "clients/cli/option_checks.h"

#include <cmath>
#include <utility>

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

CLI::Validator Rate() {
  return CLI::Validator(
      [](std::string& text) {
        absl::string_view number = text;
        double unit = 1;
        for (const auto& [suffix, value] :
             {std::pair{"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}}) {
          if (absl::ConsumeSuffix(&number, suffix)) {
            unit = value;
            break;
          }
        }
        double value = 0;
        if (!absl::SimpleAtod(number, &value) || !(value > 0) || !std::isfinite(value * unit)) {
          return absl::StrCat("expected a number above 0, such as 1.5e9, 40T or 12.5G; found '",
                              text, "'");
        }
        text = absl::StrFormat("%.17g", value * unit);
        return std::string();
      },
      "RATE");
}

}  // namespace trainyard::cli
