// Drives the program trainyard-worker as a person would, with no server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/run/run_directory.h"
#include "storage/base/file.h"
#include "tests/unit/engine/engine_fixture.h"

#include "tests/unit/worker/worker_fixture.h"

namespace trainyard::worker {
namespace {

using ::testing::HasSubstr;

class AloneTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    std::ofstream(job_) << "spec:\n"
                        << "  model: {gpt: {layers: 1, heads: 2, width: 16, context: 8}}\n"
                        << "  data: {text: {path: " << folder_.path() << "/text.txt}}\n"
                        << "  training: {steps: 5, batch_size: 4}\n"
                        << "  optimizer: {adamw: {}}\n";
  }
  // One click of an epoch, met in step 13, overflows.
  void WritePoisonedJob(int64_t steps) {
    const v1::JobSpec spec = engine::PoisonedClicks(folder_.path(), /*step=*/13);
    const v1::CsvData& csv = spec.data().csv();
    std::ofstream(job_) << "spec:\n"
                        << "  model: {dlrm: {embedding_width: 4, bottom: [64], top: [6]}}\n"
                        << "  data: {csv: {train: " << csv.train()
                        << ", label: click, hash_buckets: 16, categorical: [city], dense: ["
                        << absl::StrJoin(csv.dense(), ", ") << "]}}\n"
                        << "  training: {batch_size: 8, seed: 5, log_every: 50, steps: " << steps
                        << "}\n"
                        << "  optimizer: {adamw: {}}\n"
                        << "  checkpoint: {every_steps: 5}\n";
  }
  int Alone(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--spec", job_, "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Child(arguments, Output()).Wait();
  }

  const std::string job_ = folder_.path() + "/job.yaml";
  const std::string out_ = folder_.path() + "/out";
};

TEST_F(AloneTest, TrainsAndSamples) {
  ASSERT_EQ(Alone({"--out", out_}), run::kExitDone) << ReadOutput();
  EXPECT_THAT(ReadOutput(), HasSubstr("step 5/5  loss "));
  EXPECT_THAT(ReadOutput(), HasSubstr("final checkpoint " + out_ + "/checkpoints/step-00000005"));
  Child sample({"sample", "--checkpoint", out_, "--prompt", "line", "--tokens", "20"}, Output());
  ASSERT_EQ(sample.Wait(), run::kExitDone) << ReadOutput();
  EXPECT_EQ(ReadOutput().size(), 4 + 20 + 1u);
  Child strange({"sample", "--checkpoint", out_, "--prompt", "%"}, Output());
  EXPECT_EQ(strange.Wait(), run::kExitUsage);
}

TEST_F(AloneTest, SamplesWholeCharactersFromAModelOfTokens) {
  const std::string text = folder_.path() + "/text.txt";
  {
    std::ofstream out(text);
    for (int i = 0; i < 300; ++i) out << "\xE4\xB8\xAD\xE6\x96\x87 caf\xC3\xA9 " << i << "\n";
  }
  ASSERT_EQ(Alone({"--out", out_, "--set", "data.text.tokenizer=BPE", "--set",
                   "data.text.vocab_size=300"}),
            run::kExitDone)
      << ReadOutput();
  EXPECT_THAT(ReadOutput(), HasSubstr("bits_per_byte "));
  // Barely trained, and so without top-p it draws bytes that are no UTF-8.
  for (const char* top_p : {"1", "0.5"}) {
    Child sample({"sample", "--checkpoint", out_, "--prompt", "caf\xC3\xA9", "--tokens", "200",
                  "--temperature", "2", "--top-p", top_p},
                 Output());
    ASSERT_EQ(sample.Wait(), run::kExitDone) << ReadOutput();
    EXPECT_THAT(ReadOutput(), ::testing::StartsWith("caf\xC3\xA9"));
    EXPECT_TRUE(data::CheckUtf8(ReadOutput()).ok()) << ReadOutput();
  }
  Child wrong({"sample", "--checkpoint", out_, "--top-p", "1.5"}, Output());
  EXPECT_EQ(wrong.Wait(), run::kExitUsage);
  Child broken({"sample", "--checkpoint", out_, "--prompt", "caf\xC3"}, Output());
  EXPECT_EQ(broken.Wait(), run::kExitUsage);
  EXPECT_THAT(ReadOutput(), HasSubstr("byte 0xc3 at offset 3 is not UTF-8"));
}

