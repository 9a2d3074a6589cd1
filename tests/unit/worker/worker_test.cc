// Drives the program trainyard-worker as an agent and as a person would.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/run/event_log.h"
#include "executor/run/run_directory.h"
#include "executor/worker/open_device.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"
#include "tests/unit/data/images/encoders.h"
#include "tests/unit/engine/engine_fixture.h"

extern char** environ;

namespace trainyard::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

constexpr absl::Duration kPatience = absl::Seconds(60);

// A started program; its stdin is a pipe, its output goes to a file.
class Child {
 public:
  Child(std::vector<std::string> arguments, const std::string& output) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    arguments.insert(arguments.begin(), TRAINYARD_WORKER);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    stdin_.Reset(ends[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  void Signal(int signal) const { kill(pid_, signal); }
  // Whether it has a handler for `signal`.
  bool Catches(int signal) const {
    const auto status = ReadFile(absl::StrCat("/proc/", pid_, "/status"));
    EXPECT_TRUE(status.ok());
    const size_t at = status.value_or("").find("SigCgt:\t");
    EXPECT_NE(at, std::string::npos);
    const uint64_t caught = std::strtoull(status->c_str() + at + 8, nullptr, 16);
    return (caught >> (signal - 1) & 1) != 0;
  }
  void Say(const std::string& line) { ASSERT_TRUE(WriteAll(stdin_.get(), line, "stdin").ok()); }
  void CloseStdin() { stdin_.Reset(-1); }

  // The exit code, or -signal.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor stdin_;
};

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    assignment_.mutable_key()->set_job_uid("uid");
    assignment_.mutable_key()->set_attempt(1);
    assignment_.set_world_size(1);
    *assignment_.mutable_spec() = engine::SmallGpt(engine::WriteText(folder_.path()), 10);
    assignment_.set_checkpoint_root("file://" + folder_.path() + "/ckpt");
  }

  // Writes the folder that an agent would, with a lease of `lease` from now.
  run::RunDirectory Prepare(const std::string& name, absl::Duration lease) {
    const run::RunDirectory directory(folder_.path() + "/" + name);
    EXPECT_TRUE(directory.WriteAssignment(assignment_).ok());
    run::LeaseFile::Open(directory.lease_path(), true)
        ->ExtendLife(SystemClock().SinceBoot() + lease);
    return directory;
  }

  Child Start(const run::RunDirectory& directory) {
    return Child({"--run-dir", directory.path(), "--device", "cpu", "--threads", "1"}, Output());
  }

  std::string Output() const { return folder_.path() + "/output"; }
  std::string ReadOutput() const {
    std::ifstream in(Output());
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  static std::vector<v1::RankEvent> Events(const run::RunDirectory& directory) {
    return run::EventReader(directory.events_path()).Read(1 << 20).value();
  }

  // Until an event fulfils `what`.
  static bool Await(const run::RunDirectory& directory,
                    const std::function<bool(const v1::RankEvent&)>& what) {
    run::EventReader reader(directory.events_path());
    for (const absl::Time deadline = absl::Now() + kPatience; absl::Now() < deadline;) {
      const std::vector<v1::RankEvent> events = reader.Read(1 << 20).value();
      if (std::any_of(events.begin(), events.end(), what)) return true;
      absl::SleepFor(absl::Milliseconds(1));  // the file has no other way to tell
    }
    return false;
  }

  engine::TempFolder folder_;
  v1::Assignment assignment_;
};

TEST_F(WorkerTest, ARankTellsItsWholeStoryInOrder) {
  const run::RunDirectory directory = Prepare("r", kPatience);
  EXPECT_EQ(Start(directory).Wait(), run::kExitDone) << ReadOutput();
  const std::vector<v1::RankEvent> events = Events(directory);
  ASSERT_EQ(events.size(), 15u);
  EXPECT_EQ(events[0].started().total_steps(), 10);
  EXPECT_TRUE(events[1].has_restored());
  EXPECT_EQ(events[1].restored().step(), 0);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(events[2 + i].metrics().step(), i + 1);
  EXPECT_EQ(events[12].metrics().split(), v1::MetricPoint::VALIDATION);
  EXPECT_TRUE(events[13].checkpoint().final());
  EXPECT_THAT(events[13].checkpoint().uri(), HasSubstr("/ckpt/step-00000010"));
  EXPECT_EQ(events[14].finished().outcome(), v1::RankEvent::Finished::SUCCEEDED);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].sequence(), int64_t(i) + 1);
}

