#include "executor/data/files/line_reader.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {
constexpr int64_t kReadAtOnce = int64_t{1} << 18;
constexpr size_t kLongestLine = size_t{1} << 20;
}  // namespace

LineReader::LineReader(InflatingReader reader)
    : reader_(std::move(reader)), chunk_(std::make_unique<char[]>(kReadAtOnce)) {}

absl::StatusOr<LineReader> LineReader::Open(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(InflatingReader reader, InflatingReader::Open(uri));
  return LineReader(std::move(reader));
}

absl::StatusOr<bool> LineReader::Next(std::string& line) {
  line.clear();
  bool begun = false;
  for (;;) {
    if (at_ == end_) {
      TY_ASSIGN_OR_RETURN(end_, reader_.ReadSome(chunk_.get(), kReadAtOnce));
      at_ = 0;
      bytes_ += end_;
      if (end_ == 0) break;
    }
    if (!begun) ++number_;
    begun = true;
    const char* from = chunk_.get() + at_;
    const auto* newline = static_cast<const char*>(memchr(from, '\n', end_ - at_));
    const int64_t n = newline == nullptr ? end_ - at_ : newline - from;
    line.append(from, n);
    at_ += n + (newline == nullptr ? 0 : 1);
    if (line.size() > kLongestLine) {
      return absl::InvalidArgumentError(absl::StrCat(
          path(), ": line ", number_, ": found more than ", kLongestLine, " bytes in a line"));
    }
    if (newline != nullptr) break;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return begun;
}

}  // namespace trainyard::data
