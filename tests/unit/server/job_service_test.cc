#include <gmock/gmock.h>
#include <grpcpp/impl/client_unary_call.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/memory/memory_stores.h"
#include "storage/records/change.h"
#include "storage/records/reason_codes.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

class JobServiceTest : public ::testing::Test {
 protected:
  grpc::Status Submit(const v1::SubmitJobRequest& request, const std::string& token = kAdminToken) {
    response_.Clear();
    return rig_.jobs().SubmitJob(Rig::Context(token).get(), request, &response_);
  }
  static v1::SubmitJobRequest Request(const v1::Job& job = SmallJob()) {
    v1::SubmitJobRequest request;
    request.set_parent("projects/default");
    *request.mutable_job() = job;
    return request;
  }
  template <typename Call>
  void ExpectRefused(grpc::StatusCode code, const std::string& message, const Call& call) {
    const grpc::Status status = call();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(message));
  }

  Rig rig_;
  v1::Job response_;
};

TEST_F(JobServiceTest, SubmittedJobIsPlannedAndWaitsWithAReason) {
  v1::Job job = SmallJob("first");
  job.set_priority(3);
  (*job.mutable_labels())["team"] = "vision";
  ASSERT_TRUE(Submit(Request(job)).ok());
  EXPECT_EQ(response_.name(), "projects/default/jobs/first");
  EXPECT_EQ(response_.state(), v1::QUEUED);
  EXPECT_EQ(response_.creator(), "user:ann");
  EXPECT_GT(response_.plan().parameters(), 0);
  EXPECT_EQ(response_.total_steps(), 3);
  EXPECT_EQ(response_.spec().training().seed(), 1337u) << "defaults are filled in";
  EXPECT_FALSE(response_.etag().empty());
  const v1::Job waiting = rig_.WaitFor(response_.name(), [](const v1::Job& seen) {
    return seen.reason().code() == reason::kNoNodes;
  });
  EXPECT_THAT(waiting.reason().message(), HasSubstr("needs 1 slot of"));
}

TEST_F(JobServiceTest, WhoSubmitsBehindOthersIsToldAtOnceWhyTheyWait) {
  ASSERT_TRUE(Submit(Request(SmallJob("first"))).ok());
  EXPECT_EQ(response_.reason().code(), reason::kSubmitted) << "nobody knows yet";
  rig_.WaitFor(response_.name(),
               [](const v1::Job& seen) { return seen.reason().code() == reason::kNoNodes; });
  ASSERT_TRUE(Submit(Request(SmallJob("second"))).ok());
  EXPECT_EQ(response_.reason().code(), reason::kNoNodes);
  EXPECT_THAT(response_.reason().message(), HasSubstr("needs 1 slot of"));
  EXPECT_EQ(rig_.Get(response_.name()).reason().code(), reason::kNoNodes);
  const auto stored = rig_.stores().jobs().Get({"default", "second"});
  const auto feed = rig_.stores().jobs().ReadFeed(stored->uid, 0, 10);
  ASSERT_TRUE(feed.ok());
  EXPECT_EQ(std::get<StateChangeRecord>(feed->front().what).reason, SubmittedReason());
  // Of another demand nobody waits.
  v1::Job large = SmallJob("large");
  large.mutable_spec()->mutable_model()->mutable_gpt()->set_width(64);
  ASSERT_TRUE(Submit(Request(large)).ok());
  EXPECT_EQ(response_.reason().code(), reason::kSubmitted);
}

