#include "server/api/filter.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"

namespace trainyard {
namespace {

constexpr size_t kLongestFilter = 2048;
constexpr size_t kMostTerms = 32;

class FilterParser {
 public:
  explicit FilterParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<JobFilter>> Parse() {
    std::vector<JobFilter> terms;
    SkipSpaces();
    while (at_ < text_.size()) {
      if (!terms.empty()) {
        const size_t column = at_;
        const std::string word = Word();
        if (word != "AND") return Wrong(column, word, "AND");
      }
      TY_ASSIGN_OR_RETURN(JobFilter term, Term());
      terms.push_back(std::move(term));
      if (terms.size() > kMostTerms) {
        return absl::InvalidArgumentError(absl::StrCat("filter: more than ", kMostTerms, " terms"));
      }
      SkipSpaces();
    }
    return terms;
  }

 private:
  absl::StatusOr<JobFilter> Term() {
    JobFilter term;
    SkipSpaces();
    const size_t field_column = at_;
    const std::string field = Word();
    absl::string_view label = field;
    if (field == "state") {
      term.field = JobFilter::Field::kState;
    } else if (field == "priority") {
      term.field = JobFilter::Field::kPriority;
    } else if (field == "job_id") {
      term.field = JobFilter::Field::kJobId;
    } else if (absl::ConsumePrefix(&label, "labels.") && !label.empty()) {
      term.field = JobFilter::Field::kLabel;
      term.label = std::string(label);
    } else {
      return Wrong(field_column, field,
                   absl::StrCat("state, priority, job_id or labels.KEY",
                                DidYouMean(field, {"state", "priority", "job_id"})));
    }
    SkipSpaces();
    const size_t op_column = at_;
    TY_ASSIGN_OR_RETURN(term.op, Operator());
    const bool orders = term.op != JobFilter::Op::kEq && term.op != JobFilter::Op::kNe;
    if (orders && term.field != JobFilter::Field::kPriority) {
      return Wrong(op_column, text_.substr(op_column, at_ - op_column),
                   absl::StrCat("= or != after ", field));
    }
    SkipSpaces();
    const size_t value_column = at_;
    TY_ASSIGN_OR_RETURN(term.value, Value());
    TY_RETURN_IF_ERROR(CheckValue(term, value_column));
    return term;
  }

  absl::StatusOr<JobFilter::Op> Operator() {
    using Op = JobFilter::Op;
    constexpr std::pair<absl::string_view, Op> kOperators[] = {{"!=", Op::kNe}, {"<=", Op::kLe},
                                                               {">=", Op::kGe}, {"=", Op::kEq},
                                                               {"<", Op::kLt},  {">", Op::kGt}};
    for (const auto& [symbol, op] : kOperators) {
      if (text_.substr(at_, symbol.size()) == symbol) {
        at_ += symbol.size();
        return op;
      }
    }
    const size_t column = at_;
    return Wrong(column, Word(), "one of = != < <= > >=");
  }

  absl::StatusOr<std::string> Value() {
    if (at_ >= text_.size() || text_[at_] != '"') {
      const size_t column = at_;
      std::string word = Word();
      if (word.empty()) return Wrong(column, Rest(column), "a value");
      return word;
    }
    const size_t column = at_++;
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      value += text_[at_++];
    }
    if (at_ >= text_.size()) return Wrong(column, Rest(column), "a closing quote");
    ++at_;
    return value;
  }

  absl::Status CheckValue(JobFilter& term, size_t column) const {
    if (term.field == JobFilter::Field::kPriority) {
      int priority = 0;
      if (!absl::SimpleAtoi(term.value, &priority)) return Wrong(column, term.value, "a number");
      term.value = absl::StrCat(priority);
    }
    if (term.field == JobFilter::Field::kState && !ParseJobState(term.value).has_value()) {
      std::vector<std::string> states;
      for (JobState state : kAllJobStates) states.emplace_back(JobStateName(state));
      return Wrong(
          column, term.value,
          absl::StrCat("a job state", DidYouMean(absl::AsciiStrToUpper(term.value), states)));
    }
    return absl::OkStatus();
  }

  void SkipSpaces() {
    while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
  }

  std::string Word() {
    std::string word;
    while (at_ < text_.size() && !absl::ascii_isspace(text_[at_]) &&
           absl::string_view("=!<>\"").find(text_[at_]) == absl::string_view::npos) {
      word += text_[at_++];
    }
    return word;
  }

  std::string Rest(size_t column) const { return std::string(text_.substr(column, 40)); }

  absl::Status Wrong(size_t column, absl::string_view found, absl::string_view expected) const {
    const std::string shown = found.empty() ? Rest(column) : std::string(found);
    return absl::InvalidArgumentError(absl::StrCat(
        "filter: column ", column + 1, ": found ",
        shown.empty() ? "the end" : absl::StrCat("'", absl::Utf8SafeCEscape(shown), "'"),
        ", expected ", expected));
  }

  const absl::string_view text_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<JobFilter>> ParseFilter(absl::string_view text) {
  if (text.size() > kLongestFilter) {
    return FieldError("filter", absl::StrCat(text.size(), " bytes"),
                      absl::StrCat("at most ", kLongestFilter));
  }
  return FilterParser(text).Parse();
}

}  // namespace trainyard
