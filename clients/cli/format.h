#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "google/protobuf/timestamp.pb.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard::cli {

std::string FormatCount(int64_t n);          // 1,234,567
std::string FormatBytes(int64_t bytes);      // 1.50 GiB
std::string FormatScaled(double value);      // 1.23 G, for FLOP and the like
std::string FormatClock(absl::Duration d);   // 4:32, 1:02:03, 2d 03:04
std::string FormatAge(absl::Duration d);     // 5s, 3m, 2h, 4d
std::string FormatMetric(double value);      // 0.1234, 1.23e-05, nan: four significant digits
std::string FormatPercent(double fraction);  // 91.25%
std::string FormatWhen(absl::Time time);     // 2026-11-20 15:04:05, local

absl::Time TimeOf(const google::protobuf::Timestamp& time);

bool IsTerminal(v1::JobState state);

// The last segment of a resource name.
std::string LastSegment(const std::string& name);

}  // namespace trainyard::cli
