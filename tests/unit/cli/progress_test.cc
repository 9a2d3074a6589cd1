#include "clients/cli/progress.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace trainyard::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// A terminal as a screen: keeps what a person would see after carriage returns and erasures.
class Screen : public Sink {
 public:
  void Write(absl::string_view text) override {
    ++writes_;
    while (!text.empty()) {
      if (text[0] == '\r') {
        column_ = 0;
      } else if (text.substr(0, 3) == "\x1b[K") {
        lines_.back().resize(column_);
        text.remove_prefix(2);
      } else if (text[0] == '\n') {
        lines_.emplace_back();
        column_ = 0;
      } else {
        lines_.back().resize(column_);
        lines_.back() += text[0];
        ++column_;
      }
      text.remove_prefix(1);
    }
  }

  const std::vector<std::string>& lines() const { return lines_; }
  int writes() const { return writes_; }

 private:
  std::vector<std::string> lines_ = {""};
  size_t column_ = 0;
  int writes_ = 0;
};

constexpr Terminal kTerminal{.interactive = true, .color = false, .unicode = false, .width = 100};
constexpr Terminal kPlain{};

v1::Job MakeJob() {
  v1::Job job;
  job.set_name("projects/default/jobs/digits");
  job.set_total_steps(1000);
  return job;
}

class ProgressTest : public testing::Test {
 protected:
  v1::FeedItem Item(absl::Time time) {
    v1::FeedItem item;
    item.set_sequence(++sequence_);
    item.mutable_time()->set_seconds(absl::ToUnixSeconds(time));
    return item;
  }
  v1::FeedItem Train(absl::Time time, int64_t step, double loss) {
    v1::FeedItem item = Item(time);
    item.mutable_metrics()->set_split(v1::MetricPoint::TRAIN);
    item.mutable_metrics()->set_step(step);
    (*item.mutable_metrics()->mutable_values())["loss"] = loss;
    (*item.mutable_metrics()->mutable_values())["samples_per_second"] = 2000;
    return item;
  }
  v1::FeedItem Validation(absl::Time time, int64_t step) {
    v1::FeedItem item = Item(time);
    item.mutable_metrics()->set_split(v1::MetricPoint::VALIDATION);
    item.mutable_metrics()->set_step(step);
    (*item.mutable_metrics()->mutable_values())["loss"] = 0.25;
    (*item.mutable_metrics()->mutable_values())["accuracy"] = 0.9125;
    return item;
  }
  v1::FeedItem State(absl::Time time, v1::JobState from, v1::JobState to, const char* why) {
    v1::FeedItem item = Item(time);
    item.mutable_state()->set_from(from);
    item.mutable_state()->set_to(to);
    item.mutable_state()->mutable_reason()->set_message(why);
    return item;
  }
  // Steps 1..n, `per_second` of them a second, on both clocks.
  void Run(ProgressView& view, int steps, int per_second) {
    for (int step = 1; step <= steps; ++step) {
      view.OnItem(Train(start_ + absl::Seconds(step / per_second), step, 1.0 / step));
      clock_.Advance(absl::Seconds(1) / per_second);
    }
  }