TEST_F(AloneTest, DoesNotOverwriteAndResumesWhenAsked) {
  ASSERT_EQ(Alone({"--out", out_}), run::kExitDone) << ReadOutput();
  EXPECT_EQ(Alone({"--out", out_}), run::kExitUsage);
  EXPECT_THAT(ReadOutput(), HasSubstr("--resume"));
  EXPECT_EQ(Alone({"--out", out_, "--resume"}), run::kExitDone) << ReadOutput();
  EXPECT_THAT(ReadOutput(), HasSubstr("going on from step 5"));
}

TEST_F(AloneTest, WritesEveryMetricForPrograms) {
  const std::string path = out_ + "/of/mine.jsonl";
  ASSERT_EQ(Alone({"--out", out_, "--metrics", path}), run::kExitDone) << ReadOutput();
  const std::vector<std::string> lines =
      absl::StrSplit(ReadFile(path).value(), '\n', absl::SkipEmpty());
  ASSERT_GE(lines.size(), 5u);
  for (int step = 1; step <= 5; ++step) {
    EXPECT_THAT(lines[step - 1], ::testing::MatchesRegex(absl::StrCat(
                                     "\\{\"step\":", step,
                                     ",\"split\":\"train\",.*\"loss\":[0-9]\\.[0-9]+[,}].*\\}")));
  }
  EXPECT_THAT(lines.back(), HasSubstr("\"step\":5,\"split\":\"validation\""));
  // Another run adds to it, and one that cannot does not begin.
  ASSERT_EQ(Alone({"--out", out_ + "2", "--metrics", path}), run::kExitDone) << ReadOutput();
  EXPECT_EQ(ReadFile(path)->find(lines[0] + "\n"), 0u);
  EXPECT_NE(Alone({"--out", out_ + "3", "--metrics", "/proc/none/metrics"}), run::kExitDone);
  EXPECT_THAT(ReadOutput(), HasSubstr("--metrics /proc/none/metrics: "));
}

TEST_F(AloneTest, TellsOfItsLinksWhenAsked) {
  const std::vector<std::string> two = {"--ranks", "2", "--set", "parallel.logical_ranks=2"};
  const std::vector<std::string> check = {"--set", "parallel.check_links=true"};
  const auto train = [&](const std::string& out, std::vector<std::string> arguments,
                         const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--out", out});
    return Alone(arguments);
  };
  ASSERT_EQ(train(out_, two, check), run::kExitDone) << ReadOutput();
  EXPECT_THAT(ReadOutput(), ::testing::ContainsRegex(
                                "links between ranks: 1 by (shared memory|TCP), [0-9.]+ [GMk]B/s"));
  ASSERT_EQ(train(out_ + "2", two, {}), run::kExitDone) << ReadOutput();
  EXPECT_THAT(ReadOutput(), ::testing::Not(HasSubstr("links between ranks")));
  ASSERT_EQ(train(out_ + "3", {}, check), run::kExitDone) << ReadOutput();
  EXPECT_THAT(ReadOutput(), ::testing::Not(HasSubstr("links between ranks")));
}

TEST_F(AloneTest, ChoosesNoMesh) {
  EXPECT_EQ(Alone({"--out", out_, "--set", "parallel.auto=true"}), run::kExitUsage);
  EXPECT_THAT(ReadOutput(), HasSubstr("spec.parallel.auto: found true, and there is no service"));
}

// The variable makes oneDNN compute as a machine that has no wider vectors would.
TEST_F(AloneTest, ARunThatGoesOnWithOtherInstructionsSaysSo) {
  ASSERT_EQ(Alone({"--out", out_}), run::kExitDone) << ReadOutput();
  setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
  const int code = Alone({"--out", out_, "--resume"});
  const std::string output = ReadOutput();
  const int told = Child({"arithmetic"}, Output()).Wait();
  unsetenv("ONEDNN_MAX_CPU_ISA");
  ASSERT_EQ(code, run::kExitDone) << output;
  EXPECT_THAT(output, HasSubstr("after step 5 the arithmetic is another"));
  EXPECT_THAT(output, ::testing::ContainsRegex("oneDNN instructions: [^;]+ before, sse41 now"));
  EXPECT_EQ(told, run::kExitDone);
  EXPECT_THAT(ReadOutput(), HasSubstr("device: CPU; engine: 1; "));
  EXPECT_THAT(ReadOutput(), HasSubstr("oneDNN instructions: sse41"));
}

TEST_F(AloneTest, AStepThatIsNotFiniteIsNamedAndEndsTheRun) {
  WritePoisonedJob(24);
  EXPECT_EQ(Alone({"--out", out_}), run::kExitNumeric);
  EXPECT_THAT(ReadOutput(), HasSubstr("step 13: first non-finite value: op 0 matmul \"bot_l.0\" "
                                      "forward, micro-batch 1 of 1, element "));
  // The job goes on when it is told how.
  EXPECT_EQ(Alone({"--out", out_, "--resume", "--set", "training.on_non_finite=ROLL_BACK"}),
            run::kExitDone)
      << ReadOutput();
  EXPECT_THAT(ReadOutput(), HasSubstr("back to step 10, leaving out the data of 3 steps"));
}

