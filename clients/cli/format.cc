#include "clients/cli/format.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trainyard::cli {

std::string FormatCount(int64_t n) {
  std::string digits = absl::StrCat(n);
  const int first = n < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) digits.insert(at, ",");
  return digits;
}

std::string FormatBytes(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  // 1023.5 and more would print as 1024.
  while (std::fabs(value) >= 1023.5 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return absl::StrCat(bytes, " B");
  const int decimals = std::fabs(value) < 9.995 ? 2 : std::fabs(value) < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %s", decimals, value, units[unit]);
}

std::string FormatScaled(double value) {
  const char* const units[] = {"", "k", "M", "G", "T", "P", "E"};
  int unit = 0;
  while (std::fabs(value) >= 999.5 && unit < 6) {
    value /= 1000;
    ++unit;
  }
  const int decimals = std::fabs(value) < 9.995 ? 2 : std::fabs(value) < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %s", unit == 0 && value == std::floor(value) ? 0 : decimals, value,
                         units[unit]);
}

std::string FormatClock(absl::Duration d) {
  if (d == absl::InfiniteDuration()) return "?";
  const int64_t s = std::max<int64_t>(0, absl::ToInt64Seconds(d + absl::Milliseconds(500)));
  if (s >= 86400) return absl::StrFormat("%dd %02d:%02d", s / 86400, s / 3600 % 24, s / 60 % 60);
  if (s >= 3600) return absl::StrFormat("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
  return absl::StrFormat("%d:%02d", s / 60, s % 60);
}

std::string FormatAge(absl::Duration d) {
  const int64_t s = std::max<int64_t>(0, absl::ToInt64Seconds(d));
  if (s < 120) return absl::StrCat(s, "s");
  if (s < 7200) return absl::StrCat(s / 60, "m");
  if (s < 2 * 86400) return absl::StrCat(s / 3600, "h");
  return absl::StrCat(s / 86400, "d");
}

std::string FormatMetric(double value) {
  if (!std::isfinite(value)) return absl::StrFormat("%f", value);
  const double size = std::fabs(value);
  if (size == 0) return "0";
  if (size >= 1e6 || size < 1e-3) return absl::StrFormat("%.3g", value);
  // Four decimals below ten keep a column of losses in line.
  return absl::StrFormat("%.*f", size < 10 ? 4 : size < 100 ? 3 : size < 1000 ? 2 : 0, value);
}

std::string FormatPercent(double fraction) { return absl::StrFormat("%.2f%%", fraction * 100); }

std::string FormatWhen(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::LocalTimeZone());
}

absl::Time TimeOf(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

bool IsTerminal(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

std::string LastSegment(const std::string& name) {
  return name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1);
}

}  // namespace trainyard::cli