TEST_F(JobServiceTest, EveryWrongFieldIsNamed) {
  using Spoil = std::function<void(v1::SubmitJobRequest&)>;
  const std::tuple<const char*, grpc::StatusCode, Spoil> kCases[] = {
      {"parent: found 'projects/UPPER'", grpc::INVALID_ARGUMENT,
       [](auto& r) { r.set_parent("projects/UPPER"); }},
      {"parent: found ''", grpc::INVALID_ARGUMENT, [](auto& r) { r.clear_parent(); }},
      {"job: missing", grpc::INVALID_ARGUMENT, [](auto& r) { r.clear_job(); }},
      {"job.spec: missing", grpc::INVALID_ARGUMENT, [](auto& r) { r.mutable_job()->clear_spec(); }},
      {"job.job_id: found 'Bad Id'", grpc::INVALID_ARGUMENT,
       [](auto& r) { r.mutable_job()->set_job_id("Bad Id"); }},
      {"job.state: only the server writes it", grpc::INVALID_ARGUMENT,
       [](auto& r) { r.mutable_job()->set_state(v1::RUNNING); }},
      {"job.uid: only the server writes it", grpc::INVALID_ARGUMENT,
       [](auto& r) { r.mutable_job()->set_uid("x"); }},
      {"job.priority: found 1001", grpc::INVALID_ARGUMENT,
       [](auto& r) { r.mutable_job()->set_priority(1001); }},
      {"job.labels: found 'Team'", grpc::INVALID_ARGUMENT,
       [](auto& r) { (*r.mutable_job()->mutable_labels())["Team"] = "x"; }},
      {"job.labels.a: found 200 bytes", grpc::INVALID_ARGUMENT,
       [](auto& r) { (*r.mutable_job()->mutable_labels())["a"] = std::string(200, 'x'); }},
      {"request_id: found", grpc::INVALID_ARGUMENT,
       [](auto& r) { r.set_request_id(std::string(65, 'x')); }},
      {"spec.training.batch_size", grpc::INVALID_ARGUMENT,
       [](auto& r) { r.mutable_job()->mutable_spec()->mutable_training()->set_batch_size(0); }},
      {"spec.parallel.sequence", grpc::UNIMPLEMENTED,
       [](auto& r) { r.mutable_job()->mutable_spec()->mutable_parallel()->set_sequence(2); }},
      {"spec.data.text.path: /nowhere/text.txt: No such file", grpc::INVALID_ARGUMENT,
       [](auto& r) {
         r.mutable_job()->mutable_spec()->mutable_data()->mutable_text()->set_tokenizer(
             v1::TextData::CHARACTERS);
       }},
  };
  for (const auto& [message, code, spoil] : kCases) {
    v1::SubmitJobRequest request = Request();
    spoil(request);
    ExpectRefused(code, message, [&] { return Submit(request); });
  }
}

TEST_F(JobServiceTest, FactsComeFromAFileThatTheServerReads) {
  char path[] = "/tmp/job_service_test_XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_TRUE(WriteAll(fd, std::string(500, 'a') + std::string(500, 'b'), path).ok());
  close(fd);
  v1::Job job = SmallJob();
  job.mutable_spec()->mutable_data()->mutable_text()->set_path(path);
  job.mutable_spec()->mutable_data()->mutable_text()->set_tokenizer(v1::TextData::CHARACTERS);
  EXPECT_TRUE(Submit(Request(job)).ok());
  unlink(path);
}

// A checkpoint of the small job's model, as its configuration alone describes it.
TEST_F(JobServiceTest, StartWeightsMustFitWhereTheServerSeesThem) {
  char path[] = "/tmp/job_service_test_XXXXXX";
  ASSERT_NE(mkdtemp(path), nullptr);
  const std::string folder = path;
  v1::Job job = SmallJob("tuned");
  job.mutable_spec()->mutable_fine_tune()->set_from(folder + "/absent");
  EXPECT_TRUE(Submit(Request(job)).ok()) << "the worker may see it";
  job.set_job_id("other");
  job.mutable_spec()->mutable_fine_tune()->set_from(folder);
  ExpectRefused(grpc::INVALID_ARGUMENT, "spec.fine_tune.from: " + folder + ": has no config.json",
                [&] { return Submit(Request(job)); });
  ASSERT_TRUE(WriteFileAtomically(folder + "/config.json", "{\"model_type\": \"bert\"}").ok());
  const std::string empty("\x08\0\0\0\0\0\0\0{}      ", 16);
  ASSERT_TRUE(WriteFileAtomically(folder + "/model.safetensors", empty).ok());
  ExpectRefused(grpc::INVALID_ARGUMENT, "set spec.model.bert, or name another folder",
                [&] { return Submit(Request(job)); });
  const v1::Gpt& gpt = job.spec().model().gpt();
  ASSERT_TRUE(WriteFileAtomically(
                  folder + "/config.json",
                  absl::StrCat("{\"model_type\": \"gpt2\", \"n_layer\": ", gpt.layers(),
                               ", \"n_head\": ", gpt.heads(), ", \"n_embd\": ", gpt.width(),
                               ", \"n_positions\": ", gpt.context(), ", \"vocab_size\": 256}"))
                  .ok());
  v1::SubmitJobRequest request = Request(job);
  request.set_validate_only(true);  // as `trainyard plan` asks
  ExpectRefused(grpc::INVALID_ARGUMENT, "it lacks", [&] { return Submit(request); });
  job.mutable_spec()->mutable_fine_tune()->add_reinitialize("*");
  EXPECT_TRUE(Submit(Request(job)).ok()) << response_.DebugString();
  std::filesystem::remove_all(folder);
}

