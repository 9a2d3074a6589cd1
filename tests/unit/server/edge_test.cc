// What clients and agents send by hand: names, filters, page tokens, events.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "server/api/convert.h"
#include "server/api/filter.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "server/api/server.h"
#include "server/fleet/decode.h"
#include "storage/base/ids.h"
#include "storage/base/server_list.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

template <typename T>
std::string Error(const absl::StatusOr<T>& result) {
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

TEST(Names, JobNamesAreParsedAndPrinted) {
  const auto name = ParseJobName("name", "projects/default/jobs/char-gpt");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->project, "default");
  EXPECT_EQ(FormatJobName(*name), "projects/default/jobs/char-gpt");
}

TEST(Names, WrongNamesSayWhatWasFoundAndExpected) {
  for (const char* bad :
       {"", "jobs/a", "projects//jobs/a", "projects/P/jobs/a", "projects/p/jobs/",
        "projects/p/jobs/a/b", "projects/p/jobs/a-", "projects/-/jobs/a", "projects/p/jobs/a\n"}) {
    EXPECT_THAT(Error(ParseJobName("name", bad)),
                HasSubstr("expected projects/{project}/jobs/{job}"))
        << bad;
  }
  EXPECT_THAT(Error(ParseProjectName("parent", "projects/-", false)), HasSubstr("parent: found"));
  EXPECT_TRUE(ParseProjectName("parent", "projects/-", true).ok());
  EXPECT_FALSE(ParseNodeName("name", "nodes/A").ok());
  EXPECT_TRUE(ParseNodeName("name", "nodes/host-1.example").ok());
  EXPECT_FALSE(ParseCheckpointName("name", "projects/p/jobs/j/checkpoints/-1").ok());
  EXPECT_EQ(ParseCheckpointName("name", "projects/p/jobs/j/checkpoints/12")->step, 12);
  EXPECT_FALSE(
      ParseCheckpointName("name", "projects/p/jobs/j/checkpoints/latest")->step.has_value());
  EXPECT_TRUE(ParseCheckpointName("name", "projects/p/jobs/j/checkpoints/best")->best);
}

TEST(Names, LongGarbageIsCutInMessages) {
  EXPECT_LT(Error(ParseJobName("name", std::string(100000, '\x01'))).size(), 2000u);
}

TEST(Names, EtagNamesAVersionOfThisJobOnly) {
  JobRecord job{.uid = "0123456789abcdef", .version = 3};
  EXPECT_EQ(*VersionOfEtag("", job), 0);
  EXPECT_EQ(*VersionOfEtag(EtagOf(job), job), job.version);
  EXPECT_EQ(*VersionOfEtag("01234567-2", job), 2);  // the store knows whether that matters
  for (const char* wrong : {"ffffffff-3", "01234567-", "01234567-0", "01234567-x", "3"}) {
    EXPECT_EQ(VersionOfEtag(wrong, job).status().code(), absl::StatusCode::kAborted) << wrong;
  }
}

TEST(Names, RequestIdGivesTheSameJobIdAgain) {
  EXPECT_EQ(JobIdForRequest("gpt", "p", "r1"), JobIdForRequest("gpt", "p", "r1"));
  EXPECT_NE(JobIdForRequest("gpt", "p", "r1"), JobIdForRequest("gpt", "q", "r1"));
  EXPECT_TRUE(IsResourceId(JobIdForRequest("linear_probe", "p", "r1")));
  EXPECT_TRUE(CheckRequestId(std::string(64, 'a')).ok());
  EXPECT_FALSE(CheckRequestId(std::string(65, 'a')).ok());
  EXPECT_FALSE(CheckRequestId("a\nb").ok());
}

TEST(Listen, OnlyAddressesOfThisMachineAreItsOwn) {
  for (const char* own : {"127.0.0.1:7070", "127.8.9.1:0", "localhost:1", "[::1]:7070"}) {
    EXPECT_TRUE(IsLoopback(own)) << own;
  }
  for (const char* open : {"0.0.0.0:7070", "[::]:7070", "10.0.0.1:7070", "127.example.org:7070",
                           "host:7070", "128.0.0.1:7070"}) {
    EXPECT_FALSE(IsLoopback(open)) << open;
  }
}

