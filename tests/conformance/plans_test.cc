// How PostgreSQL finds the rows of each statement.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <pqxx/pqxx>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "storage/postgres/database.h"
#include "storage/postgres/queries.inc.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

// These read a table or an index from one end to the other.
const std::map<std::string, std::string> kReadWhole = {
    {"ListNodes", "all nodes are asked for"},
    {"ReadLeases", "all leases are asked for"},
    {"Lead", "the leader has one row"},
    {"LockLeader", "the leader has one row"},
    {"ReadLeader", "the leader has one row"},
    {"StandDown", "the leader has one row"},
    {"FindAuthority", "the authority has one row"},
    {"ReadYard", "the yard has one row"},
    {"ReadYardEpoch", "the yard has one row"},
    {"ListNodeRequests", "all of them are asked for, by name"},
    {"ListLiveNodeRequests", "likewise"},
    {"ForgetEndedNodes", "requests are as many as nodes of the last hour"},
    {"ForgetEndedRequests", "likewise"},
    {"ForgetEndedKeys", "likewise"},
    {"AllSlotLimits", "those of all projects that have one"},
    {"ProjectsWithJobLimits", "likewise"},
    {"GetRetention", "retention has one row"},
    {"SetRetention", "retention has one row"},
    {"WantedMonths", "what came before its partition, mostly nothing"},
    {"OldMonths", "PostgreSQL's own tables"},
    {"EndedMonths", "PostgreSQL's own tables"},
    {"ForgetDeletedJobs", "the jobs that were deleted within a day, now and then"},
    {"ForgetNodes", "all nodes, now and then"},
    {"ListJoinTokens", "all tokens are asked for"},
    {"ListTokenFiles", "those that servers were started with, a few"},
};
// These compare each row of one side with each of the other.
const std::map<std::string, std::string> kComparePairs = {
    {"InsertJobs", "at most 32; of more the planner is told how many"},
    {"RenewLeases", "one; of more the planner is told how many"},
    {"EndedMonths", "PostgreSQL's own tables"},
    {"OldMonths", "PostgreSQL's own tables"},
};
// Their text is completed when they are run.
const std::vector<std::string> kComposed = {"ListJobs", "ListEndedJobs", "RemoveRecords"};

int CountParameters(const std::string& sql) {
  int most = 0;
  const std::regex parameter("\\$([0-9]+)");
  for (std::sregex_iterator at(sql.begin(), sql.end(), parameter), end; at != end; ++at) {
    int number = 0;
    if (absl::SimpleAtoi((*at)[1].str(), &number)) most = std::max(most, number);
  }
  return most;
}

// The generic plan, line by line.
std::vector<std::string> PlanOf(pqxx::nontransaction& session, const postgres::Query& query) {
  const std::string text = absl::StrReplaceAll(query.text, {{"{month}", "2026_01"}});
  const std::vector<std::string> nulls(CountParameters(text), "NULL");
  session.exec(absl::StrCat("PREPARE this AS ", text, "\n"));
  const pqxx::result plan =
      session.exec(absl::StrCat("EXPLAIN EXECUTE this", nulls.empty() ? "" : "(",
                                absl::StrJoin(nulls, ", "), nulls.empty() ? "" : ")"));
  session.exec("DEALLOCATE this");
  std::vector<std::string> lines;
  for (const pqxx::row& row : plan) lines.push_back(row[0].as<std::string>());
  return lines;
}

// By index, the column without which it is read from one end to the other: the first, or the one
// behind the month of a table that has a partition for each.
std::map<std::string, std::string> FirstColumns(pqxx::nontransaction& session) {
  std::map<std::string, std::string> columns;
  for (const pqxx::row& row :
       session.exec("SELECT c.relname, pg_get_indexdef(i.indexrelid, 1, true), "
                    "pg_get_indexdef(i.indexrelid, 2, true) FROM pg_index i "
                    "JOIN pg_class c ON c.oid = i.indexrelid "
                    "WHERE c.relnamespace = 'public'::regnamespace")) {
    const auto first = row[1].as<std::string>();
    columns[row[0].as<std::string>()] = first == "month" ? row[2].as<std::string>() : first;
  }
  return columns;
}

// The readings of whole tables and indexes in a plan.
std::vector<std::string> WholeReadings(const std::vector<std::string>& plan,
                                       const std::map<std::string, std::string>& first_columns) {
  std::vector<std::string> found;
  const std::regex index(
      "(?:Index Scan|Index Only Scan)(?: Backward)? using (\\w+)|Bitmap Index Scan on (\\w+)");
  for (size_t i = 0; i < plan.size(); ++i) {
    if (absl::StrContains(plan[i], "Seq Scan on")) found.push_back(plan[i]);
    std::smatch match;
    if (!std::regex_search(plan[i], match, index)) continue;
    const auto column = first_columns.find(match[1].matched ? match[1].str() : match[2].str());
    if (column == first_columns.end()) continue;  // of PostgreSQL's own tables
    const std::string next = i + 1 < plan.size() ? plan[i + 1] : "";
    if (!absl::StrContains(next, "Index Cond:") || !absl::StrContains(next, column->second)) {
      found.push_back(absl::StrCat(plan[i], " ", absl::StripAsciiWhitespace(next)));
    }
  }
  return found;
}

// Where keys of two sides are compared one by one in place of a look-up: as long as one side times
// the other.
std::vector<std::string> ComparedPairs(const std::vector<std::string>& plan) {
  std::vector<std::string> found;
  const std::regex equal_keys("Join Filter:.*[\\w\"]\\.\\w+\\)?(::\\w+)? = \\(?\"?\\w+\"?\\.\\w+");
  for (const std::string& line : plan) {
    if (std::regex_search(line, equal_keys)) found.push_back(line);
  }
  return found;
}

// A connection keeps the plans that it made over the empty tables of a new yard until PostgreSQL
// counts their rows, a minute or more after thousands have come. A statement whose plan reads a
// table whole, for each row of another one even, then holds up all agents at once.
TEST(Plans, LookRowsUpThoughMadeOverEmptyTables) {
  const std::string database = NewDatabase();
  const auto conninfo = postgres::CompleteConninfo(SharedPostgres().Conninfo(database), {});
  ASSERT_OK(conninfo.status());
  pqxx::connection connection(*conninfo);
  pqxx::nontransaction session(connection);
  session.exec("SET plan_cache_mode = force_generic_plan");
  const std::map<std::string, std::string> first_columns = FirstColumns(session);
  int seen = 0;
  for (const postgres::Query* query : postgres::kAllQueries) {
    if (std::count(kComposed.begin(), kComposed.end(), query->name) > 0) continue;
    const std::vector<std::string> plan = PlanOf(session, *query);
    ++seen;
    if (kComparePairs.count(query->name) == 0) {
      const std::vector<std::string> pairs = ComparedPairs(plan);
      EXPECT_TRUE(pairs.empty()) << query->name << " compares each row with each other one:\n"
                                 << absl::StrJoin(pairs, "\n") << "\nin\n"
                                 << absl::StrJoin(plan, "\n");
    }
    // What a restore does is done once, to all of a yard.
    if (kReadWhole.count(query->name) > 0 || absl::StartsWith(query->name, "Restore")) continue;
    const std::vector<std::string> whole = WholeReadings(plan, first_columns);
    EXPECT_TRUE(whole.empty()) << query->name << " reads whole tables or indexes:\n"
                               << absl::StrJoin(whole, "\n") << "\nin\n"
                               << absl::StrJoin(plan, "\n");
  }
  EXPECT_GT(seen, 90);
}

}  // namespace
}  // namespace trainyard::testing