TEST_F(JobServiceTest, BpeIsPlannedForItsVocabularyAndCountedInTokens) {
  char path[] = "/tmp/job_service_test_XXXXXX";
  const int fd = mkstemp(path);
  std::string content;
  for (int i = 0; i < 500; ++i) absl::StrAppend(&content, "the line ", i, "\n");
  ASSERT_TRUE(WriteAll(fd, content, path).ok());
  close(fd);
  v1::Job job = SmallJob();
  v1::TextData& text = *job.mutable_spec()->mutable_data()->mutable_text();
  text.set_path(path);
  text.clear_vocab_size();
  job.mutable_spec()->mutable_training()->clear_steps();
  job.mutable_spec()->mutable_training()->set_epochs(4);
  text.set_tokenizer(v1::TextData::BYTES);
  ASSERT_TRUE(Submit(Request(job)).ok());
  const v1::PlanSummary bytes = response_.plan();
  text.set_tokenizer(v1::TextData::BPE);
  text.set_vocab_size(300);
  ASSERT_TRUE(Submit(Request(job)).ok());
  EXPECT_GT(response_.plan().parameters(), bytes.parameters());
  EXPECT_LT(response_.plan().total_steps(), bytes.total_steps() / 2);
  unlink(path);
}

TEST_F(JobServiceTest, ReplayGetsTheFirstAnswerAndOtherPayloadIsRefused) {
  v1::SubmitJobRequest request = Request();
  request.set_request_id("r-1");
  ASSERT_TRUE(Submit(request).ok());
  const v1::Job first = response_;
  ASSERT_TRUE(Submit(request).ok());
  EXPECT_EQ(response_.uid(), first.uid());
  EXPECT_EQ(response_.name(), first.name());
  request.mutable_job()->set_priority(1);
  EXPECT_EQ(Submit(request).error_code(), grpc::ALREADY_EXISTS);
  request.mutable_job()->set_priority(0);
  request.mutable_job()->set_job_id("another");
  EXPECT_EQ(Submit(request).error_code(), grpc::ALREADY_EXISTS);
}

TEST_F(JobServiceTest, ReplayIsAnsweredAfterTheDataHasGone) {
  char path[] = "/tmp/job_service_test_XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_TRUE(WriteAll(fd, std::string(1000, 'a') + "b", path).ok());
  close(fd);
  v1::SubmitJobRequest request = Request();
  request.set_request_id("r-2");
  v1::TextData& text = *request.mutable_job()->mutable_spec()->mutable_data()->mutable_text();
  text.set_path(path);
  text.set_tokenizer(v1::TextData::CHARACTERS);
  ASSERT_TRUE(Submit(request).ok());
  const std::string uid = response_.uid();
  unlink(path);
  ASSERT_TRUE(Submit(request).ok());
  EXPECT_EQ(response_.uid(), uid);
}

TEST_F(JobServiceTest, TakenJobIdIsRefused) {
  ASSERT_TRUE(Submit(Request(SmallJob("a"))).ok());
  EXPECT_EQ(Submit(Request(SmallJob("a"))).error_code(), grpc::ALREADY_EXISTS);
}

TEST_F(JobServiceTest, ValidateOnlyPlansAndWritesNothing) {
  v1::SubmitJobRequest request = Request(SmallJob("dry"));
  request.set_validate_only(true);
  ASSERT_TRUE(Submit(request).ok());
  EXPECT_GT(response_.plan().bytes_per_slot(), 0);
  EXPECT_EQ(response_.name(), "projects/default/jobs/dry");
  EXPECT_TRUE(response_.uid().empty());
  v1::GetJobRequest get;
  get.set_name(response_.name());
  EXPECT_EQ(rig_.jobs().GetJob(Rig::Context().get(), get, &response_).error_code(),
            grpc::NOT_FOUND);
}

