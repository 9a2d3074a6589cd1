#include "storage/retention_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/field_error.h"

namespace trainyard {

absl::Status CheckRetention(const Retention& retention) {
  const std::pair<const char*, absl::Duration> kept[] = {{"ended_jobs", retention.ended_jobs},
                                                         {"gone_nodes", retention.gone_nodes}};
  for (const auto& [name, duration] : kept) {
    if (duration >= absl::Hours(1) && duration <= absl::Hours(100 * 365 * 24)) continue;
    return FieldError(absl::StrCat("retention.", name), absl::FormatDuration(duration),
                      "an hour to 100 years");
  }
  return absl::OkStatus();
}

}  // namespace trainyard
