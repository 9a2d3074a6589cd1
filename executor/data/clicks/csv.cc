// Comma-separated values with a header (RFC 4180, but a line end always ends the row).

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "executor/data/clicks/click_files.h"
#include "executor/data/clicks/click_sources.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"

namespace trainyard::data {

namespace {

constexpr size_t kMostCompared = 1000;  // columns, with one that was not found

// Where a quoted field that begins after `at` ends; its text goes to the front of it, doubled
// quotes becoming one.
absl::Status TakeQuoted(std::string& line, size_t& at, absl::string_view& field) {
  const size_t begin = ++at;
  size_t to = begin;
  for (; at < line.size(); ++at) {
    if (line[at] == '"') {
      if (at + 1 == line.size() || line[at + 1] != '"') break;
      ++at;
    }
    line[to++] = line[at];
  }
  if (at == line.size()) return absl::InvalidArgumentError("found a quote that does not end");
  ++at;
  field = absl::string_view(line).substr(begin, to - begin);
  if (at == line.size() || line[at] == ',') return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("found '", absl::string_view(line).substr(at, 1),
                                                 "' after the end of a quote, expected a comma"));
}

// The fields point into `line`.
absl::Status SplitFields(std::string& line, std::vector<absl::string_view>& fields) {
  fields.clear();
  for (size_t at = 0;;) {
    absl::string_view field;
    if (at < line.size() && line[at] == '"') {
      TY_RETURN_IF_ERROR(TakeQuoted(line, at, field));
    } else {
      const size_t end = std::min(line.find(',', at), line.size());
      field = absl::string_view(line).substr(at, end - at);
      at = end;
    }
    fields.push_back(field);
    if (at == line.size()) return absl::OkStatus();
    ++at;  // the comma
  }
}

// FNV-1a, 64 bits.
uint64_t HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

absl::Status ParseNumber(const std::string& column, absl::string_view text, float& value) {
  value = 0;
  if (text.empty()) return absl::OkStatus();
  if (absl::SimpleAtof(text, &value) && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("column '", column, "': found '",
                                                 text.substr(0, 40),
                                                 "', expected a finite number or nothing"));
}

// The columns of a file that the spec names, and how a row is read.
class Columns {
 public:
  explicit Columns(const v1::CsvData& csv) : csv_(csv) {}

  absl::Status ReadHeader(LineReader& lines) {
    std::string line;
    TY_ASSIGN_OR_RETURN(const bool found, lines.Next(line));
    if (!found) return absl::InvalidArgumentError("is empty, expected a line of column names");
    if (line.rfind("\xEF\xBB\xBF", 0) == 0) line.erase(0, 3);  // a byte order mark
    std::vector<absl::string_view> names;
    TY_RETURN_IF_ERROR(SplitFields(line, names));
    number_of_fields_ = names.size();
    const std::string at = "spec.data.csv.";
    TY_RETURN_IF_ERROR(Find(names, at + "label", csv_.label(), label_));
    dense_.resize(csv_.dense_size());
    for (int i = 0; i < csv_.dense_size(); ++i) {
      TY_RETURN_IF_ERROR(Find(names, absl::StrCat(at, "dense[", i, "]"), csv_.dense(i), dense_[i]));
    }
    categorical_.resize(csv_.categorical_size());
    for (int i = 0; i < csv_.categorical_size(); ++i) {
      TY_RETURN_IF_ERROR(Find(names, absl::StrCat(at, "categorical[", i, "]"), csv_.categorical(i),
                              categorical_[i]));
    }
    return absl::OkStatus();
  }

  absl::Status Parse(std::string& line, float* dense, int32_t* ids, bool& click) {
    TY_RETURN_IF_ERROR(SplitFields(line, fields_));
    if (fields_.size() != number_of_fields_) {
      return absl::InvalidArgumentError(absl::StrCat("found ", fields_.size(), " fields, expected ",
                                                     number_of_fields_, " as in the header"));
    }
    TY_RETURN_IF_ERROR(ParseClick(fields_[label_], click));
    for (size_t i = 0; i < dense_.size(); ++i) {
      TY_RETURN_IF_ERROR(
          ParseNumber(csv_.dense(static_cast<int>(i)), fields_[dense_[i]], dense[i]));
    }
    for (size_t i = 0; i < categorical_.size(); ++i) {
      ids[i] = Bucket(HashOf(fields_[categorical_[i]]), csv_.hash_buckets());
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Find(const std::vector<absl::string_view>& names, const std::string& field,
                           const std::string& name, size_t& place) {
    size_t found = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] != name) continue;
      place = i;
      ++found;
    }
    if (found == 1) return absl::OkStatus();
    // Only a name that is nearly known already is told: whoever reads this may not read the file.
    std::vector<std::string> short_names;
    for (size_t i = 0; i < std::min(names.size(), kMostCompared); ++i) {
      if (names[i].size() <= 2 * name.size()) short_names.emplace_back(names[i]);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("found column '", name, "' of ", field, " ", found, " times in ", names.size(),
                     " columns, expected it once", DidYouMean(name, short_names)));
  }

  const v1::CsvData csv_;
  size_t number_of_fields_ = 0, label_ = 0;
  std::vector<size_t> dense_, categorical_;
  std::vector<absl::string_view> fields_;
};

ClickFiles FilesOf(const v1::CsvData& csv) {
  return {.train = csv.train(),
          .validation = csv.validation(),
          .validation_fraction = csv.validation_fraction(),
          .skip_bad_records = csv.bad_records() == v1::SKIP_BAD_RECORDS,
          .shape = CsvShape(csv),
          .open = [csv](LineReader& lines) -> absl::StatusOr<ParseRow> {
            // Shared only because a std::function must be copyable.
            auto columns = std::make_shared<Columns>(csv);
            const absl::Status header = columns->ReadHeader(lines);
            if (!header.ok()) return Annotate(header, lines.path());
            return ParseRow([columns](std::string& line, float* dense, int32_t* ids, bool& click) {
              return columns->Parse(line, dense, ids, click);
            });
          }};
}

}  // namespace

plan::DataFacts CsvShape(const v1::CsvData& csv) {
  return {.kind = plan::DataFacts::Kind::kClicks,
          .dense = csv.dense_size(),
          .categorical = csv.categorical_size(),
          .buckets = csv.hash_buckets()};
}

absl::StatusOr<plan::DataFacts> CsvFacts(const v1::CsvData& csv) {
  return ClickFileFacts(FilesOf(csv));
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const v1::CsvData& csv) {
  return OpenClickFiles(FilesOf(csv));
}

}  // namespace trainyard::data