TEST_F(JobServiceTest, ModelTooLargeForEveryNodeIsRefusedWithWhatWouldFit) {
  ScriptedAgent agent(rig_);
  agent.Register("small", 1, "i1", 1 << 20);
  agent.Welcomed();
  ExpectRefused(grpc::FAILED_PRECONDITION, "the largest slot has 1.0 MiB",
                [&] { return Submit(Request()); });
  v1::SubmitJobRequest cuda = Request();
  cuda.mutable_job()->mutable_spec()->mutable_resources()->set_device(v1::Resources::CUDA);
  ExpectRefused(grpc::FAILED_PRECONDITION, "no node that ever registered has a CUDA slot",
                [&] { return Submit(cuda); });
}

// The 600 MiB of its context alone are more than this GPU has; its host's memory counts nothing.
TEST_F(JobServiceTest, AJobForGpusIsHeldAgainstWhatAGpuMustHold) {
  v1::SubmitJobRequest request = Request();
  request.mutable_job()->mutable_spec()->mutable_resources()->set_device(v1::Resources::CUDA);
  request.set_validate_only(true);
  ASSERT_TRUE(Submit(request).ok());
  const int64_t needed = response_.plan().bytes_per_slot();
  EXPECT_GT(needed, int64_t{500} << 20);
  ScriptedAgent agent(rig_);
  agent.Register("gpu", 1, "i1", needed - 1, v1::Resources::CUDA);
  agent.Welcomed();
  ExpectRefused(grpc::FAILED_PRECONDITION, "per slot (of a GPU in part an estimate), but the",
                [&] { return Submit(request); });
  ScriptedAgent larger(rig_);
  larger.Register("larger", 1, "i2", needed, v1::Resources::CUDA);
  larger.Welcomed();
  EXPECT_TRUE(Submit(request).ok());
}

TEST_F(JobServiceTest, AJobThatNearlyFitsIsToldWhatWould) {
  v1::SubmitJobRequest request = Request();
  request.set_validate_only(true);
  ASSERT_TRUE(Submit(request).ok());
  const int64_t slot = response_.plan().bytes_per_slot() - 1;
  ScriptedAgent agent(rig_);
  agent.Register("nearly", 1, "i1", slot);
  agent.Welcomed();
  ExpectRefused(grpc::FAILED_PRECONDITION,
                absl::StrCat("; set training.recompute.slot_bytes to ", slot),
                [&] { return Submit(request); });
  request.mutable_job()->mutable_spec()->mutable_training()->mutable_recompute()->set_slot_bytes(
      slot);
  ASSERT_TRUE(Submit(request).ok());
  EXPECT_LE(response_.plan().bytes_per_slot(), slot);
}

TEST_F(JobServiceTest, GangLargerThanAllNodesTogetherIsRefusedWithWhatWouldFit) {
  v1::SubmitJobRequest gang = Request(SmallJob("before"));
  gang.mutable_job()->mutable_spec()->mutable_resources()->set_min_slots(4);
  gang.mutable_job()->mutable_spec()->mutable_resources()->set_device(v1::Resources::CPU);
  EXPECT_TRUE(Submit(gang).ok()) << "no node registered yet: nothing is known";
  {
    ScriptedAgent small(rig_);
    small.Register("small", 8, "i1", 1 << 20);
    small.Welcomed();
    ScriptedAgent one(rig_);
    one.Register("one", 1);
    one.Welcomed();
    ScriptedAgent two(rig_);
    two.Register("two", 1);
    two.Welcomed();
  }
  gang.mutable_job()->set_job_id("wide");
  ExpectRefused(grpc::FAILED_PRECONDITION, "min_slots of at most 2 would fit",
                [&] { return Submit(gang); });
  gang.set_validate_only(true);
  ExpectRefused(grpc::FAILED_PRECONDITION, "spec.resources.min_slots: needs 4 CPU slots of",
                [&] { return Submit(gang); });
  gang.set_validate_only(false);
  gang.mutable_job()->mutable_spec()->mutable_resources()->set_min_slots(2);
  EXPECT_TRUE(Submit(gang).ok()) << "the nodes are away, and may come back";
}

// Braces are a few bytes that stand for many.
TEST_F(JobServiceTest, ASpecThatUnfoldsToMoreThanAMessageHoldsIsRefused) {
  v1::Job job = SmallJob("wide");
  v1::JobSpec& spec = *job.mutable_spec();
  spec.mutable_model()->mutable_resnet()->set_depth(18);
  spec.mutable_model()->mutable_resnet()->set_stem(v1::Resnet::CIFAR);
  spec.mutable_data()->mutable_webdataset()->add_train("/data/{00000..99999}.tar");
  spec.mutable_data()->mutable_webdataset()->mutable_transform()->set_size(32);
  ExpectRefused(grpc::INVALID_ARGUMENT,
                " bytes with every archive of spec.data named, expected at most 1048576; use fewer",
                [&] { return Submit(Request(job)); });
}