TEST_F(WorkerTest, NamesOfFilesInAnyBytesReachTheEvents) {
  const std::string images = folder_.path() + "/images/a";
  std::filesystem::create_directories(images);
  const data::ImageSize size = {.height = 8, .width = 8};
  const data::Bytes good = data::PngFile(size, data::Picture(size, 3));
  for (const char* name : {"0.png", "1.png", "2.png"}) {
    std::ofstream(absl::StrCat(images, "/", name)) << data::AsString(good);
  }
  std::ofstream(images + "/1\xff\x1b.png") << "no image";
  v1::JobSpec& spec = *assignment_.mutable_spec();
  spec.mutable_model()->mutable_mlp();
  v1::ImageFolderData& data = *spec.mutable_data()->mutable_image_folder();
  data.set_train(folder_.path() + "/images");
  data.set_validation_fraction(0.25);
  data.mutable_transform()->set_size(4);

  const run::RunDirectory skipping = Prepare("skipping", kPatience);
  EXPECT_EQ(Start(skipping).Wait(), run::kExitDone) << ReadOutput();
  EXPECT_TRUE(Await(skipping, [](const v1::RankEvent& event) {
    return absl::StrContains(event.notice().message(), "/a/1??.png: begins with 'no image'");
  }));
  data.set_bad_records(v1::REFUSE_BAD_RECORDS);
  const run::RunDirectory refusing = Prepare("refusing", kPatience);
  EXPECT_EQ(Start(refusing).Wait(), run::kExitData) << ReadOutput();
  EXPECT_THAT(Events(refusing).back().failure().message(), HasSubstr("/a/1??.png: begins with"));
}

TEST_F(WorkerTest, SigtermEndsWithACheckpointThatTheNextAttemptGoesOnFrom) {
  assignment_.mutable_spec()->mutable_training()->set_steps(100000);
  const run::RunDirectory first = Prepare("first", kPatience);
  Child child = Start(first);
  ASSERT_TRUE(Await(first, [](const auto& event) { return event.metrics().step() >= 3; }));
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), run::kExitDone) << ReadOutput();
  const std::vector<v1::RankEvent> events = Events(first);
  const v1::RankEvent& last = events.back();
  EXPECT_EQ(last.finished().outcome(), v1::RankEvent::Finished::SUSPENDED);
  const auto& checkpoint = events[events.size() - 2].checkpoint();
  EXPECT_EQ(checkpoint.step(), last.finished().step());

  assignment_.mutable_key()->set_attempt(2);
  assignment_.mutable_restore()->set_step(checkpoint.step());
  assignment_.mutable_restore()->set_uri(checkpoint.uri());
  assignment_.mutable_restore()->set_manifest_sha256(checkpoint.manifest_sha256());
  const run::RunDirectory second = Prepare("second", kPatience);
  Child next = Start(second);
  EXPECT_TRUE(Await(
      second, [&](const auto& event) { return event.metrics().step() == checkpoint.step() + 1; }));
  EXPECT_EQ(Events(second)[1].restored().step(), checkpoint.step());
}

TEST_F(WorkerTest, AnEndedLeaseEndsTheProcess) {
  assignment_.mutable_spec()->mutable_training()->set_steps(100000);
  const run::RunDirectory directory = Prepare("r", absl::Milliseconds(300));
  EXPECT_EQ(Start(directory).Wait(), run::kExitFenced);
}

TEST_F(WorkerTest, AVanishedRunDirectoryEndsTheProcess) {
  assignment_.mutable_spec()->mutable_training()->set_steps(100000);
  const run::RunDirectory directory = Prepare("r", kPatience);
  Child child = Start(directory);
  ASSERT_TRUE(Await(directory, [](const auto& event) { return event.has_metrics(); }));
  std::filesystem::remove_all(directory.path());
  EXPECT_EQ(child.Wait(), run::kExitFenced);
}

TEST_F(WorkerTest, AWarmWorkerTakesItsRankFromALine) {
  const run::RunDirectory directory = Prepare("r", kPatience);
  Child child({"--standby"}, Output());
  child.Say("{\"run_dir\": \"" + directory.path() + "\", \"device\": \"cpu\", \"threads\": 1}\n");
  EXPECT_EQ(child.Wait(), run::kExitDone) << ReadOutput();
  EXPECT_TRUE(Events(directory).back().has_finished());
}

TEST_F(WorkerTest, AWarmWorkerLeavesWhenNobodyNeedsIt) {
  Child child({"--standby"}, Output());
  child.CloseStdin();
  EXPECT_EQ(child.Wait(), run::kExitDone) << ReadOutput();
}

TEST_F(WorkerTest, RanksThatCannotMeetSayWhy) {
  assignment_.set_world_size(2);
  const auto failure = [&](const char* folder, int code) {
    const run::RunDirectory directory = Prepare(folder, kPatience);
    EXPECT_EQ(Start(directory).Wait(), code);
    return Events(directory).back().failure();
  };
  const v1::Failure old = failure("old", run::kExitUsage);
  EXPECT_EQ(old.category(), v1::Failure::UNIMPLEMENTED);
  EXPECT_THAT(old.message(), HasSubstr("before training across ranks"));
  assignment_.set_rendezvous_secret("secret");
  assignment_.add_rank_addresses("127.0.0.1:1");
  const v1::Failure odd = failure("odd", run::kExitInternal);
  EXPECT_FALSE(odd.retryable());
  EXPECT_THAT(odd.message(), HasSubstr("of 2 names 1 addresses"));
  assignment_.set_rank_addresses(0, "not an address");
  assignment_.add_rank_addresses("127.0.0.1:2");
  const v1::Failure peer = failure("peer", run::kExitGang);
  EXPECT_EQ(peer.category(), v1::Failure::PEER);
  EXPECT_TRUE(peer.retryable());
}