  Screen screen_;
  absl::Time start_ = absl::FromUnixSeconds(1'800'000'000);
  FakeClock clock_{start_};
  int64_t sequence_ = 0;
};

TEST_F(ProgressTest, RewritesOneLineOnATerminal) {
  ProgressView view(kTerminal, screen_, clock_, MakeJob());
  Run(view, 100, 20);
  ASSERT_EQ(screen_.lines().size(), 1u);
  EXPECT_THAT(screen_.lines()[0], HasSubstr("digits  step 99/1,000  ##"));
  EXPECT_THAT(screen_.lines()[0], HasSubstr("loss 0.0101"));
  EXPECT_THAT(screen_.lines()[0], HasSubstr("2,000 samples/s  0:46 left"));
}

TEST_F(ProgressTest, RedrawsTenTimesASecondHoweverFastStepsCome) {
  ProgressView view(kTerminal, screen_, clock_, MakeJob());
  Run(view, 1000, 500);  // two seconds
  EXPECT_LE(screen_.writes(), 21);
}

TEST_F(ProgressTest, SubmissionIsAnItemOfItsOwn) {
  ProgressView view(kPlain, screen_, clock_, MakeJob());
  view.OnItem(State(start_, v1::JOB_STATE_UNSPECIFIED, v1::QUEUED, "waits for the scheduler"));
  EXPECT_THAT(screen_.lines()[0], EndsWith("  submitted: waits for the scheduler"));
}

TEST_F(ProgressTest, ScrollsOtherItemsByAboveTheLine) {
  ProgressView view(kTerminal, screen_, clock_, MakeJob());
  view.OnItem(State(start_, v1::QUEUED, v1::STARTING, "placed on n1"));
  Run(view, 20, 20);
  view.OnItem(Validation(start_ + absl::Seconds(1), 20));
  ASSERT_EQ(screen_.lines().size(), 3u);
  EXPECT_THAT(screen_.lines()[0], HasSubstr("QUEUED -> STARTING: placed on n1"));
  EXPECT_THAT(screen_.lines()[1], HasSubstr("step 20  validation loss 0.2500  accuracy 91.25%"));
  EXPECT_THAT(screen_.lines()[2], HasSubstr("val loss 0.2500"));
}

TEST_F(ProgressTest, NeverWrapsANarrowTerminal) {
  Terminal narrow = kTerminal;
  narrow.width = 40;
  ProgressView view(narrow, screen_, clock_, MakeJob());
  view.OnItem(Validation(start_, 1));
  Run(view, 100, 20);
  EXPECT_LE(screen_.lines().back().size(), 39u);
}

TEST_F(ProgressTest, PrintsAtMostALineASecondElsewhere) {
  ProgressView view(kPlain, screen_, clock_, MakeJob());
  Run(view, 1000, 500);  // two seconds
  EXPECT_LE(screen_.lines().size(), 4u);
  for (const std::string& line : screen_.lines()) EXPECT_THAT(line, Not(HasSubstr("\x1b")));
}

TEST_F(ProgressTest, PlainOutputNeverHidesTheLastStep) {
  ProgressView view(kPlain, screen_, clock_, MakeJob());
  Run(view, 10, 500);
  view.OnItem(State(start_, v1::RUNNING, v1::SUCCEEDED, "all steps done"));
  ASSERT_EQ(screen_.lines().size(), 4u);
  EXPECT_THAT(screen_.lines()[0], HasSubstr("step 1/1,000"));
  EXPECT_THAT(screen_.lines()[1], HasSubstr("step 10/1,000  loss 0.1000"));
  EXPECT_THAT(screen_.lines()[2], HasSubstr("RUNNING -> SUCCEEDED: all steps done"));
}

TEST_F(ProgressTest, FinishTakesTheLineAwayAndTellsTheEnd) {
  ProgressView view(kTerminal, screen_, clock_, MakeJob());
  Run(view, 20, 20);
  view.OnItem(Validation(start_ + absl::Seconds(1), 20));
  v1::Job job = MakeJob();
  job.set_state(v1::SUCCEEDED);
  job.set_step(1000);
  job.mutable_start_time()->set_seconds(100);
  job.mutable_end_time()->set_seconds(165);
  view.Finish(job);
  ASSERT_EQ(screen_.lines().size(), 3u);
  EXPECT_EQ(screen_.lines()[1],
            "digits SUCCEEDED at step 1,000 after 1:05  val loss 0.2500  accuracy 91.25%");
  EXPECT_EQ(screen_.lines()[2], "");
}

TEST_F(ProgressTest, FinishNamesRankAndNodeOfAFailure) {
  ProgressView view(kPlain, screen_, clock_, MakeJob());
  v1::Job job = MakeJob();
  job.set_state(v1::FAILED);
  job.mutable_failure()->set_message("labels are in [0, 10), found 11");
  job.set_failed_rank(1);
  job.set_failed_node("n1");
  view.Finish(job);
  EXPECT_EQ(screen_.lines()[0], "digits FAILED: labels are in [0, 10), found 11 (rank 1 on n1)");
}

TEST_F(ProgressTest, AnAttemptThatGoesOnDoesNotCountOldTimeAsSlowness) {
  ProgressView view(kTerminal, screen_, clock_, MakeJob());
  Run(view, 100, 20);
  v1::FeedItem attempt = Item(start_ + absl::Hours(5));
  attempt.set_attempt(2);
  attempt.mutable_attempt_started()->set_step(50);
  attempt.mutable_attempt_started()->add_nodes("n1");
  view.OnItem(attempt);
  clock_.Advance(absl::Hours(5));
  view.OnItem(Train(start_ + absl::Hours(5), 51, 0.5));
  clock_.Advance(absl::Seconds(1));
  view.OnItem(Train(start_ + absl::Hours(5) + absl::Seconds(1), 71, 0.5));
  EXPECT_THAT(screen_.lines()[0], HasSubstr("attempt 2 goes on from step 50 on n1"));
  EXPECT_THAT(screen_.lines().back(), HasSubstr("0:46 left"));
}

}  // namespace
}  // namespace trainyard::cli