// Its nodes are asked for by a submission whose caller hangs up meanwhile.
class SlowStores : public MemoryStores {
 public:
  using MemoryStores::MemoryStores;
  trainyard::FleetStore& fleet() override {
    absl::MutexLock lock(&mu_);
    asked_ = true;
    mu_.Await(absl::Condition(&open_));
    return MemoryStores::fleet();
  }
  void Close() {
    absl::MutexLock lock(&mu_);
    asked_ = open_ = false;
  }
  void Open() {
    absl::MutexLock lock(&mu_);
    open_ = true;
  }
  bool WaitUntilAsked() {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&asked_), kPatience);
  }

 private:
  absl::Mutex mu_;
  bool asked_ ABSL_GUARDED_BY(mu_) = false;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
};

TEST(Submission, OfACallerThatHasGoneWritesNothing) {
  auto owned = std::make_unique<SlowStores>(SystemClock());
  SlowStores& stores = *owned;
  Rig rig(std::move(owned), Rig::FastOptions());
  v1::SubmitJobRequest request;
  request.set_parent("projects/default");
  *request.mutable_job() = SmallJob("gone");
  const auto context = Rig::Context();
  stores.Close();
  grpc::Status status;
  std::thread caller([&] {
    v1::Job response;
    status = rig.jobs().SubmitJob(context.get(), request, &response);
  });
  EXPECT_TRUE(stores.WaitUntilAsked());
  context->TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::CANCELLED);
  // Later calls of the same connection come to the server behind the cancellation, but another of
  // gRPC's threads may overtake it with the first few.
  v1::GetJobRequest get;
  get.set_name("projects/default/jobs/gone");
  v1::Job job;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(rig.jobs().GetJob(Rig::Context().get(), get, &job).error_code(), grpc::NOT_FOUND);
  }
  stores.Open();
  rig.Restart();  // what was asked before is over then
  EXPECT_EQ(rig.jobs().GetJob(Rig::Context().get(), get, &job).error_code(), grpc::NOT_FOUND);
  rig.Submit(SmallJob("gone"));
}

TEST_F(JobServiceTest, CallsWithoutRightsAreRefused) {
  EXPECT_EQ(Submit(Request(), "").error_code(), grpc::UNAUTHENTICATED);
  EXPECT_EQ(Submit(Request(), "wrong").error_code(), grpc::UNAUTHENTICATED);
  EXPECT_EQ(Submit(Request(), kAgentToken).error_code(), grpc::PERMISSION_DENIED);
  v1::WatchJobRequest watch;
  watch.set_name("projects/default/jobs/a");
  v1::WatchJobResponse item;
  const auto context = Rig::Context("wrong");
  const auto stream = rig_.jobs().WatchJob(context.get(), watch);
  EXPECT_FALSE(stream->Read(&item));
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAUTHENTICATED);
}

TEST_F(JobServiceTest, ListPagesThroughAllJobsNewestFirst) {
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(Submit(Request(SmallJob("job-" + std::to_string(i)))).ok());
  v1::ListJobsRequest request;
  request.set_parent("projects/-");
  request.set_page_size(2);
  std::vector<std::string> seen;
  v1::ListJobsResponse page;
  do {
    request.set_page_token(page.next_page_token());
    ASSERT_TRUE(rig_.jobs().ListJobs(Rig::Context().get(), request, &page).ok());
    for (const v1::Job& job : page.jobs()) seen.push_back(job.job_id());
  } while (!page.next_page_token().empty());
  EXPECT_THAT(seen, ::testing::ElementsAre("job-4", "job-3", "job-2", "job-1", "job-0"));

  request.clear_page_token();
  request.set_filter("job_id = \"job-3\" AND state != FAILED");
  ASSERT_TRUE(rig_.jobs().ListJobs(Rig::Context().get(), request, &page).ok());
  ASSERT_EQ(page.jobs_size(), 1);

  request.set_page_token("bm9uc2Vuc2U");
  ExpectRefused(grpc::INVALID_ARGUMENT, "page_token",
                [&] { return rig_.jobs().ListJobs(Rig::Context().get(), request, &page); });
  request.clear_page_token();
  request.set_filter("stat = RUNNING");
  ExpectRefused(grpc::INVALID_ARGUMENT, "did you mean 'state'",
                [&] { return rig_.jobs().ListJobs(Rig::Context().get(), request, &page); });
  request.clear_filter();
  request.set_page_size(-1);
  ExpectRefused(grpc::INVALID_ARGUMENT, "page_size",
                [&] { return rig_.jobs().ListJobs(Rig::Context().get(), request, &page); });
}

