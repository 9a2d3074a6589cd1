// Advice names only what a submission would accept.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/api/submission.h"
#include "server/scheduler/explain.h"
#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

struct CutJob {
  int slots = 4;
  int tensor = 1;   // shards of each layer
  int sharing = 1;  // ranks that share them
  int logical = 4;
  int micro_batch = 1;
  int most_slots = 0;       // beyond `slots`: elastic
  int stages = 1;           // each with one layer
  bool parameters = false;  // are sharded, which GPUs cannot have
};

v1::SubmitJobRequest SubmissionOf(const CutJob& cut) {
  v1::SubmitJobRequest request;
  request.mutable_job()->set_job_id("cut");
  v1::JobSpec& spec = *request.mutable_job()->mutable_spec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(cut.stages);
  gpt.set_heads(4);
  gpt.set_width(16);
  gpt.set_context(8);
  spec.mutable_data()->mutable_text()->set_path("/nowhere/text.txt");
  spec.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::BYTES);
  spec.mutable_training()->set_steps(3);
  spec.mutable_training()->set_batch_size(cut.logical * cut.micro_batch);
  spec.mutable_training()->set_micro_batch_size(cut.micro_batch);
  spec.mutable_optimizer()->mutable_adamw();
  spec.mutable_resources()->set_min_slots(cut.slots);
  if (cut.most_slots > 0) spec.mutable_resources()->set_max_slots(cut.most_slots);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_parallel()->set_logical_ranks(cut.logical);
  if (cut.tensor > 1) spec.mutable_parallel()->set_tensor(cut.tensor);
  if (cut.sharing > 1) spec.mutable_parallel()->mutable_layout()->set_tensor(cut.sharing);
  if (cut.stages > 1) spec.mutable_parallel()->set_pipeline(cut.stages);
  if (cut.stages > 1) spec.mutable_parallel()->mutable_layout()->set_pipeline(cut.stages);
  if (cut.parameters) spec.mutable_parallel()->set_shard(v1::Parallel::PARAMETERS);
  return request;
}

// Nothing: it would not be accepted itself.
std::optional<JobRecord> JobOf(const CutJob& cut) {
  absl::StatusOr<JobRecord> job = CheckSubmission(SubmissionOf(cut), "projects/p", "c");
  if (!job.ok()) return std::nullopt;
  job->bytes_per_slot = int64_t{1} << 30;
  job->create_time = TestNow();
  return *std::move(job);
}

// `free` slots on nodes of three.
Snapshots WithFree(int free) {
  Snapshots s;
  for (int n = 0; n * 3 < free; ++n) {
    s.Node({.name = absl::StrCat("n", n), .cpu = std::min(3, free - n * 3)});
  }
  if (free == 0) s.Node({.name = "n0", .cpu = 1}).Running({.id = "r"}, "n0", {0});
  return s;
}

Explanation ExplainIn(Snapshots s, const JobRecord& job) {
  s.snapshot.jobs.push_back(job);
  return Explain(job, {}, s.snapshot, PlannerOptions{}, IsAccepted);
}

Explanation ExplainFailed(JobRecord job, const std::string& category) {
  job.state = JobState::kFailed;
  job.failure = FailureRecord{.category = category, .message = "m"};
  return Explain(job, {}, Snapshots().snapshot, PlannerOptions{}, IsAccepted);
}

// The number after `words` in `text`; 0: they are not there.
int NumberAfter(const std::string& text, const std::string& words) {
  const size_t found = text.find(words);
  return found == std::string::npos ? 0 : std::atoi(text.c_str() + found + words.size());
}

// What would fit into a slot; none is too small here.
std::string SayNothing(int64_t) { return ""; }

TEST(Submission, KeepsHowManyRanksShareShardsForTheScheduler) {
  EXPECT_EQ(JobOf({.tensor = 4})->group_ranks, 1);
  EXPECT_EQ(JobOf({.tensor = 4, .sharing = 2})->group_ranks, 2);
}

TEST(Advice, OnFewerSlotsNamesWhatWouldBeAcceptedAndStart) {
  int advised = 0, refused_itself = 0;
  for (const int tensor : {1, 2, 4}) {
    for (int sharing = 1; sharing <= tensor; ++sharing) {
      for (int slots = 2; slots <= 12; ++slots) {
        const std::optional<JobRecord> job =
            JobOf({.slots = slots, .tensor = tensor, .sharing = sharing, .logical = 12});
        refused_itself += !job.has_value();
        for (int free = 0; free < slots && job.has_value(); ++free) {
          const std::string why = ExplainIn(WithFree(free), *job).reason.message;
          const std::string both = "with resources.min_slots and max_slots ";
          const bool sets_both = why.find(both) != std::string::npos;
          const int advice =
              sets_both ? NumberAfter(why, both) : NumberAfter(why, "with resources.min_slots ");
          const bool now = why.find("it would start now") != std::string::npos;
          EXPECT_EQ(advice, (free > 0 ? free : 1) / sharing * sharing) << why;
          EXPECT_FALSE(sets_both) << "it may have more: " << why;
          if (advice == 0) continue;
          ++advised;
          // As the user would set it, in the spec that is stored.
          v1::JobSpec spec;
          ASSERT_TRUE(spec.ParseFromString(job->spec));
          spec.mutable_resources()->set_min_slots(advice);
          if (sets_both) spec.mutable_resources()->set_max_slots(advice);
          EXPECT_TRUE(IsAccepted(spec)) << why;
          if (!now) continue;
          JobRecord smaller = *job;
          smaller.min_slots = smaller.max_slots = advice;
          Snapshots s = WithFree(free);
          s.snapshot.jobs.push_back(smaller);
          EXPECT_EQ(PlanPass(s.snapshot, {}).decisions.placements.size(), 1u) << why;
        }
      }
    }
  }
  EXPECT_GT(advised, 300);
  EXPECT_GT(refused_itself, 20);
}