TEST(PageToken, ComesBackOnlyForItsOwnQuestion) {
  const std::string token = MakePageToken("jobs\np\nstate = RUNNING", "cursor");
  EXPECT_EQ(*ReadPageToken("jobs\np\nstate = RUNNING", token), "cursor");
  EXPECT_FALSE(ReadPageToken("jobs\nq\nstate = RUNNING", token).ok());
  EXPECT_FALSE(ReadPageToken("jobs\np\nstate = RUNNING", token + "A").ok());
  EXPECT_FALSE(ReadPageToken("jobs\np\nstate = RUNNING", "x").ok());
  EXPECT_FALSE(ReadPageToken("q", std::string(100000, 'A')).ok());
  EXPECT_EQ(*ReadPageToken("q", ""), "");
  EXPECT_EQ(MakePageToken("q", ""), "");
}

TEST(Filter, TermsAreParsed) {
  const auto terms = ParseFilter(
      R"( state = RUNNING AND labels.team="vi\"sion" AND priority>=-5 AND job_id != "a b" )");
  ASSERT_TRUE(terms.ok()) << terms.status();
  ASSERT_EQ(terms->size(), 4u);
  EXPECT_EQ((*terms)[0].value, "RUNNING");
  EXPECT_EQ((*terms)[1].label, "team");
  EXPECT_EQ((*terms)[1].value, "vi\"sion");
  EXPECT_EQ((*terms)[2].op, JobFilter::Op::kGe);
  EXPECT_EQ((*terms)[2].value, "-5");
  EXPECT_EQ((*terms)[3].op, JobFilter::Op::kNe);
  EXPECT_TRUE(ParseFilter("")->empty());
  EXPECT_TRUE(ParseFilter("   ")->empty());
}

TEST(Filter, ErrorsSayColumnFoundAndExpected) {
  const std::pair<const char*, const char*> kCases[] = {
      {"stat = RUNNING",
       "column 1: found 'stat', expected state, priority, job_id or labels.KEY "
       "(did you mean 'state'?)"},
      {"state = runing",
       "column 9: found 'runing', expected a job state (did you mean 'RUNNING'?)"},
      {"state ~ RUNNING", "column 7: found '~'"},
      {"state < RUNNING", "column 7: found '<', expected = or != after state"},
      {"state =", "column 8: found the end, expected a value"},
      {"priority > high", "column 12: found 'high', expected a number"},
      {"state = RUNNING OR state = FAILED", "column 17: found 'OR', expected AND"},
      {"state = RUNNING AND", "column 20: found the end"},
      {"labels. = a", "column 1: found 'labels.'"},
      {"job_id = \"a", "expected a closing quote"},
      {"AND", "column 1: found 'AND'"},
  };
  for (const auto& [text, message] : kCases) {
    EXPECT_THAT(Error(ParseFilter(text)), HasSubstr(message)) << text;
  }
  EXPECT_FALSE(ParseFilter(std::string(3000, ' ')).ok());
}

TEST(Convert, InfinitiesAndNanSurvive) {
  MetricRecord metric{.step = 3, .split = MetricSplit::kValidation};
  metric.values = {{"loss", std::numeric_limits<double>::quiet_NaN()},
                   {"perplexity", std::numeric_limits<double>::infinity()}};
  const v1::MetricPoint point = ToProto(metric);
  EXPECT_EQ(point.split(), v1::MetricPoint::VALIDATION);
  EXPECT_TRUE(std::isnan(point.values().at("loss")));
  EXPECT_TRUE(std::isinf(point.values().at("perplexity")));
}

TEST(Convert, EveryStateHasItsProto) {
  for (JobState state : kAllJobStates) {
    EXPECT_EQ(v1::JobState_Name(ToProto(state)), JobStateName(state));
  }
}

TEST(Convert, TimesThatNeverCameAreLeftOut) {
  JobRecord job;
  job.project = "p";
  job.job_id = "j";
  job.create_time = absl::FromUnixMillis(1500);
  const auto proto = ToProto(job);
  ASSERT_TRUE(proto.ok());
  EXPECT_EQ(proto->create_time().seconds(), 1);
  EXPECT_EQ(proto->create_time().nanos(), 500000000);
  EXPECT_FALSE(proto->has_start_time());
  EXPECT_FALSE(proto->has_end_time());
}

