#include "tests/contention/checks.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::testing {
namespace {

struct Invariant {
  const char* broken;
  const char* rows;  // that show it
};

constexpr Invariant kInvariants[] = {
    {"a slot is held twice",
     "SELECT FROM (SELECT node, unnest(slots) AS slot FROM ranks WHERE state IN ('ASSIGNED', "
     "'RUNNING')) "
     "held GROUP BY node, slot HAVING count(*) > 1"},
    {"a rank of an older attempt is alive",
     "SELECT FROM ranks r LEFT JOIN jobs j ON j.uid = r.job_uid "
     "WHERE r.state IN ('ASSIGNED', 'RUNNING') AND j.attempt IS DISTINCT FROM r.attempt"},
    {"a job has two live attempts",
     "SELECT FROM ranks WHERE state IN ('ASSIGNED', 'RUNNING') GROUP BY job_uid HAVING "
     "count(DISTINCT attempt) > 1"},
    {"a job that waits has a rank",
     "SELECT FROM jobs j JOIN ranks r ON r.job_uid = j.uid "
     "WHERE r.state IN ('ASSIGNED', 'RUNNING') AND j.state IN ('QUEUED', 'SUSPENDED')"},
    {"a job that should run has no rank left",
     "SELECT FROM jobs j WHERE j.state IN ('STARTING', 'RUNNING', 'SUSPENDING', 'CANCELLING') "
     "AND NOT EXISTS (SELECT FROM ranks r WHERE r.job_uid = j.uid AND r.state <> 'GONE')"},
    {"an attempt has more or fewer ranks than it says, or than its job asked for",
     "SELECT FROM attempts a JOIN jobs j ON j.uid = a.job_uid WHERE a.world_size <> j.min_slots "
     "OR a.world_size <> (SELECT count(*) FROM ranks r WHERE (r.job_uid, r.attempt) = "
     "(a.job_uid, a.attempt))"},
    {"an attempt of a job is missing",
     "SELECT FROM jobs j WHERE j.attempt <> "
     "(SELECT count(*) FROM attempts a WHERE a.job_uid = j.uid)"},
    {"a feed has a gap, or more or fewer items than its job says",
     "SELECT FROM (SELECT uid, feed_sequence FROM jobs UNION ALL "
     "SELECT uid, feed_sequence FROM ended_jobs) j LEFT JOIN (SELECT job_uid, sum(CASE kind "
     "WHEN 'ITEMS' THEN jsonb_array_length(body) ELSE 1 END) AS items, min(sequence) AS oldest, "
     "max(sequence) AS newest FROM feed GROUP BY job_uid) f ON f.job_uid = j.uid "
     // The first item of most jobs is not stored.
     "WHERE coalesce(f.items, 0) + (f.oldest IS DISTINCT FROM 1)::integer <> j.feed_sequence "
     "OR coalesce(f.newest, 1) <> j.feed_sequence"},
    {"a job is live and ended", "SELECT FROM jobs JOIN ended_jobs USING (uid)"},
    {"a rank sits on a slot of another device than its job asked for",
     "SELECT FROM ranks r JOIN jobs j ON j.uid = r.job_uid JOIN nodes n ON n.name = r.node, "
     "jsonb_array_elements(n.slots) s WHERE r.state <> 'GONE' AND j.device <> '' "
     "AND (s->>'index')::integer = ANY (r.slots) AND s->>'device' <> j.device"},
};

}  // namespace

absl::StatusOr<std::string> BrokenInvariants(const PostgresFixture& postgres) {
  std::string sql;
  for (const Invariant& invariant : kInvariants) {
    absl::StrAppend(&sql, sql.empty() ? "" : " UNION ALL ", "SELECT '", invariant.broken,
                    "', count(*) FROM (", invariant.rows, ") AS x HAVING count(*) > 0");
  }
  return postgres.Query("postgres", sql);
}

// A row for each update rather than a counter, for which writers would wait.
absl::Status CountUpdates(const PostgresFixture& postgres) {
  return postgres
      .Query("postgres",
             "CREATE UNLOGGED TABLE seen_updates (uid text, told boolean);"
             "CREATE FUNCTION note_updates() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
             "INSERT INTO seen_updates SELECT n.uid, n.version = o.version "
             "AND n.feed_sequence = o.feed_sequence FROM after n JOIN before o USING (uid);"
             "RETURN NULL; END $$;"
             "CREATE TRIGGER note_updates AFTER UPDATE ON jobs "
             "REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT "
             "EXECUTE FUNCTION note_updates()")
      .status();
}

absl::StatusOr<Updates> CountedUpdates(const PostgresFixture& postgres) {
  TY_ASSIGN_OR_RETURN(
      const std::string row,
      postgres.Query("postgres",
                     "SELECT coalesce(sum(told), 0), coalesce(max(told), 0), "
                     "coalesce(sum(others), 0) FROM (SELECT count(*) FILTER (WHERE told) AS told, "
                     "count(*) FILTER (WHERE NOT told) AS others FROM seen_updates GROUP BY uid) "
                     "AS of_one"));
  const std::vector<std::string> columns = absl::StrSplit(row, '|');
  Updates updates;
  if (columns.size() != 3 || !absl::SimpleAtoi(columns[0], &updates.told) ||
      !absl::SimpleAtoi(columns[1], &updates.told_most) ||
      !absl::SimpleAtoi(columns[2], &updates.others)) {
    return absl::InternalError(absl::StrCat("updates: found '", row, "', expected three numbers"));
  }
  return updates;
}

absl::StatusOr<std::string> LongWaits(const PostgresFixture& postgres) {
  TY_ASSIGN_OR_RETURN(const std::string data, postgres.Query("postgres", "SHOW data_directory"));
  TY_ASSIGN_OR_RETURN(const std::string log, ReadFile(data + "/../log"));
  std::string found;
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    if (absl::StrContains(line, "still waiting for") || absl::StrContains(line, "deadlock")) {
      absl::StrAppend(&found, line, "\n");
    }
  }
  return found;
}

}  // namespace trainyard::testing
