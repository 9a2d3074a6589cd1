#include "proto/text/job_file.h"

#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kWhole[] = R"(# A job with a bit of everything.
job_id: digits
labels: {team: vision, cost: "007"}
priority: -5
spec:
  model:
    convnet:
      stages:
        - {channels: 32, kernel: 5}
        - channels: 64
          pool: 1
      hidden: [128, 64]
      activation: gelu
      dropout: 0.25
  data:
    idx:
      train_images: /data/train images.gz
      train_labels: "file:///data/train-labels.gz"
      mean: 0.286
  training: {epochs: 2.5, batch_size: 100, seed: 18446744073709551615}
  optimizer:
    adamw:
    clip_norm: 1e0
  schedule: {learning_rate: 1e-3, warmup_steps: 100, shape: Cosine}
  evaluation: {at_end: false}
)";

std::string ErrorOf(const std::string& yaml) {
  const absl::StatusOr<v1::Job> job = ParseJobFile(yaml, "job.yaml");
  if (job.ok()) return "accepted";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

TEST(JobFile, ReadsEveryKindOfField) {
  const absl::StatusOr<v1::Job> job = ParseJobFile(kWhole, "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job_id(), "digits");
  EXPECT_EQ(job->labels().at("team"), "vision");
  EXPECT_EQ(job->labels().at("cost"), "007");
  EXPECT_EQ(job->priority(), -5);
  const v1::JobSpec& spec = job->spec();
  ASSERT_EQ(spec.model().convnet().stages_size(), 2);
  EXPECT_EQ(spec.model().convnet().stages(0).kernel(), 5);
  EXPECT_FALSE(spec.model().convnet().stages(1).has_kernel());
  EXPECT_EQ(spec.model().convnet().stages(1).pool(), 1);
  EXPECT_EQ(spec.model().convnet().hidden(1), 64);
  EXPECT_EQ(spec.model().convnet().activation(), v1::GELU);
  EXPECT_EQ(spec.model().convnet().dropout(), 0.25);
  EXPECT_EQ(spec.data().idx().train_images(), "/data/train images.gz");
  EXPECT_EQ(spec.training().epochs(), 2.5);
  EXPECT_EQ(spec.training().seed(), 18446744073709551615u);
  EXPECT_TRUE(spec.optimizer().has_adamw());
  EXPECT_EQ(spec.optimizer().clip_norm(), 1.0);
  EXPECT_EQ(spec.schedule().learning_rate(), 1e-3);
  EXPECT_EQ(spec.schedule().shape(), v1::Schedule::COSINE);
  EXPECT_TRUE(spec.evaluation().has_at_end());
  EXPECT_FALSE(spec.evaluation().at_end());
}

TEST(JobFile, WrittenYamlReadsBackToTheSameJob) {
  v1::Job job = *ParseJobFile(kWhole, "job.yaml");
  (*job.mutable_labels())["odd"] = "a: \"b\"\n\t#c \x01 é null";
  (*job.mutable_labels())["word"] = "null";
  (*job.mutable_labels())["yes"] = "";
  job.mutable_spec()->mutable_schedule()->set_min_learning_rate(0.1 + 0.2);
  const absl::StatusOr<v1::Job> back = ParseJobFile(ToYaml(job), "written.yaml");
  ASSERT_TRUE(back.ok()) << back.status() << "\n" << ToYaml(job);
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(job, *back)) << difference << ToYaml(job);
  EXPECT_EQ(ToYaml(job), ToYaml(*back));
}

TEST(JobFile, WritesFieldsInTheOrderOfTheProto) {
  v1::Job job;
  job.set_job_id("a");
  job.mutable_spec()->mutable_model()->mutable_mlp()->add_hidden(128);
  job.mutable_spec()->mutable_optimizer()->mutable_sgd();
  job.set_state(v1::RUNNING);
  job.mutable_create_time()->set_seconds(1);
  EXPECT_EQ(ToYaml(job),
            "job_id: a\n"
            "spec:\n"
            "  model:\n"
            "    mlp:\n"
            "      hidden: [128]\n"
            "  optimizer:\n"
            "    sgd: {}\n"
            "state: RUNNING\n"
            "create_time: \"1970-01-01T00:00:01.000000Z\"\n");
  EXPECT_EQ(ToYaml(v1::Job()), "{}\n");
}

TEST(JobFile, NanAndInfinityAreReadSoThatValidationCanNameThem) {
  for (const char* text : {"nan", "NaN", ".nan"}) {
    const auto job =
        ParseJobFile(absl::StrCat("spec: {schedule: {learning_rate: ", text, "}}"), "job.yaml");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE(std::isnan(job->spec().schedule().learning_rate()));
  }
  const auto job = ParseJobFile("spec: {schedule: {learning_rate: -.inf}}", "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec().schedule().learning_rate(), -HUGE_VAL);
}

TEST(JobFile, AnchorsMayBeShared) {
  const auto job =
      ParseJobFile("spec:\n  model: {convnet: {stages: [&s {channels: 8}, *s, *s]}}\n", "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec().model().convnet().stages_size(), 3);
}

struct BadFile {
  const char* yaml;
  const char* message;
};

// Every message of the reader, whole.
const BadFile kBadFiles[] = {
    {"spec:\n  training:\n    steps: 10\n    batchsize: 3\n",
     "job.yaml:4:5: unknown field 'batchsize' (did you mean 'batch_size'?)"},
    {"spec:\n  trainning: {}\n",
     "job.yaml:2:3: unknown field 'trainning' (did you mean 'training'?)"},
    {"training: {steps: 3}\n",
     "job.yaml:1:1: unknown field 'training'; 'training' belongs in spec"},
    {"spec:\n  training:\n    learning_rate: 1\n",
     "job.yaml:3:5: unknown field 'learning_rate' in spec.training; 'learning_rate' belongs in "
     "spec.schedule"},
    {"spec: {priority: 3}\n",
     "job.yaml:1:8: unknown field 'priority' in spec; 'priority' belongs to the top level"},
    {"spec: {precision: {wobble: 1}}\n",
     "job.yaml:1:20: unknown field 'wobble' in spec.precision; expected one of compute, "
     "loss_scale"},
    {"wobble: 1\n",
     "job.yaml:1:1: unknown field 'wobble'; expected one of job_id, labels, priority, spec"},
    {"spec:\n  model:\n    gpt: {layers: 1}\n    mlp: {}\n",
     "job.yaml:4:5: spec.model: both 'gpt' and 'mlp' are given; choose one"},
    {"spec:\n  training:\n    steps: 1\n    steps: 2\n",
     "job.yaml:4:5: field 'steps' is given twice (first on line 3)"},
    {"labels: {a: b, a: c}\n", "job.yaml:1:16: labels: 'a' is given twice"},
    {"state: RUNNING\n", "job.yaml:1:1: field 'state' is written by the server only; remove it"},
    {"name: x\n",
     "job.yaml:1:1: field 'name' is written by the server only; write 'job_id' to choose the id of "
     "the job"},
    {"spec: {training: {steps: abc}}\n",
     "job.yaml:1:26: spec.training.steps: 'abc' is not an integer"},
    {"spec: {training: {steps: 1e4}}\n",
     "job.yaml:1:26: spec.training.steps: '1e4' is not an integer; write 10000"},
    {"spec: {training: {steps: 10_000}}\n",
     "job.yaml:1:26: spec.training.steps: '10_000' is not an integer; write 10000"},
    {"spec: {training: {steps: 007}}\n",
     "job.yaml:1:26: spec.training.steps: '007' is not an integer; write 7"},
    {"spec: {training: {batch_size: 5000000000}}\n",
     "job.yaml:1:31: spec.training.batch_size: '5000000000' is out of range: expected an integer "
     "in "
     "[-2147483648, 2147483647]"},
    {"spec: {training: {seed: -1}}\n",
     "job.yaml:1:25: spec.training.seed: '-1' is out of range: expected an integer in [0, "
     "18446744073709551615]"},
    {"spec: {training: {batch_size: \"32\"}}\n",
     "job.yaml:1:31: spec.training.batch_size: expected an integer, found the string '32'; remove "
     "the "
     "quotes"},
    {"spec: {training: {steps: }}\n",
     "job.yaml:1:26: spec.training.steps: expected an integer, found nothing"},
    {"spec: {training: {steps: [1]}}\n",
     "job.yaml:1:26: spec.training.steps: expected an integer, found a list"},
    {"spec: {training: {steps: {a: 1}}}\n",
     "job.yaml:1:26: spec.training.steps: expected an integer, found fields"},
    {"spec: {schedule: {learning_rate: fast}}\n",
     "job.yaml:1:34: spec.schedule.learning_rate: 'fast' is not a number"},
    {"spec: {schedule: {learning_rate: 1e999}}\n",
     "job.yaml:1:34: spec.schedule.learning_rate: '1e999' is out of range of a 64-bit "
     "floating-point "
     "number"},
    {"spec: {evaluation: {at_end: yes}}\n",
     "job.yaml:1:29: spec.evaluation.at_end: 'yes' is neither true nor false"},
    {"spec: {schedule: {shape: cosin}}\n",
     "job.yaml:1:26: spec.schedule.shape: unknown value 'cosin' (did you mean 'COSINE'?); expected "
     "one "
     "of CONSTANT, LINEAR, COSINE, STEP, POLYNOMIAL, WARMUP_STABLE_DECAY, "
     "ONE_MINUS_SQRT"},
    {"spec: {precision: {compute: 2}}\n",
     "job.yaml:1:29: spec.precision.compute: unknown value '2'; expected one of FP32, BF16, FP16"},
    {"spec: {precision: {compute: COMPUTE_UNSPECIFIED}}\n",
     "job.yaml:1:29: spec.precision.compute: unknown value 'COMPUTE_UNSPECIFIED'; expected one of "
     "FP32, BF16, FP16"},
    {"spec: {optimizer: adamw}\n",
     "job.yaml:1:19: spec.optimizer: expected fields, found 'adamw'; write 'adamw:' on a line of "
     "its "
     "own below"},
    {"spec: {optimizer: [adamw]}\n",
     "job.yaml:1:19: spec.optimizer: expected fields, found a list"},
    {"spec: {model: {mlp: {hidden: 128}}}\n",
     "job.yaml:1:30: spec.model.mlp.hidden: expected a list, found '128'; write [128]"},
    {"spec: {model: {mlp: {hidden: [128, x]}}}\n",
     "job.yaml:1:36: spec.model.mlp.hidden[1]: 'x' is not an integer"},
    {"spec: {model: {convnet: {stages: [{chanels: 3}]}}}\n",
     "job.yaml:1:36: unknown field 'chanels' (did you mean 'channels'?)"},
    {"labels: [a]\n", "job.yaml:1:9: labels: expected 'key: value' pairs, found a list"},
    {"labels: {[a]: b}\n", "job.yaml:1:10: labels: expected a key, found a list"},
    {"[a]: b\n", "job.yaml:1:1: expected the name of a field, found a list"},
    {"- a\n", "job.yaml:1:1: expected fields, found a list"},
    {"hello\n", "job.yaml:1:1: expected fields, found 'hello'"},
    {"job_id: !!python/object x\n",
     "job.yaml:1:9: tag 'tag:yaml.org,2002:python/object': tags are not supported"},
    {"", "job.yaml: the file is empty; expected a job with 'spec'"},
    {"# only a comment\n", "job.yaml: the file is empty; expected a job with 'spec'"},
    {"job_id: a\n---\njob_id: b\n", "job.yaml:3:1: a second document; a job file holds one job"},
    {"spec:\n\ttraining: {}\n", "job.yaml:2:1: a tab in the indentation; YAML indents with spaces"},
    {"spec: {training: *missing}\n",
     "job.yaml:1:18: not valid YAML: the referenced anchor is not "
     "defined"},
    {"spec: {training: {steps: 1\n", "job.yaml:2:1: not valid YAML: end of map flow not found"},
    {"spec: a: b\n", "job.yaml:1:8: not valid YAML: illegal map value"},
    {"job_id: a\nlabels: {b: \xff}\n", "job.yaml:2:13: not UTF-8; a job file is UTF-8 text"},
};

TEST(JobFile, RefusesBadFilesWithTheseMessages) {
  for (const BadFile& bad : kBadFiles) EXPECT_EQ(ErrorOf(bad.yaml), bad.message) << bad.yaml;
}

TEST(JobDocuments, AreReadInTheirOrderEachForItself) {
  const auto jobs =
      ParseJobDocuments("# sweep\njob_id: a\n---\n---\npriority: 3\njob_id: b\n...\n", "s.yaml");
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ(jobs->at(0).job.job_id(), "a");
  EXPECT_EQ(jobs->at(0).job.priority(), 0);
  EXPECT_EQ(jobs->at(0).line, 2);
  EXPECT_EQ(jobs->at(1).job.job_id(), "b");
  EXPECT_EQ(jobs->at(1).line, 5);
  EXPECT_EQ(ParseJobDocuments("job_id: a\n---\njbo_id: b\n", "s.yaml").status().message(),
            "s.yaml:3:1: unknown field 'jbo_id' (did you mean 'job_id'?)");
  EXPECT_THAT(std::string(ParseJobDocuments("---\n---\n", "s.yaml").status().message()),
              HasSubstr("the file is empty"));
}

TEST(JobFile, RefusesNulBytes) {
  EXPECT_EQ(ErrorOf(std::string("job_id: a\0b\n", 12)),
            "job.yaml:1:10: a NUL byte; a job file is UTF-8 text");
}

TEST(JobFile, RefusesHugeFilesBeforeParsing) {
  EXPECT_EQ(ErrorOf(std::string(300 << 10, '[')),
            "job.yaml: 307200 bytes; a job file has at most 262144");
}

TEST(JobFile, RefusesDeepNestingWithoutOverflowingTheStack) {
  EXPECT_THAT(ErrorOf("spec: " + std::string(200 << 10, '[')), StartsWith("job.yaml:1:"));
  EXPECT_THAT(ErrorOf("spec: " + std::string(100 << 10, '{')), StartsWith("job.yaml:1:"));
}

TEST(JobFile, RefusesAliasesThatUnfoldToTooManyValues) {
  std::string yaml = "spec: {model: {convnet: {stages: [&s {channels: 1}";
  for (int i = 0; i < 60000; ++i) yaml += ",*s";
  EXPECT_THAT(ErrorOf(yaml + "]}}}\n"), HasSubstr("more than 100000 values"));
}

TEST(JobFile, RefusesATreeThatContainsItself) {
  EXPECT_EQ(ErrorOf("&a [*a]\n"), "job.yaml:1:1: expected fields, found a list");
  EXPECT_THAT(ErrorOf("spec: &a {model: *a}\n"), HasSubstr("unknown field 'model'"));
}

// Found by tests/fuzz: yaml-cpp makes empty documents of these without end.
TEST(JobFile, RefusesStrayFlowIndicatorsInsteadOfReadingThemForever) {
  EXPECT_EQ(ErrorOf(","), "job.yaml:1:1: not valid YAML: no value can begin here");
  EXPECT_EQ(ErrorOf("# a job\n\n,labels:\n  a: b\n"),
            "job.yaml:3:1: not valid YAML: no value can begin here");
  for (const char* stray : {"]", "}", "a\n]", "? ,"}) {
    EXPECT_NE(ErrorOf(stray), "accepted") << stray;
  }
}

// YAML ends a key at 1024 characters: a longer one would be written, but not read back.
TEST(JobFile, RefusesKeysThatCouldNotBeWrittenAgain) {
  const std::string longest(200, '\x13');
  const absl::StatusOr<v1::Job> job = ParseJobFile("labels: {\"" + longest + "\": a}", "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(ParseJobFile(ToYaml(*job), "again.yaml").ok());
  EXPECT_EQ(ErrorOf("labels: {\"" + longest + "x\": a}"),
            "job.yaml:1:10: labels: a key of 201 bytes; expected at most 200");
}

TEST(SetField, SetsFieldsByPath) {
  v1::Job job = *ParseJobFile(kWhole, "job.yaml");
  EXPECT_TRUE(SetField(job, "spec.training.steps", "7").ok());
  EXPECT_EQ(job.spec().training().steps(), 7);
  EXPECT_TRUE(SetField(job, "training.steps", "8").ok());
  EXPECT_EQ(job.spec().training().steps(), 8);
  EXPECT_TRUE(SetField(job, "checkpoint.keep", "3").ok());  // not the server's Job.checkpoint
  EXPECT_EQ(job.spec().checkpoint().keep(), 3);
  EXPECT_TRUE(SetField(job, "labels.team", "text").ok());
  EXPECT_EQ(job.labels().at("team"), "text");
  EXPECT_TRUE(SetField(job, "model.convnet.hidden", "[1, 2, 3]").ok());
  EXPECT_EQ(job.spec().model().convnet().hidden_size(), 3);
  EXPECT_TRUE(SetField(job, "model.convnet.stages.1.channels", "9").ok());
  EXPECT_EQ(job.spec().model().convnet().stages(1).channels(), 9);
  EXPECT_TRUE(SetField(job, "data.idx.train_images", "/a: {b}").ok());
  EXPECT_EQ(job.spec().data().idx().train_images(), "/a: {b}");
  EXPECT_TRUE(SetField(job, "schedule.learning_rate", "null").ok());
  EXPECT_FALSE(job.spec().schedule().has_learning_rate());
}

TEST(SetField, ChoosesAnotherMemberOfAOneof) {
  v1::Job job = *ParseJobFile(kWhole, "job.yaml");
  EXPECT_TRUE(SetField(job, "optimizer.sgd.momentum", "0.9").ok());
  EXPECT_TRUE(job.spec().optimizer().has_sgd());
  EXPECT_EQ(job.spec().optimizer().clip_norm(), 1.0);
}

TEST(SetField, WorksOnASpecAlone) {
  v1::JobSpec spec;
  EXPECT_TRUE(SetField(spec, "training.steps", "8").ok());
  EXPECT_EQ(spec.training().steps(), 8);
}

struct BadSet {
  const char* path;
  const char* value;
  const char* message;
};

const BadSet kBadSets[] = {
    {"spec.training.step", "3",
     "--set spec.training.step: unknown field 'step' (did you mean 'steps'?)"},
    {"trainin.steps", "3",
     "--set trainin.steps: unknown field 'trainin'; expected one of job_id, "
     "labels, priority, spec"},
    {"training.steps", "x", "--set training.steps: steps: 'x' is not an integer"},
    {"training.steps", "", "--set training.steps: steps: expected an integer, found nothing"},
    {"training.steps.x", "1",
     "--set training.steps.x: 'spec.training.steps' has no fields of its own"},
    {"state", "RUNNING", "--set state: field 'state' is written by the server only; remove it"},
    {"model.convnet.stages.2.pool", "1",
     "--set model.convnet.stages.2.pool: '2' is not an element of 'spec.model.convnet.stages', "
     "which "
     "has 2: write 0 to 1"},
    {"model.convnet.stages.1", "1",
     "--set model.convnet.stages.1: name a field of element 1 of 'spec.model.convnet.stages'"},
    {"model", "{mlp: {}, gpt: {}}",
     "--set model: model: both 'mlp' and 'gpt' are given; choose one"},
    {"model", "{mlp: ", "--set model: not valid YAML: end of map flow not found"},
    {"", "1", "--set : unknown field ''; expected one of job_id, labels, priority, spec"},
};

TEST(SetField, RefusesBadPathsAndValuesAndChangesNothing) {
  const v1::Job before = *ParseJobFile(kWhole, "job.yaml");
  for (const BadSet& bad : kBadSets) {
    v1::Job job = before;
    const absl::Status status = SetField(job, bad.path, bad.value);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), bad.message);
    EXPECT_EQ(ToYaml(job), ToYaml(before));
  }
}

}  // namespace
}  // namespace trainyard