TEST_F(WorkerTest, MissingDataIsAnEventAndAnExitCode) {
  assignment_.mutable_spec()->mutable_data()->mutable_text()->set_path("/absent/text");
  const run::RunDirectory directory = Prepare("r", kPatience);
  EXPECT_EQ(Start(directory).Wait(), run::kExitData);
  const v1::Failure failure = Events(directory).back().failure();
  EXPECT_EQ(failure.category(), v1::Failure::USER);
  EXPECT_THAT(failure.message(), HasSubstr("/absent/text"));
}

TEST_F(WorkerTest, ACheckpointRootThatCannotBeMadeIsAStorageFailureWorthRetrying) {
  std::ofstream(folder_.path() + "/file") << "x";
  assignment_.set_checkpoint_root(folder_.path() + "/file/ckpt");
  const run::RunDirectory directory = Prepare("r", kPatience);
  EXPECT_EQ(Start(directory).Wait(), run::kExitStorage);
  const v1::Failure failure = Events(directory).back().failure();
  EXPECT_EQ(failure.category(), v1::Failure::STORAGE);
  EXPECT_TRUE(failure.retryable());
}

// A process that could not open its GPU will not be able to later: another one is to wait there.
TEST_F(WorkerTest, WaitingOnAGpuThatCannotBeOpenedEnds) {
  if (kernels::OpenCuda(99).ok()) GTEST_SKIP() << "a machine of 100 GPUs";
  EXPECT_EQ(Child({"--standby", "--device", "cuda:99", "--threads", "1"}, Output()).Wait(), 1);
  EXPECT_THAT(ReadOutput(), HasSubstr("cuda:99"));
}

// Matrix products of oneDNN keep the stack pointer in a buffer from malloc: a handler that ran
// there would overwrite the heap. Nor must it fail a file that is being opened or synced with
// EINTR.
TEST_F(WorkerTest, NoHandlerOfASignalRunsInAThreadThatComputes) {
  assignment_.mutable_spec()->mutable_training()->set_steps(100000);
  const run::RunDirectory directory = Prepare("r", kPatience);
  Child child = Start(directory);
  ASSERT_TRUE(Await(directory, [](const auto& event) { return event.metrics().step() >= 1; }));
  EXPECT_FALSE(child.Catches(SIGTERM));
  EXPECT_FALSE(child.Catches(SIGINT));
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), run::kExitDone) << ReadOutput();
}

TEST(CacheFolder, IsTheUsersOrBelowItsHome) {
  std::map<std::string, std::string> set;
  const auto folder = [&] {
    return CacheFolder([&](const char* name) {
      const auto found = set.find(name);
      return found == set.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(folder(), "");
  set["HOME"] = "/home/ada";
  EXPECT_EQ(folder(), "/home/ada/.cache/trainyard");
  set["XDG_CACHE_HOME"] = "/caches";
  EXPECT_EQ(folder(), "/caches/trainyard");
  set["TRAINYARD_CACHE"] = "/fast";
  EXPECT_EQ(folder(), "/fast");
}

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

// libgomp says at its start what it goes by.
TEST_F(WorkerTest, ThreadsSpinBrieflyUnlessTheUserSaysHow) {
  const auto started = [&] {
    EXPECT_EQ(Child({"--version"}, Output()).Wait(), run::kExitDone);
    const std::string output = ReadOutput();
    const std::vector<std::string> starts =
        absl::StrSplit(output, "OPENMP DISPLAY ENVIRONMENT BEGIN");
    return std::pair(starts.size() - 1, output);
  };
  const char* const spin = getenv("GOMP_SPINCOUNT");
  const std::string before = spin == nullptr ? "" : spin;
  setenv("OMP_DISPLAY_ENV", "VERBOSE", 1);
  unsetenv("GOMP_SPINCOUNT");
  unsetenv("OMP_WAIT_POLICY");
  EXPECT_THAT(started(), Pair(2, HasSubstr("GOMP_SPINCOUNT = '1000'")));
  setenv("GOMP_SPINCOUNT", "7", 1);
  EXPECT_THAT(started(), Pair(1, HasSubstr("GOMP_SPINCOUNT = '7'")));
  unsetenv("GOMP_SPINCOUNT");
  setenv("OMP_WAIT_POLICY", "passive", 1);
  EXPECT_THAT(started(), Pair(1, HasSubstr("GOMP_SPINCOUNT = '0'")));
  unsetenv("OMP_WAIT_POLICY");
  unsetenv("OMP_DISPLAY_ENV");
  if (spin != nullptr) setenv("GOMP_SPINCOUNT", before.c_str(), 1);
}

}  // namespace
}  // namespace trainyard::worker
