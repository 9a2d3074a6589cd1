#include "storage/postgres/list_jobs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "storage/base/enum_names.h"
#include "storage/postgres/queries.inc.h"
#include "storage/records/job.h"
#include "storage/records/reason_codes.h"

namespace trainyard::postgres {
namespace {

using Op = JobFilter::Op;

constexpr std::pair<Op, const char*> kOperators[] = {{Op::kEq, "="}, {Op::kNe, "<>"},
                                                     {Op::kLt, "<"}, {Op::kLe, "<="},
                                                     {Op::kGt, ">"}, {Op::kGe, ">="}};

// An inequality becomes a list of all other states: no index serves an inequality. A live job with
// the reason RESIZING counts as RUNNING (ShownState).
std::string StateSql(const JobFilter& term, bool ended) {
  std::vector<std::string> states;
  bool running = false;
  for (const JobState state : kAllJobStates) {
    const bool same = JobStateName(state) == term.value;
    if (same != (term.op == Op::kEq)) continue;
    states.push_back(absl::StrCat("'", JobStateName(state), "'"));
    running |= state == JobState::kRunning;
  }
  const std::string in = absl::StrCat("j.state IN (", absl::StrJoin(states, ", "), ")");
  if (ended) return in;
  const std::string resizing = absl::StrCat("'", reason::kResizing, "'");
  return running ? absl::StrCat("(", in, " OR j.reason_code = ", resizing, ")")
                 : absl::StrCat(in, " AND j.reason_code <> ", resizing);
}

std::string PrioritySql(const std::string& value, Op op) {
  if (op == Op::kNe) {
    return absl::StrCat("(j.priority < ", value, " OR j.priority > ", value, ")");
  }
  return absl::StrCat("j.priority ", NameIn(kOperators, op), " ", value);
}

// Equality is looked up in job_specs, which has an index of names.
std::string JobIdSql(Transaction& transaction, const JobFilter& term) {
  const std::string value = transaction.Quote(term.value);
  if (term.op == Op::kNe) return absl::StrCat("j.job_id <> ", value);
  return absl::StrCat("j.uid = ANY (ARRAY(SELECT job_uid FROM job_specs WHERE job_id = ", value,
                      "))");
}

// A label that is absent differs from every value.
std::string LabelSql(Transaction& transaction, const JobFilter& term, bool ended) {
  const std::string key = transaction.Quote(term.label);
  const std::string value = transaction.Quote(term.value);
  if (!ended || term.op == Op::kNe) {
    return absl::StrCat("(j.labels ->> ", key, ") ", term.op == Op::kEq ? "=" : "IS DISTINCT FROM",
                        " ", value);
  }
  return absl::StrCat("j.label_pairs @> ARRAY[label_pair(", key, ", ", value, ")]");
}

std::string TermSql(Transaction& transaction, const JobFilter& term, bool ended) {
  switch (term.field) {
    case JobFilter::Field::kState:
      return StateSql(term, ended);
    case JobFilter::Field::kPriority: {
      return PrioritySql(transaction.Quote(term.value), term.op);
    }
    case JobFilter::Field::kJobId:
      return JobIdSql(transaction, term);
    case JobFilter::Field::kLabel:
      return LabelSql(transaction, term, ended);
  }
  return "true";
}

std::string TermsSql(Transaction& transaction, const std::string& project,
                     const std::vector<JobFilter>& filter, bool ended) {
  std::string terms;
  if (project != "-") absl::StrAppend(&terms, "AND j.project = ", transaction.Quote(project));
  for (const JobFilter& term : filter) {
    absl::StrAppend(&terms, " AND ", TermSql(transaction, term, ended));
  }
  return terms;
}

}  // namespace

std::string ListSql(Transaction& transaction, const std::string& project,
                    const std::vector<JobFilter>& filter, const JobCursor& after,
                    const std::vector<std::string>& months) {
  const std::string time =
      after.create_time == absl::InfiniteFuture()
          ? "timestamptz 'infinity'"
          : absl::StrCat("from_micros(", absl::ToUnixMicros(after.create_time), ")");
  const std::string cursor = absl::StrCat(time, ", ", transaction.Quote(after.uid));
  const std::string ended_terms = TermsSql(transaction, project, filter, true);
  std::vector<std::string> bounds = {"infinity"};
  bounds.insert(bounds.end(), months.begin(), months.end());
  bounds.push_back("-infinity");
  std::string parts;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    // All placeholders are replaced in one pass, so that the text of a value is never taken for
    // one.
    absl::StrAppend(
        &parts, absl::StrReplaceAll(kListEndedJobs.text,
                                    {{"{after}", cursor},
                                     {"{from}", absl::StrCat("timestamptz '", bounds[i + 1], "'")},
                                     {"{to}", absl::StrCat("timestamptz '", bounds[i], "'")},
                                     {"{ended_terms}", ended_terms}}));
  }
  return absl::StrReplaceAll(kListJobs.text,
                             {{"{after}", cursor},
                              {"{live_terms}", TermsSql(transaction, project, filter, false)},
                              {"{months}", parts}});
}

}  // namespace trainyard::postgres
