// Lines of the Criteo challenges: label, 13 integers, 26 hexadecimal values, tabs between them.

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "executor/data/clicks/click_files.h"
#include "executor/data/clicks/click_sources.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kDense = 13;
constexpr int64_t kCategorical = 26;
constexpr int64_t kFields = 1 + kDense + kCategorical;

absl::Status Bad(int64_t field, absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("field ", field + 1, ": found '",
                                                 found.substr(0, 40), "', expected ", expected));
}

// log(1 + x); negative values occur in the challenge's data and count as 0, as for the reference.
absl::Status ParseInteger(int64_t field, absl::string_view text, float& value) {
  int64_t x = 0;
  if (!text.empty() && !absl::SimpleAtoi(text, &x))
    return Bad(field, text, "an integer or nothing");
  value = static_cast<float>(std::log1p(static_cast<double>(std::max<int64_t>(x, 0))));
  return absl::OkStatus();
}

absl::Status ParseHexadecimal(int64_t field, absl::string_view text, int64_t buckets, int32_t& id) {
  uint32_t x = 0;
  if (text.empty()) {
    id = Bucket(0, buckets);
    return absl::OkStatus();
  }
  if (text.size() > 8 || !std::all_of(text.begin(), text.end(), absl::ascii_isxdigit) ||
      !absl::SimpleHexAtoi(text, &x)) {
    return Bad(field, text, "up to 8 hexadecimal digits or nothing");
  }
  id = Bucket(uint64_t{x} + 1, buckets);
  return absl::OkStatus();
}

absl::Status ParseLine(absl::string_view line, int64_t buckets, float* dense, int32_t* ids,
                       bool& click) {
  const int64_t fields = std::count(line.begin(), line.end(), '\t') + 1;
  if (fields != kFields) {
    return absl::InvalidArgumentError(
        absl::StrCat("found ", fields, " fields, expected ", kFields));
  }
  for (int64_t field = 0; field < kFields; ++field) {
    const size_t end = std::min(line.find('\t'), line.size());
    const absl::string_view text = line.substr(0, end);
    if (field == 0) {
      TY_RETURN_IF_ERROR(ParseClick(text, click));
    } else if (field <= kDense) {
      TY_RETURN_IF_ERROR(ParseInteger(field, text, dense[field - 1]));
    } else {
      TY_RETURN_IF_ERROR(ParseHexadecimal(field, text, buckets, ids[field - 1 - kDense]));
    }
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return absl::OkStatus();
}

ClickFiles FilesOf(const v1::CriteoData& criteo) {
  return {.train = criteo.train(),
          .validation = criteo.validation(),
          .validation_fraction = criteo.validation_fraction(),
          .skip_bad_records = criteo.bad_records() == v1::SKIP_BAD_RECORDS,
          .shape = CriteoShape(criteo),
          .open = [buckets = criteo.hash_buckets()](LineReader&) -> absl::StatusOr<ParseRow> {
            return ParseRow([buckets](std::string& line, float* dense, int32_t* ids, bool& click) {
              return ParseLine(line, buckets, dense, ids, click);
            });
          }};
}

}  // namespace

plan::DataFacts CriteoShape(const v1::CriteoData& criteo) {
  return {.kind = plan::DataFacts::Kind::kClicks,
          .dense = kDense,
          .categorical = kCategorical,
          .buckets = criteo.hash_buckets()};
}

absl::StatusOr<plan::DataFacts> CriteoFacts(const v1::CriteoData& criteo) {
  return ClickFileFacts(FilesOf(criteo));
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenCriteo(const v1::CriteoData& criteo) {
  return OpenClickFiles(FilesOf(criteo));
}

}  // namespace trainyard::data