TEST(Advice, SaysWhereWhatIsFreeIsTooFewForAGroup) {
  const std::optional<JobRecord> job = JobOf({.slots = 4, .tensor = 4, .sharing = 4});
  ASSERT_TRUE(job.has_value());
  const Explanation told = ExplainIn(WithFree(3), *job);
  EXPECT_THAT(told.reason.message,
              HasSubstr("; 3 such slots are free for it: too few for any number of slots that it "
                        "may have"));
  EXPECT_THAT(absl::StrJoin(told.suggestions, "|"), Not(HasSubstr("fewer slots")));
  const std::optional<JobRecord> two = JobOf({.slots = 8, .tensor = 4, .sharing = 4});
  const Explanation fewer = ExplainIn(WithFree(6), *two);
  EXPECT_THAT(fewer.reason.message,
              HasSubstr("6 such slots are free for it, of these 3 on nodes/n0, 1 on nodes/n1: with "
                        "resources.min_slots 4 it would start now"));
  EXPECT_THAT(absl::StrJoin(fewer.suggestions, "|"), HasSubstr("fewer slots"));
}

TEST(Advice, OnMemoryAndLossesNamesWhatWouldBeAccepted) {
  for (const int stages : {1, 2}) {
    for (const int micro_batch : {1, 2, 3}) {
      const std::optional<JobRecord> job =
          JobOf({.tensor = 2, .micro_batch = micro_batch, .stages = stages});
      ASSERT_TRUE(job.has_value());
      std::vector<std::string> names;
      if (micro_batch > 1) names.push_back("a smaller training.micro_batch_size");
      names.push_back("training.recompute");
      const std::string memory =
          names.empty() ? "" : absl::StrJoin(names, " or ") + " needs less memory";
      EXPECT_EQ(absl::StrJoin(ExplainFailed(*job, "OUT_OF_MEMORY").suggestions, "|"), memory);
      const std::string loss = absl::StrJoin(ExplainFailed(*job, "NUMERIC").suggestions, "|");
      EXPECT_THAT(loss, HasSubstr("training.on_non_finite=ROLL_BACK"));
      EXPECT_THAT(loss, HasSubstr("optimizer.clip_norm may keep the loss finite"));

      Snapshots small;
      small.Node({.name = "n", .cpu = 8, .bytes = 1});
      const Explanation told = ExplainIn(small, *job);
      EXPECT_THAT(absl::StrJoin(told.suggestions, "|"),
                  EndsWith(memory.empty() ? "a smaller model needs less memory" : memory));
    }
  }
}

TEST(Advice, DoesNotLeaveOutADeviceThatMustBeSet) {
  Snapshots gpus;
  gpus.Node({.name = "n", .cuda = 8});
  for (const bool parameters : {false, true}) {
    const std::optional<JobRecord> job = JobOf({.parameters = parameters});
    ASSERT_TRUE(job.has_value());
    const std::string told = absl::StrJoin(ExplainIn(gpus, *job).suggestions, "|");
    EXPECT_EQ(told,
              absl::StrCat("no node has a CPU slot: ",
                           parameters ? "" : "leave resources.device out, or ", "add such a node"));
    const absl::Status refused = CheckFits(*job, gpus.snapshot.nodes, SayNothing);
    EXPECT_EQ(refused.message().find("leave device out") == std::string::npos, parameters)
        << refused;
  }
}

TEST(Advice, OfARefusalForTooFewSlotsIsAcceptedToo) {
  for (const int sharing : {1, 2, 4}) {
    for (int slots = 4; slots <= 12; slots += 4) {
      const std::optional<JobRecord> job =
          JobOf({.slots = slots, .tensor = 4, .sharing = sharing, .logical = 12});
      for (int there = 1; there < slots; ++there) {
        const absl::Status refused = CheckFits(*job, WithFree(there).snapshot.nodes, SayNothing);
        ASSERT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
        EXPECT_EQ(NumberAfter(std::string(refused.message()), "of at most "),
                  there / sharing * sharing)
            << refused;
      }
    }
  }
}

TEST(Advice, OfARefusedNumberOfSlotsIsAccepted) {
  int advised = 0;
  for (const int logical : {1, 2, 5, 8}) {
    for (const int sharing : {2, 3, 4}) {
      for (int slots = 1; slots <= 20; ++slots) {
        CutJob cut = {.slots = slots, .tensor = 4, .sharing = sharing, .logical = logical};
        const auto refused = CheckSubmission(SubmissionOf(cut), "projects/p", "c");
        const std::string why(refused.status().message());
        if (why.find(" does not divide ") == std::string::npos) continue;
        cut.slots = NumberAfter(why, "; use ");
        if (cut.slots == 0) {
          cut.slots = slots / sharing * sharing;
          EXPECT_FALSE(cut.slots > 0 && JobOf(cut).has_value()) << why;
          continue;
        }
        ++advised;
        EXPECT_TRUE(JobOf(cut).has_value()) << why;
      }
    }
  }
  EXPECT_GT(advised, 50);
}

}  // namespace
}  // namespace trainyard