// The poison is met in each of some 7 epochs; the process is killed whenever it likes.
TEST_F(AloneTest, RollbacksGiveTheSameBitsWheneverTheProcessIsKilled) {
  WritePoisonedJob(400);
  const std::vector<std::string> how = {"--set", "training.on_non_finite=ROLL_BACK", "--set",
                                        "training.max_rollbacks=100"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), how.begin(), how.end());
    return more;
  };
  ASSERT_EQ(Alone(with({"--out", out_})), run::kExitDone) << ReadOutput();
  const std::string other = folder_.path() + "/other";
  for (const int step : {50, 150, 250}) {
    Child child(with({"--spec", job_, "--threads", "1", "--out", other, "--resume"}), Output());
    const std::string reached = absl::StrFormat("%s/checkpoints/step-%08d", other, step);
    const absl::Time deadline = absl::Now() + kPatience;
    while (!std::filesystem::exists(reached) && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));  // the folder has no other way to tell
    }
    child.Signal(SIGKILL);
    child.Wait();
    ASSERT_TRUE(std::filesystem::exists(reached)) << ReadOutput();
  }
  ASSERT_EQ(Alone(with({"--out", other, "--resume"})), run::kExitDone) << ReadOutput();
  EXPECT_EQ(ReadFile(other + "/checkpoints/step-00000400/manifest.json").value(),
            ReadFile(out_ + "/checkpoints/step-00000400/manifest.json").value());
}

TEST_F(AloneTest, TheBestCheckpointHasAName) {
  ASSERT_EQ(Alone({"--out", out_, "--set", "training.steps=8", "--set", "evaluation.every_steps=2",
                   "--set", "checkpoint.best.metric=perplexity"}),
            run::kExitDone)
      << ReadOutput();
  Child best({"sample", "--checkpoint", out_ + "/best", "--tokens", "3"}, Output());
  EXPECT_EQ(best.Wait(), run::kExitDone) << ReadOutput();
  ASSERT_EQ(Alone({"--out", out_ + "2"}), run::kExitDone);
  Child none({"sample", "--checkpoint", out_ + "2/best", "--tokens", "3"}, Output());
  EXPECT_EQ(none.Wait(), run::kExitUsage);
  EXPECT_THAT(ReadOutput(), HasSubstr("spec.checkpoint.best"));
}

TEST_F(AloneTest, MistakesOfThePersonAreNamed) {
  EXPECT_EQ(Alone({}), run::kExitUsage);
  EXPECT_EQ(Alone({"--out", out_, "--set", "training.step=3"}), run::kExitUsage);
  EXPECT_THAT(ReadOutput(), HasSubstr("did you mean 'steps'?"));
  EXPECT_EQ(Alone({"--out", out_, "--device", "tpu"}), run::kExitUsage);
  EXPECT_THAT(ReadOutput(), HasSubstr("device 'tpu' is unknown"));
  EXPECT_EQ(Alone({"--out", out_, "--set", "optimizer.adamw.beta1=2"}), run::kExitUsage);
  EXPECT_EQ(Alone({"--no-such-flag"}), run::kExitUsage);
}

TEST_F(AloneTest, HelpDocumentsTheExitCodes) {
  EXPECT_EQ(Child({"--help"}, Output()).Wait(), 0);
  EXPECT_THAT(ReadOutput(), HasSubstr("  74  a checkpoint could not be written or read"));
  EXPECT_EQ(Child({"--version"}, Output()).Wait(), 0);
  EXPECT_THAT(ReadOutput(), ::testing::StartsWith("trainyard-worker "));
}

// A driver is not needed to say so; a library that is absent is named with the reason.
TEST_F(AloneTest, SaysWhichLibrariesAreHere) {
  EXPECT_EQ(Child({"libraries"}, Output()).Wait(), run::kExitDone);
  const std::string output = ReadOutput();
  EXPECT_THAT(output, ::testing::ContainsRegex("oneDNN: [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  if (output.find("built without CUDA") != std::string::npos) return;
  for (const char* library : {"CUDA", "CUDA's driver, at most", "cuBLASLt", "cuDNN", "NCCL"}) {
    EXPECT_THAT(output, ::testing::ContainsRegex(
                            absl::StrCat("\n", library, ": ([0-9]+[.][0-9.]+|[a-zA-Z][^\n]+)\n")));
  }
}

}  // namespace
}  // namespace trainyard::worker