TEST(Convert, WhatGpusDoIsToldWhileTheNodeIsReady) {
  NodeRecord node{.name = "n1"};
  node.slots = {{.index = 0, .device = "CUDA"}, {.index = 1, .device = "CUDA"}};
  node.report.usage = {{.index = 1, .utilization = 0.5, .power_watts = 300}, {.index = 7}};
  SchedulerSnapshot snapshot;
  snapshot.now = absl::FromUnixSeconds(100);
  node.lease_end = absl::FromUnixSeconds(110);
  const v1::Node ready = ToProto(node, snapshot);
  EXPECT_FALSE(ready.slots(0).has_usage());
  EXPECT_EQ(ready.slots(1).usage().utilization(), 0.5);
  EXPECT_EQ(ready.slots(1).usage().power_watts(), 300);
  node.lease_end = absl::FromUnixSeconds(90);
  EXPECT_FALSE(ToProto(node, snapshot).slots(1).has_usage());
}

v1::Register GoodRegister() {
  v1::Register message;
  message.set_node("n1");
  message.set_incarnation("i");
  message.set_address("127.0.0.1");
  message.set_protocol_version(1);
  v1::Slot& slot = *message.add_slots();
  slot.set_device(v1::Resources::CPU);
  slot.set_memory_bytes(1 << 30);
  slot.set_cpu_threads(2);
  return message;
}

TEST(Convert, WhatAMachineTellsIsToldWhileTheNodeIsReady) {
  SchedulerSnapshot snapshot{.now = absl::FromUnixSeconds(1000000)};
  NodeRecord node{.name = "n"};
  node.lease_end = snapshot.now + absl::Seconds(5);
  node.report.memory_free_bytes = 7;
  node.report.failed_starts = 3;
  node.failures = {{.job_uid = "u",
                    .job_id = "job",
                    .attempt = 2,
                    .category = "DEVICE",
                    .time = snapshot.now - absl::Hours(1)}};
  node.cordon = "sick";
  v1::Node proto = ToProto(node, snapshot);
  EXPECT_EQ(proto.state(), v1::Node::CORDONED);
  EXPECT_EQ(proto.cordon_reason(), "sick");
  EXPECT_EQ(proto.report().memory_free_bytes(), 7);
  EXPECT_EQ(proto.report().failed_starts(), 3);
  ASSERT_EQ(proto.failures_size(), 1);
  EXPECT_EQ(proto.failures(0).job_id(), "job");
  EXPECT_EQ(proto.failures(0).time().seconds(), 1000000 - 3600);
  node.reachable = false;
  EXPECT_FALSE(ToProto(node, snapshot).has_report());
}

TEST(Decode, WhatASlotComputesWithIsKeptAndShown) {
  v1::Register message = GoodRegister();
  EXPECT_TRUE(DecodeRegister(message)->slots[0].arithmetic.empty()) << "an agent of before";
  auto& values = *message.mutable_slots(0)->mutable_arithmetic()->mutable_values();
  values["device"] = "CPU";
  values["loops"] = "avx2";
  const NodeRecord node = DecodeRegister(message).value();
  EXPECT_EQ(node.slots[0].arithmetic, (Arithmetic{{"device", "CPU"}, {"loops", "avx2"}}));
  const v1::Node shown = ToProto(node, SchedulerSnapshot());
  EXPECT_EQ(shown.slots(0).arithmetic().values().at("loops"), "avx2");
  EXPECT_FALSE(ToProto(DecodeRegister(GoodRegister()).value(), SchedulerSnapshot())
                   .slots(0)
                   .has_arithmetic());
}

TEST(Decode, WhatARankComputesWithIsTakenOrEndsTheRank) {
  v1::EventBatch batch;
  batch.mutable_key()->set_job_uid("u");
  v1::RankEvent& event = *batch.add_events();
  event.set_sequence(1);
  event.mutable_restored()->set_step(7);
  const auto restored = [&] { return DecodeEvents(batch, "file:///c").at(0).what; };
  EXPECT_TRUE(std::get<RankRestored>(restored()).arithmetic.empty()) << "a worker of before";
  auto& values = *event.mutable_restored()->mutable_arithmetic();
  values["loops"] = "avx2";
  EXPECT_EQ(std::get<RankRestored>(restored()).arithmetic, (Arithmetic{{"loops", "avx2"}}));
  EXPECT_EQ(std::get<RankRestored>(restored()).step, 7);
  for (const std::string& wrong : {std::string(), std::string("a;b"), std::string(129, 'x')}) {
    values["loops"] = wrong;
    EXPECT_NE(std::get<FailureRecord>(restored()).message.find("restored.arithmetic"),
              std::string::npos)
        << wrong;
  }
}

