#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "storage/base/audit_chain.h"

namespace trainyard {

// Keeps refusals from filling the audit, since any stranger may cause them: of each source the
// first is told at once, and those that follow are summed up in one entry for each `window`. Of
// more than `most_sources` at a time the rest are one source, "others". Pure; times are of
// Clock::SinceBoot.
class RefusalSums {
 public:
  explicit RefusalSums(absl::Duration window = absl::Seconds(10), size_t most_sources = 256)
      : window_(window), most_sources_(most_sources) {}

  // The entry to be written now; nullopt: it will be part of a sum.
  std::optional<AuditEntry> Take(AuditEntry refusal, absl::Duration now);

  // Sums whose windows are over, or with `all` every one.
  std::vector<AuditEntry> Due(absl::Duration now, bool all = false);

 private:
  // Source, principal, method, outcome.
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  struct Sum {
    absl::Duration from, window;
    AuditEntry first;  // of those that were not told; its count is how many there are
  };

  const absl::Duration window_;
  const size_t most_sources_;
  std::map<Key, Sum> sums_;
};

}  // namespace trainyard
