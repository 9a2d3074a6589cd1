#include "storage/records/job.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/file.h"
#include "storage/records/attempt.h"
#include "storage/records/job_filter.h"
#include "storage/records/node.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

// The lines "| QUEUED | PLACE | STARTING | …" of the table in storage/README.md.
std::set<std::string> TableOfReadme() {
  const absl::StatusOr<std::string> readme = ReadFile(STORAGE_README);
  EXPECT_TRUE(readme.ok()) << readme.status();
  std::set<std::string> rows;
  for (const absl::string_view line : absl::StrSplit(readme.value_or(""), '\n')) {
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() < 3 || cells[0].rfind("| ", 0) != 0) continue;
    if (!ParseJobState(cells[0].substr(2))) continue;
    rows.insert(absl::StrCat(cells[0].substr(2), " ", cells[1], " ", cells[2]));
  }
  return rows;
}

TEST(Transitions, ReadmeShowsThemAll) {
  std::set<std::string> code;
  for (const JobTransition& t : kJobTransitions) {
    code.insert(absl::StrCat(JobStateName(t.from), " ", JobTriggerName(t.trigger), " ",
                             JobStateName(t.to)));
  }
  EXPECT_EQ(code, TableOfReadme());
}

TEST(Transitions, LeadToOneStateEach) {
  std::set<std::pair<JobState, JobTrigger>> seen;
  for (const JobTransition& t : kJobTransitions) {
    EXPECT_TRUE(seen.emplace(t.from, t.trigger).second);
    EXPECT_EQ(NextJobState(t.from, t.trigger), t.to);
    EXPECT_TRUE(!IsTerminal(t.from) || t.trigger == JobTrigger::kResume);
    EXPECT_NE(t.from, JobState::kSucceeded);
  }
  EXPECT_EQ(NextJobState(JobState::kQueued, JobTrigger::kSucceed), std::nullopt);
  EXPECT_EQ(NextJobState(JobState::kSucceeded, JobTrigger::kCancel), std::nullopt);
}

TEST(Names, ReadBackAsTheyWere) {
  for (const JobState state : kAllJobStates) EXPECT_EQ(ParseJobState(JobStateName(state)), state);
  for (int i = 0; i < 4; ++i) {
    const auto cause = static_cast<SuspendCause>(i);
    EXPECT_EQ(ParseSuspendCause(SuspendCauseName(cause)), cause);
  }
  for (int i = 0; i < 3; ++i) {
    const auto state = static_cast<RankState>(i);
    EXPECT_EQ(ParseRankState(RankStateName(state)), state);
  }
  for (int i = 0; i < 6; ++i) {
    const auto outcome = static_cast<RankOutcome>(i);
    EXPECT_EQ(ParseRankOutcome(RankOutcomeName(outcome)), outcome);
  }
  EXPECT_EQ(ParseJobState("queued"), std::nullopt);
}

TEST(Texts, AreUtf8WithoutNul) {
  for (const char* good : {"", "a", "\u00e9", "\u20ac", "\U0001F682", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(CheckText("field", good).ok()) << good;
    EXPECT_EQ(CleanText(good), good);
  }
  for (const char* bad :
       {"\x80", "\xC0\xAF", "\xC3", "\xE2\x82", "\xED\xA0\x80", "\xF4\x90\x80\x80",
        "\xF8\x88\x80\x80\x80", "\xE0\x80\x80", "\xF0\x80\x80\x80"}) {
    EXPECT_EQ(CheckText("field", bad).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(CheckText("field", CleanText(bad)).ok());
  }
  EXPECT_EQ(CheckText("labels.a", absl::string_view("x\0", 2)).message(),
            "labels.a: byte 1 is NUL; expected UTF-8 text without NUL");
  EXPECT_EQ(CleanText("a\xff"
                      "b"),
            "a\uFFFDb");
  EXPECT_EQ(CleanText("\u20ac\u20ac", 5), "\u20ac");
}

TEST(Cursors, ReadBackAsTheyWere) {
  JobRecord job;
  job.uid = "u.1";
  job.create_time = absl::FromUnixMicros(1'700'000'000'123'456);
  const auto cursor = ParseCursor(FormatCursor(job));
  ASSERT_TRUE(cursor.ok());
  EXPECT_EQ(cursor->uid, job.uid);
  EXPECT_EQ(cursor->create_time, job.create_time);
  for (const char* bad : {"x", "1.", ".u", "1", "1x.u"}) EXPECT_FALSE(ParseCursor(bad).ok()) << bad;
}

TEST(Nodes, TakeWorkOnlyWhenReachableAndNotDraining) {
  NodeRecord node;
  node.name = "n";
  node.slots = {{.index = 0}, {.index = 3}};
  EXPECT_TRUE(TakesWork(node, {0, 3}));
  EXPECT_FALSE(TakesWork(node, {0, 1}));
  node.draining = true;
  EXPECT_FALSE(TakesWork(node, {0}));
  node.draining = false;
  node.reachable = false;
  EXPECT_FALSE(TakesWork(node, {0}));
}

}  // namespace
}  // namespace trainyard