TEST(Decode, RegistrationIsCheckedFieldByField) {
  ASSERT_TRUE(DecodeRegister(GoodRegister()).ok());
  const auto tell = [](v1::Register& m, const std::string& name, const std::string& value) {
    (*m.mutable_slots(0)->mutable_arithmetic()->mutable_values())[name] = value;
  };
  const std::pair<const char*, std::function<void(v1::Register&)>> kCases[] = {
      {"register.node", [](auto& m) { m.set_node("Bad Node"); }},
      {"register.node", [](auto& m) { m.set_node(std::string(64, 'a')); }},
      {"register.incarnation", [](auto& m) { m.clear_incarnation(); }},
      {"register.address", [](auto& m) { m.set_address("a\nb"); }},
      {"register.slots[0].memory_bytes", [](auto& m) { m.mutable_slots(0)->set_memory_bytes(-1); }},
      {"register.slots[0].device", [](auto& m) { m.mutable_slots(0)->clear_device(); }},
      {"register.slots[0].index", [](auto& m) { m.mutable_slots(0)->set_index(-1); }},
      {"register.slots[0].arithmetic", [&](auto& m) { tell(m, "loops", "a\nb"); }},
      {"register.slots[0].arithmetic", [&](auto& m) { tell(m, "loops", ""); }},
      {"register.slots[0].arithmetic", [&](auto& m) { tell(m, "loops", std::string(129, 'x')); }},
      {"register.slots[0].arithmetic", [&](auto& m) { tell(m, "a;b", "1"); }},
      {"register.slots[0].arithmetic",
       [&](auto& m) {
         for (int i = 0; i < 33; ++i) tell(m, absl::StrCat("n", i), "1");
       }},
      {"register.address", [](auto& m) { m.set_address("host:65536"); }},
      {"register.address", [](auto& m) { m.set_address("host:-5"); }},
      {"register.address", [](auto& m) { m.set_address("host:"); }},
      {"register.slots[1].index", [](auto& m) { *m.add_slots() = m.slots(0); }},
      {"register.labels", [](auto& m) { (*m.mutable_labels())[""] = "x"; }},
      {"key.attempt", [](auto& m) { m.add_running()->set_job_uid("u"); }},
      {"register.running",
       [](auto& m) {
         for (int i = 0; i < 4097; ++i) m.add_running()->set_attempt(1);
       }},
  };
  for (const auto& [field, spoil] : kCases) {
    v1::Register message = GoodRegister();
    spoil(message);
    EXPECT_THAT(Error(DecodeRegister(message)), HasSubstr(field));
  }
  v1::Register newer = GoodRegister();
  newer.set_protocol_version(2);
  EXPECT_EQ(DecodeRegister(newer).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Decode, AgentAndServerGoByTheNewestProtocolThatBothSpeak) {
  struct Case {
    int oldest, newest;
    ProtocolRange ours;
    int agreed;  // 0: none
  };
  for (const Case& c : std::vector<Case>{{0, 1, {1, 1}, 1},  // an agent of before tells one
                                         {1, 2, {1, 1}, 1},  // an agent that was upgraded first
                                         {1, 1, {1, 2}, 1},  // a server that was
                                         {2, 5, {3, 4}, 4},
                                         {2, 2, {1, 1}, 0},
                                         {1, 2, {3, 4}, 0},
                                         {3, 2, {1, 4}, 0},
                                         {-1, 2, {1, 4}, 0},
                                         {0, 0, {1, 1}, 0}}) {
    v1::Register message = GoodRegister();
    message.set_oldest_protocol_version(c.oldest);
    message.set_protocol_version(c.newest);
    const absl::StatusOr<int> agreed = AgreeOnProtocol(message, c.ours);
    EXPECT_EQ(agreed.value_or(0), c.agreed) << c.oldest << " to " << c.newest;
  }
  v1::Register late = GoodRegister();
  const absl::Status refused = AgreeOnProtocol(late, {.oldest = 2, .newest = 3}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("use a newer trainyard-agent"));
}

v1::EventBatch Batch(const std::function<void(v1::RankEvent&)>& fill, int64_t sequence = 1) {
  v1::EventBatch batch;
  batch.mutable_key()->set_job_uid("u");
  batch.mutable_key()->set_attempt(1);
  v1::RankEvent& event = *batch.add_events();
  event.set_sequence(sequence);
  fill(event);
  return batch;
}

TEST(Decode, NonsenseOfAWorkerBecomesItsFailureInTheSamePlace) {
  const std::pair<const char*, std::function<void(v1::RankEvent&)>> kCases[] = {
      {"metrics.step: found -4", [](auto& e) { e.mutable_metrics()->set_step(-4); }},
      {"metrics.step", [](auto& e) { e.mutable_metrics()->set_step(INT64_MAX); }},
      {"metrics.split", [](auto& e) { e.mutable_metrics()->set_step(1); }},
      {"metrics.values",
       [](auto& e) {
         e.mutable_metrics()->set_step(1);
         e.mutable_metrics()->set_split(v1::MetricPoint::TRAIN);
         for (int i = 0; i < 100; ++i)
           (*e.mutable_metrics()->mutable_values())[std::to_string(i)] = 1;
       }},
      {"restored.step", [](auto& e) { e.mutable_restored()->set_step(-1); }},
      {"checkpoint.uri", [](auto& e) { e.mutable_checkpoint()->set_step(5); }},
      {"checkpoint.manifest_sha256",
       [](auto& e) {
         e.mutable_checkpoint()->set_step(5);
         e.mutable_checkpoint()->set_uri("file:///c/p/j-u/step-5");
         e.mutable_checkpoint()->set_manifest_sha256("XYZ");
       }},
      {"finished.outcome", [](auto& e) { e.mutable_finished()->set_step(5); }},
      {"failure.category", [](auto& e) { e.mutable_failure()->set_message("x"); }},
  };
  for (const auto& [message, spoil] : kCases) {
    v1::EventBatch batch = Batch(spoil, 7);
    v1::RankEvent& next = *batch.add_events();
    next.set_sequence(8);
    next.mutable_notice()->set_message("late");
    const std::vector<RankEventRecord> events = DecodeEvents(batch, "file:///c");
    ASSERT_EQ(events.size(), 1u) << "what follows is left out";
    EXPECT_EQ(events[0].sequence, 7);
    const auto* failure = std::get_if<FailureRecord>(&events[0].what);
    ASSERT_NE(failure, nullptr) << message;
    EXPECT_THAT(failure->message, HasSubstr(message));
    EXPECT_FALSE(failure->retryable);
  }
}

TEST(Decode, NanIsAValueAndLongTextIsCutAtACharacter) {
  const auto metrics = DecodeEvents(Batch([](auto& e) {
                                      e.mutable_metrics()->set_step(1);
                                      e.mutable_metrics()->set_split(v1::MetricPoint::TRAIN);
                                      (*e.mutable_metrics()->mutable_values())["loss"] =
                                          std::nan("");
                                      e.set_time_us(INT64_MAX);
                                    }),
                                    "file:///c");
  EXPECT_TRUE(std::isnan(std::get<MetricRecord>(metrics.at(0).what).values.at("loss")));
  EXPECT_LT(metrics.at(0).time, absl::FromUnixSeconds(300000000000));

  std::string text(4095, 'a');
  text += "é";  // would be cut in the middle
  text += std::string(1, '\0') + "tail";
  const auto notice =
      DecodeEvents(Batch([&](auto& e) { e.mutable_notice()->set_message(text); }), "file:///c");
  EXPECT_EQ(std::get<NoticeRecord>(notice.at(0).what).message, std::string(4095, 'a'));
}

TEST(Decode, EventOfANewerWorkerKeepsItsNumber) {
  const auto events = DecodeEvents(Batch([](auto&) {}, 4), "file:///c");
  EXPECT_EQ(events.at(0).sequence, 4);
  EXPECT_TRUE(std::holds_alternative<NoticeRecord>(events.at(0).what));
}

}  // namespace
}  // namespace trainyard
