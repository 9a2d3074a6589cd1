// What hostile files and agents say must not steer the terminal.

#include "clients/cli/shown.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cli/job_view.h"
#include "clients/cli/metric_series.h"
#include "clients/cli/output.h"
#include "clients/cli/progress.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Clears the screen, sets the title in C1, turns the direction of writing, adds a line.
constexpr char kHostile[] =
    "x\x1b[2J\xc2\x9d"
    "0;t\x07\xe2\x80\xae"
    "txt\nFAKE  SUCCEEDED";

constexpr Terminal kScreen{.interactive = true, .color = false, .unicode = true, .width = 200};
constexpr Terminal kPiped{};

void ExpectHarmless(const std::string& text) {
  for (const char* bad : {"\x1b", "\xc2\x9d", "\x07", "\xe2\x80\xae"}) {
    EXPECT_THAT(text, Not(HasSubstr(bad)));
  }
}

v1::Job HostileJob() {
  v1::Job job;
  job.set_name("projects/default/jobs/a");
  job.set_job_id("a");
  job.set_state(v1::FAILED);
  job.set_checkpoint(kHostile);
  job.set_failed_node(kHostile);
  job.mutable_reason()->set_message(kHostile);
  job.mutable_failure()->set_message(kHostile);
  (*job.mutable_labels())[kHostile] = kHostile;
  return job;
}

TEST(Shown, JobsSteerNoTerminalAndAddNoRow) {
  for (const Terminal& terminal : {kScreen, kPiped}) {
    const std::string table = RenderJobs(terminal, {HostileJob()}, true, absl::UnixEpoch());
    ExpectHarmless(table);
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 2);
    const std::string job = RenderJob(terminal, HostileJob(), absl::UnixEpoch());
    ExpectHarmless(job);
    EXPECT_THAT(job, Not(HasSubstr("\nFAKE"))) << "lines of a message are moved to the right";
    EXPECT_THAT(job, HasSubstr("x\\x1b[2J"));
  }
}

TEST(Shown, FeedItemsSteerNoTerminal) {
  v1::FeedItem notice;
  notice.mutable_notice()->mutable_notice()->set_message(kHostile);
  v1::FeedItem checkpoint;
  checkpoint.mutable_checkpoint()->set_uri(kHostile);
  v1::FeedItem state;
  state.mutable_state()->set_to(v1::QUEUED);
  state.mutable_state()->mutable_reason()->set_message(kHostile);
  for (const v1::FeedItem& item : {notice, checkpoint, state}) {
    ExpectHarmless(DescribeItem(kScreen, item));
  }
}

TEST(Shown, JsonHoldsTheSameValuesAndSteersNothing) {
  for (const OutputFormat format : {OutputFormat::kJson, OutputFormat::kYaml}) {
    ExpectHarmless(Serialize(format, HostileJob()));
  }
  ExpectHarmless(JsonLine(HostileJob()));
  EXPECT_THAT(JsonLine(HostileJob()), HasSubstr("\\u202etxt\\nFAKE"));
  EXPECT_EQ(EscapedJson("\"\xe2\x81\xa6\xc3\xbc\""), "\"\\u2066\xc3\xbc\"");
}

TEST(Shown, NamesOfMetricsAddNoColumn) {
  EXPECT_EQ(CsvHeader({"loss\n1,2"}), "step,split,loss\\n1,2\n");
}

TEST(Shown, RanksSayHowManyLogicalRanksTheyHost) {
  v1::JobSpec spec;
  EXPECT_EQ(RanksText(spec), "");
  spec.mutable_parallel()->set_logical_ranks(8);
  EXPECT_EQ(RanksText(spec), "1, with all 8 logical ranks");
  spec.mutable_resources()->set_min_slots(2);
  EXPECT_EQ(RanksText(spec), "2, each with 4 of the 8 logical ranks");
  spec.mutable_resources()->set_min_slots(3);
  EXPECT_EQ(RanksText(spec), "3, each with 2 or 3 of the 8 logical ranks");
  spec.clear_parallel();
  EXPECT_EQ(RanksText(spec), "3, a logical rank each");
  spec.mutable_parallel()->set_logical_ranks(3);
  spec.mutable_parallel()->mutable_layout()->set_tensor(2);
  spec.mutable_resources()->set_min_slots(2);
  spec.mutable_resources()->set_max_slots(6);
  EXPECT_EQ(RanksText(spec), "2 to 6 in groups of 2, which share 3 logical ranks");
  spec.mutable_resources()->clear_max_slots();
  EXPECT_EQ(RanksText(spec), "2, of which 2 share the shards of 3 logical ranks");
  spec.mutable_parallel()->mutable_layout()->set_sequence(true);
  EXPECT_EQ(RanksText(spec), "2, of which 2 share the shards and tokens of 3 logical ranks");
  v1::Layout& layout = *spec.mutable_parallel()->mutable_layout();
  layout.clear_sequence();
  layout.clear_tensor();
  layout.set_pipeline(2);
  layout.set_chunks(4);
  EXPECT_EQ(RanksText(spec), "2, of which 2 are 2 stages of 4 chunks each, of 3 logical ranks");
}

}  // namespace
}  // namespace trainyard::cli