TEST_F(JobServiceTest, PauseResumeCancelDeleteFollowTheTable) {
  ASSERT_TRUE(Submit(Request(SmallJob("a"))).ok());
  const std::string name = response_.name();
  v1::PauseJobRequest pause;
  pause.set_name(name);
  ASSERT_TRUE(rig_.jobs().PauseJob(Rig::Context().get(), pause, &response_).ok());
  EXPECT_EQ(response_.state(), v1::SUSPENDED);
  EXPECT_EQ(response_.reason().code(), reason::kPausedByUser);
  EXPECT_EQ(response_.reason().message(), "paused by user:ann");
  ASSERT_TRUE(rig_.jobs().PauseJob(Rig::Context().get(), pause, &response_).ok()) << "idempotent";
  v1::ResumeJobRequest resume;
  resume.set_name(name);
  ASSERT_TRUE(rig_.jobs().ResumeJob(Rig::Context().get(), resume, &response_).ok());
  EXPECT_EQ(response_.state(), v1::QUEUED);

  google::protobuf::Empty empty;
  v1::DeleteJobRequest remove;
  remove.set_name(name);
  EXPECT_EQ(rig_.jobs().DeleteJob(Rig::Context().get(), remove, &empty).error_code(),
            grpc::FAILED_PRECONDITION);
  v1::CancelJobRequest cancel;
  cancel.set_name(name);
  cancel.set_etag("12345678-1");
  EXPECT_EQ(rig_.jobs().CancelJob(Rig::Context().get(), cancel, &response_).error_code(),
            grpc::ABORTED);
  const std::string etag = rig_.Get(name).etag();
  cancel.set_etag(etag.substr(0, etag.find('-')) + "-1");
  EXPECT_EQ(rig_.jobs().CancelJob(Rig::Context().get(), cancel, &response_).error_code(),
            grpc::ABORTED);
  cancel.set_etag(etag);
  for (const char* why : {"", "its answer may have been lost: the etag is older only for that"}) {
    ASSERT_TRUE(rig_.jobs().CancelJob(Rig::Context().get(), cancel, &response_).ok()) << why;
    EXPECT_EQ(response_.state(), v1::CANCELLED);
  }
  EXPECT_EQ(rig_.jobs().PauseJob(Rig::Context().get(), pause, &response_).error_code(),
            grpc::FAILED_PRECONDITION);
  ASSERT_TRUE(rig_.jobs().DeleteJob(Rig::Context().get(), remove, &empty).ok());
  EXPECT_EQ(rig_.jobs().CancelJob(Rig::Context().get(), cancel, &response_).error_code(),
            grpc::NOT_FOUND);
}

