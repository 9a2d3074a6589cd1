#include "executor/data/images/skipped_records.h"

#include "absl/strings/str_cat.h"

namespace trainyard::data {

namespace {

// The first few, then the tenth, the hundredth and so on.
bool Named(size_t count) {
  while (count > 5 && count % 10 == 0) count /= 10;
  return count <= 5 && count != 0;
}

}  // namespace

absl::Status SkippedRecords::Add(const std::string& record, const absl::Status& why) {
  if (refuse_) {
    return absl::InvalidArgumentError(absl::StrCat(
        why.message(), "; with bad_records: SKIP_BAD_RECORDS training goes on without it"));
  }
  size_t count = 0;
  {
    absl::MutexLock lock(&mu_);
    if (!records_.insert(record).second) return absl::OkStatus();
    count = records_.size();
  }
  if (Named(count)) {
    warnings_.Add(absl::StrCat(why.message(), "; skipped",
                               count == 1 ? "" : absl::StrCat(" as ", count - 1, " before it")));
  }
  return absl::OkStatus();
}

int64_t SkippedRecords::count() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(records_.size());
}

}  // namespace trainyard::data