TEST_F(JobServiceTest, ResizeChangesTheRangeOrSaysWhatItMayBe) {
  v1::Job job = SmallJob("a");
  job.mutable_spec()->mutable_training()->set_batch_size(24);
  job.mutable_spec()->mutable_parallel()->set_logical_ranks(6);
  job.mutable_spec()->mutable_resources()->set_device(v1::Resources::CPU);
  job.mutable_spec()->mutable_resources()->set_min_slots(2);
  job.mutable_spec()->mutable_resources()->set_max_slots(4);
  const grpc::Status submitted = Submit(Request(job));
  ASSERT_TRUE(submitted.ok()) << submitted.error_message();
  EXPECT_EQ(response_.min_slots(), 2);
  EXPECT_EQ(response_.max_slots(), 4);
  EXPECT_EQ(response_.slots(), 0);
  const auto resize = [this](std::optional<int> least, std::optional<int> most) {
    v1::ResizeJobRequest request;
    request.set_name("projects/default/jobs/a");
    if (least.has_value()) request.set_min_slots(*least);
    if (most.has_value()) request.set_max_slots(*most);
    return rig_.jobs().ResizeJob(Rig::Context().get(), request, &response_);
  };
  const auto refused = [&](std::optional<int> least, std::optional<int> most, const char* words) {
    ExpectRefused(grpc::INVALID_ARGUMENT, words, [&] { return resize(least, most); });
  };
  refused({}, {}, "min_slots, max_slots, layout, shard: found none");
  refused(0, {}, "min_slots: found 0, expected 1 to 6, the logical ranks of the job");
  refused({}, 7, "max_slots: found 7, expected 1 to 6");
  refused(-3, 5, "min_slots: found -3");
  refused({}, 1, "max_slots: found 1, expected at least min_slots, which is 2");
  refused(5, {}, "min_slots: found 5, expected at most max_slots, which is 4");
  refused(3, 2, "max_slots: found 2, expected at least min_slots, which is 3");
  ASSERT_TRUE(resize({}, 6).ok());
  EXPECT_EQ(response_.max_slots(), 6);
  ASSERT_TRUE(resize(1, 3).ok());
  EXPECT_EQ(response_.min_slots(), 1);
  EXPECT_EQ(response_.max_slots(), 3);
  EXPECT_EQ(response_.state(), v1::QUEUED);
  EXPECT_EQ(response_.spec().resources().max_slots(), 4);  // as it was submitted
  v1::CancelJobRequest cancel;
  cancel.set_name("projects/default/jobs/a");
  ASSERT_TRUE(rig_.jobs().CancelJob(Rig::Context().get(), cancel, &response_).ok());
  ASSERT_TRUE(resize(2, 2).ok()) << "for when it is resumed";
  EXPECT_EQ(response_.state(), v1::CANCELLED);
  EXPECT_EQ(response_.max_slots(), 2);
  refused(7, 7, "min_slots: found 7, expected 1 to 6");
}

TEST_F(JobServiceTest, ResizeChangesTheLayoutToOneThatTheSpecAllows) {
  v1::Job job = SmallJob("a");
  job.mutable_spec()->mutable_training()->set_batch_size(24);
  job.mutable_spec()->mutable_training()->set_micro_batch_size(4);
  job.mutable_spec()->mutable_parallel()->set_logical_ranks(6);
  job.mutable_spec()->mutable_parallel()->set_tensor(2);
  job.mutable_spec()->mutable_resources()->set_device(v1::Resources::CPU);
  job.mutable_spec()->mutable_resources()->set_min_slots(3);
  const grpc::Status submitted = Submit(Request(job));
  ASSERT_TRUE(submitted.ok()) << submitted.error_message();
  EXPECT_EQ(response_.layout().tensor(), 0);
  EXPECT_EQ(response_.shard(), v1::Parallel::NONE);
  const auto resize = [this](int tensor, int slots, v1::Parallel::Shard shard) {
    v1::ResizeJobRequest request;
    request.set_name("projects/default/jobs/a");
    if (tensor > 0) request.mutable_layout()->set_tensor(tensor);
    if (slots > 0) request.set_min_slots(slots);
    if (slots > 0) request.set_max_slots(slots);
    request.set_shard(shard);
    return rig_.jobs().ResizeJob(Rig::Context().get(), request, &response_);
  };
  const auto unset = v1::Parallel::SHARD_UNSPECIFIED;
  ExpectRefused(grpc::INVALID_ARGUMENT,
                "layout: does not go with min_slots, which is 3; set it as well, to a multiple of "
                "2 (parallel.layout) up to 12",
                [&] { return resize(2, 0, unset); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "layout.tensor: 3 is not in [1, 2]",
                [&] { return resize(3, 0, unset); });
  ASSERT_TRUE(resize(2, 4, unset).ok());
  EXPECT_EQ(response_.layout().tensor(), 2);
  EXPECT_EQ(response_.max_slots(), 4);
  EXPECT_EQ(response_.spec().parallel().layout().tensor(), 0);  // as it was submitted
  const std::string etag = response_.etag();
  ASSERT_TRUE(resize(2, 4, unset).ok());
  EXPECT_EQ(response_.etag(), etag) << "it has it already";
  ASSERT_TRUE(resize(0, 0, v1::Parallel::OPTIMIZER).ok());
  EXPECT_EQ(response_.layout().tensor(), 2);
  EXPECT_EQ(response_.shard(), v1::Parallel::OPTIMIZER);
  ASSERT_TRUE(resize(0, 6, unset).ok());
  EXPECT_EQ(response_.layout().tensor(), 2) << "another number of slots leaves it";
  ASSERT_TRUE(resize(1, 5, v1::Parallel::NONE).ok());
  EXPECT_FALSE(response_.has_layout());
  EXPECT_EQ(rig_.stores().jobs().Get({"default", "a"})->layout, "") << "that of its spec again";
  v1::CancelJobRequest cancel;
  cancel.set_name("projects/default/jobs/a");
  ASSERT_TRUE(rig_.jobs().CancelJob(Rig::Context().get(), cancel, &response_).ok());
  EXPECT_TRUE(resize(1, 5, unset).ok()) << "it has it already";
  ASSERT_TRUE(resize(2, 4, unset).ok());
  EXPECT_EQ(response_.layout().tensor(), 2);
  EXPECT_EQ(response_.state(), v1::CANCELLED);
}

TEST_F(JobServiceTest, ExplainSpeaksAsThePlannerDecides) {
  ASSERT_TRUE(Submit(Request(SmallJob("a"))).ok());
  ASSERT_TRUE(Submit(Request(SmallJob("b"))).ok());
  v1::ExplainJobRequest request;
  request.set_name(response_.name());
  v1::ExplainJobResponse why;
  ASSERT_TRUE(rig_.jobs().ExplainJob(Rig::Context().get(), request, &why).ok());
  EXPECT_EQ(why.queue_position(), 2);
  EXPECT_EQ(why.reason().code(), reason::kNoNodes);
  EXPECT_FALSE(why.has_earliest_start());
  EXPECT_EQ(why.suggestions_size(), 1);
}

TEST_F(JobServiceTest, StoreThatIsAwayIsUnavailable) {
  ASSERT_TRUE(Submit(Request(SmallJob("a"))).ok());
  rig_.memory().SetAway(true);
  v1::GetJobRequest get;
  get.set_name("projects/default/jobs/a");
  EXPECT_EQ(rig_.jobs().GetJob(Rig::Context().get(), get, &response_).error_code(),
            grpc::UNAVAILABLE);
  EXPECT_EQ(Submit(Request(SmallJob("b"))).error_code(), grpc::UNAVAILABLE);
  rig_.memory().SetAway(false);
  EXPECT_TRUE(Submit(Request(SmallJob("b"))).ok());
}

TEST_F(JobServiceTest, OversizedMessageIsRefused) {
  v1::SubmitJobRequest request = Request();
  request.set_request_id(std::string(5 << 20, 'x'));
  EXPECT_EQ(Submit(request).error_code(), grpc::RESOURCE_EXHAUSTED);
  request = Request();
  for (int i = 0; i < 100000; ++i) {
    request.mutable_job()->mutable_spec()->mutable_model()->mutable_mlp()->add_hidden(65536);
  }
  ExpectRefused(grpc::INVALID_ARGUMENT, "job.spec: found", [&] { return Submit(request); });
}

TEST_F(JobServiceTest, HealthAndReflectionAnswerWithoutCredentials) {
  const auto ask = [&](const char* method, const std::string& request) {
    const grpc::Slice slice(request);
    const grpc::ByteBuffer bytes(&slice, 1);
    grpc::ByteBuffer answer;
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC);
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer,
                                          grpc::ByteBuffer>(rig_.channel().get(), rpc,
                                                            Rig::Context("").get(), bytes, &answer);
    EXPECT_TRUE(status.ok()) << status.error_message();
    grpc::Slice flat;
    EXPECT_TRUE(answer.DumpToSingleSlice(&flat).ok());
    return std::string(flat.begin(), flat.end());
  };
  EXPECT_EQ(ask("/grpc.health.v1.Health/Check", ""), "\x08\x01") << "SERVING";
  // list_services = "": field 7 of ServerReflectionRequest.
  const std::string services = ask("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                   std::string("\x3a\0", 2));
  for (const char* name : {"JobService", "MetricService", "LogService", "CheckpointService",
                           "NodeService", "InfoService", "ExecutorService"}) {
    EXPECT_THAT(services, HasSubstr(std::string("trainyard.v1.") + name));
  }
}

TEST_F(JobServiceTest, InfoAnswersAgentsToo) {
  v1::ServerInfo info;
  ASSERT_TRUE(rig_.info().GetServerInfo(Rig::Context(kAgentToken).get(), {}, &info).ok());
  EXPECT_EQ(info.replica(), "test");
  EXPECT_EQ(info.schema_version(), 7);
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(rig_.info().GetServerInfo(Rig::Context("").get(), {}, &info).error_code(),
            grpc::UNAUTHENTICATED);
}

}  // namespace
}  // namespace trainyard
