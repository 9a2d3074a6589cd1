// Many jobs in one call: BatchSubmitJobs, and the client over it.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "clients/cpp/client.h"
#include "google/rpc/error_details.pb.h"
#include "server/api/job_intake.h"
#include "storage/base/file.h"
#include "storage/memory/memory_stores.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

class BatchTest : public ::testing::Test {
 protected:
  static v1::SubmitJobRequest Row(const std::string& job_id, const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    *request.mutable_job() = SmallJob(job_id);
    request.set_request_id(request_id);
    return request;
  }
  static v1::BatchSubmitJobsRequest Batch(const std::vector<v1::SubmitJobRequest>& rows) {
    v1::BatchSubmitJobsRequest request;
    request.set_parent("projects/default");
    for (const v1::SubmitJobRequest& row : rows) *request.add_requests() = row;
    return request;
  }
  grpc::Status Submit(const v1::BatchSubmitJobsRequest& request,
                      const std::string& token = kAdminToken) {
    response_.Clear();
    return rig_.jobs().BatchSubmitJobs(Rig::Context(token).get(), request, &response_);
  }
  grpc::Status SubmitAlone(v1::SubmitJobRequest request) {
    if (request.parent().empty()) request.set_parent("projects/default");
    v1::Job job;
    return rig_.jobs().SubmitJob(Rig::Context().get(), request, &job);
  }
  size_t Count() { return rig_.stores().jobs().List("-", {}, 1000, "")->jobs.size(); }
  std::unique_ptr<Client> NewClient(absl::Duration patience = kPatience) {
    return std::make_unique<Client>(
        ClientOptions{.server = absl::StrCat("127.0.0.1:", rig_.server().port()),
                      .token = kAdminToken,
                      .patience = patience,
                      .patience_when_busy = patience});
  }

  Rig rig_;
  v1::BatchSubmitJobsResponse response_;
};

TEST_F(BatchTest, EachRowIsAnsweredInItsPlaceWithTheWordsOfSubmitJob) {
  rig_.Submit(SmallJob("taken"));
  std::vector<v1::SubmitJobRequest> rows = {Row("a"), Row("taken"), Row("Bad Name"), Row("b"),
                                            Row("c"), Row("d"),     Row("e", "r")};
  rows[4].mutable_job()->mutable_spec()->mutable_data()->mutable_text()->set_tokenizer(
      v1::TextData::CHARACTERS);  // of a file that is not there
  rows[5].set_parent("projects/other");
  rows[6].set_parent("projects/default");
  ASSERT_TRUE(Submit(Batch(rows)).ok());
  ASSERT_EQ(response_.results_size(), 7);
  for (const int made : {0, 3, 6}) {
    const v1::Job& job = response_.results(made).job();
    EXPECT_EQ(job.name(), "projects/default/jobs/" + rows[made].job().job_id());
    EXPECT_EQ(job.state(), v1::QUEUED);
    EXPECT_EQ(job.creator(), "user:ann");
    EXPECT_GT(job.plan().parameters(), 0);
    EXPECT_FALSE(job.etag().empty());
    EXPECT_EQ(rig_.Get(job.name()).uid(), job.uid());
  }
  for (const int refused : {1, 2, 4}) {
    const google::rpc::Status& error = response_.results(refused).error();
    const grpc::Status alone = SubmitAlone(rows[refused]);
    EXPECT_EQ(error.code(), alone.error_code()) << refused;
    EXPECT_EQ(error.message(), alone.error_message());
    EXPECT_FALSE(alone.ok());
  }
  EXPECT_EQ(response_.results(5).error().code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(response_.results(5).error().message(), HasSubstr("found 'projects/other'"));
  EXPECT_EQ(Count(), 4u);
}

TEST_F(BatchTest, AReplayIsAnsweredWithTheSameJobsAfterTheDataHasGone) {
  char path[] = "/tmp/batch_test_XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_TRUE(WriteAll(fd, std::string(1000, 'a') + "b", path).ok());
  close(fd);
  std::vector<v1::SubmitJobRequest> rows = {Row("a", "r1"), Row("", "r2"), Row("c", "r3")};
  for (v1::SubmitJobRequest& row : rows) {
    v1::TextData& text = *row.mutable_job()->mutable_spec()->mutable_data()->mutable_text();
    text.set_path(path);
    text.set_tokenizer(v1::TextData::CHARACTERS);
  }
  ASSERT_TRUE(Submit(Batch(rows)).ok());
  const v1::BatchSubmitJobsResponse first = response_;
  unlink(path);
  rows.push_back(rows[2]);
  rows[2].mutable_job()->set_priority(1);
  rows.push_back(Row("new", "r4"));
  ASSERT_TRUE(Submit(Batch(rows)).ok());
  ASSERT_EQ(response_.results_size(), 5);
  for (const auto& [again, before] : {std::pair(0, 0), {1, 1}, {3, 2}}) {
    EXPECT_EQ(response_.results(again).job().uid(), first.results(before).job().uid());
    EXPECT_FALSE(response_.results(again).job().uid().empty());
    EXPECT_GT(response_.results(again).job().plan().parameters(), 0);
  }
  EXPECT_EQ(response_.results(2).error().code(), grpc::ALREADY_EXISTS);
  EXPECT_TRUE(response_.results(4).has_job());
  EXPECT_EQ(Count(), 4u);
}

TEST_F(BatchTest, DuplicatesWithinABatchAreAnsweredPerRow) {
  ASSERT_TRUE(Submit(Batch({Row("a", "r1"), Row("a", "r1"), Row("a", "r2"), Row("b", "r1")})).ok());
  EXPECT_EQ(response_.results(1).job().uid(), response_.results(0).job().uid());
  EXPECT_THAT(response_.results(2).error().message(), HasSubstr("exists already"));
  EXPECT_THAT(response_.results(3).error().message(), HasSubstr("request id 'r1' was used"));
  EXPECT_EQ(Count(), 1u);
}

TEST_F(BatchTest, RowsThatOnlyValidateWriteNothing) {
  v1::SubmitJobRequest dry = Row("dry");
  dry.set_validate_only(true);
  ASSERT_TRUE(Submit(Batch({dry, Row("wet"), dry})).ok());
  for (const int row : {0, 2}) {
    const v1::Job& job = response_.results(row).job();
    EXPECT_EQ(job.name(), "projects/default/jobs/dry");
    EXPECT_GT(job.plan().bytes_per_slot(), 0);
    EXPECT_TRUE(job.uid().empty());
    EXPECT_TRUE(job.etag().empty());
  }
  EXPECT_FALSE(response_.results(1).job().uid().empty());
  EXPECT_EQ(Count(), 1u);
}

TEST_F(BatchTest, ABatchThatIsRefusedAsAWholeWritesNothing) {
  const auto expect_refused = [&](const v1::BatchSubmitJobsRequest& request,
                                  const std::string& words) {
    const grpc::Status status = Submit(request);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT)
        << words << " " << response_.ShortDebugString().substr(0, 1000);
    EXPECT_THAT(status.error_message(), HasSubstr(words));
  };
  expect_refused(Batch({}), "requests: found 0, expected 1 to 256");
  expect_refused(Batch(std::vector<v1::SubmitJobRequest>(257, Row(""))), "requests: found 257");
  v1::BatchSubmitJobsRequest nowhere = Batch({Row("a")});
  nowhere.set_parent("default");
  expect_refused(nowhere, "parent: ");
  // As sent, and unfolded.
  v1::SubmitJobRequest large = Row("large");
  large.mutable_job()->mutable_spec()->mutable_data()->mutable_text()->set_path(
      "/" + std::string(200 << 10, 'x'));
  expect_refused(Batch({Row("a"), large, large, large, large, large, large, large, large, large,
                        large, large}),
                 "bytes as sent, expected at most 2097152 in one call; send them in several");
  v1::SubmitJobRequest wide = Row("wide");
  v1::JobSpec& spec = *wide.mutable_job()->mutable_spec();
  spec.mutable_model()->mutable_resnet()->set_depth(18);
  spec.mutable_model()->mutable_resnet()->set_stem(v1::Resnet::CIFAR);
  spec.mutable_data()->mutable_webdataset()->add_train("/data/{00000..29999}.tar");
  spec.mutable_data()->mutable_webdataset()->mutable_transform()->set_size(32);
  expect_refused(Batch({Row("a"), wide, wide, wide, wide, wide}), "bytes with their defaults");
  EXPECT_EQ(Submit(Batch({Row("a")}), "").error_code(), grpc::UNAUTHENTICATED);
  EXPECT_EQ(Submit(Batch({Row("a")}), kAgentToken).error_code(), grpc::PERMISSION_DENIED);
  EXPECT_EQ(Count(), 0u);
}

TEST_F(BatchTest, TheLargestAnswerStaysBelowFourMebibytes) {
  std::vector<v1::SubmitJobRequest> rows;
  for (int i = 0; i < 256; ++i) {
    rows.push_back(Row(absl::StrCat("job-", i)));
    for (int l = 0; l < 40; ++l) {
      (*rows.back().mutable_job()->mutable_labels())[absl::StrCat("label-", l)] =
          std::string(128, 'x');
    }
  }
  ASSERT_TRUE(Submit(Batch(rows)).ok());
  EXPECT_EQ(Count(), 256u);
  EXPECT_LT(response_.ByteSizeLong(), size_t{4} << 20);
  std::cout << response_.ByteSizeLong() / 256 << " bytes per answer" << std::endl;
}

TEST_F(BatchTest, RowsThatMayBeSentAgainSayWhen) {
  const v1::BatchSubmitJobsRequest batch = Batch({Row("a"), Row("Bad Name")});
  ASSERT_TRUE(Submit(batch).ok());  // the token is known from now on
  rig_.memory().SetAway(true);
  ASSERT_TRUE(Submit(batch).ok());
  const google::rpc::Status& away = response_.results(0).error();
  EXPECT_EQ(away.code(), grpc::UNAVAILABLE);
  google::rpc::RetryInfo retry;
  ASSERT_EQ(away.details_size(), 1);
  ASSERT_TRUE(away.details(0).UnpackTo(&retry));
  EXPECT_GT(retry.retry_delay().nanos(), 0);
  EXPECT_EQ(response_.results(1).error().details_size(), 0);
}

TEST_F(BatchTest, OfACallerThatHasGoneWritesNothing) {
  auto sizer = Sizer::Start(Rig::FastOptions().sizer);
  ASSERT_TRUE(sizer.ok()) << sizer.status();
  JobIntake intake(rig_.stores(), **sizer, nullptr, [](const JobRecord&) { return std::nullopt; });
  const v1::BatchSubmitJobsRequest batch = Batch({Row("a"), Row("b")});
  EXPECT_TRUE(absl::IsCancelled(intake.SubmitMany(batch, "ann", [] { return true; }).status()));
  EXPECT_EQ(Count(), 0u);
}

TEST_F(BatchTest, JobsAlikeArePlannedOnceEvenWhereNothingCanBeKept) {
  char path[] = "/tmp/batch_test_XXXXXX";
  const int fd = mkstemp(path);
  SizerOptions options = Rig::FastOptions().sizer;
  options.cache_bytes = 0;
  auto sizer = Sizer::Start(options);
  ASSERT_TRUE(sizer.ok()) << sizer.status();
  JobIntake intake(rig_.stores(), **sizer, nullptr, [](const JobRecord&) { return std::nullopt; });
  v1::SubmitJobRequest row = Row("");
  v1::TextData& text = *row.mutable_job()->mutable_spec()->mutable_data()->mutable_text();
  text.set_path(path);
  text.set_tokenizer(v1::TextData::CHARACTERS);
  const v1::BatchSubmitJobsRequest batch = Batch(std::vector<v1::SubmitJobRequest>(256, row));
  const auto never = [] { return false; };
  const auto refused = intake.SubmitMany(batch, "ann", never);  // of an empty text
  ASSERT_TRUE(refused.ok()) << refused.status();
  for (const auto& answer : *refused) EXPECT_TRUE(absl::IsInvalidArgument(answer.status()));
  EXPECT_EQ((*sizer)->made(), 0);
  ASSERT_TRUE(WriteAll(fd, std::string(1000, 'a') + "b", path).ok());
  const auto made = intake.SubmitMany(batch, "ann", never);
  ASSERT_TRUE(made.ok()) << made.status();
  std::set<std::string> uids;
  for (const auto& answer : *made) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    uids.insert(answer->uid());
  }
  EXPECT_EQ(uids.size(), 256u);
  EXPECT_EQ((*sizer)->made(), 1);
  close(fd);
  unlink(path);
}

TEST_F(BatchTest, TheClientSendsManyJobsInSeveralCallsAndKeepsTheirOrder) {
  std::vector<v1::SubmitJobRequest> rows;
  for (int i = 0; i < 600; ++i) rows.push_back(Row(i % 100 == 7 ? "Bad" : absl::StrCat("job-", i)));
  const auto answers = NewClient()->SubmitMany("projects/default", rows);
  ASSERT_EQ(answers.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % 100 == 7) {
      EXPECT_TRUE(absl::IsInvalidArgument(answers[i].status()));
    } else {
      ASSERT_TRUE(answers[i].ok()) << answers[i].status();
      EXPECT_EQ(answers[i]->name(), "projects/default/jobs/" + rows[i].job().job_id());
    }
  }
  EXPECT_EQ(Count(), 594u);
  EXPECT_TRUE(NewClient()->SubmitMany("projects/default", {}).empty());
}

TEST_F(BatchTest, TheClientGivesUpRowsOnceItsPatienceIsOver) {
  const auto client = NewClient(absl::Milliseconds(600));
  ASSERT_TRUE(client->SubmitMany("projects/default", {Row("before"), Row("")})[0].ok());
  rig_.memory().SetAway(true);
  for (const auto& answer : client->SubmitMany("projects/default", {Row("a"), Row("b")})) {
    EXPECT_TRUE(absl::IsUnavailable(answer.status())) << answer.status();
  }
}

template <typename Service>
std::unique_ptr<grpc::Server> Serve(Service& service, int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  return builder.BuildAndStart();
}

// Its store is away when it is asked first: of three jobs it takes one and refuses one for good.
class ShakyServer final : public v1::JobService::Service {
 public:
  grpc::Status BatchSubmitJobs(grpc::ServerContext*, const v1::BatchSubmitJobsRequest* request,
                               v1::BatchSubmitJobsResponse* response) override {
    absl::MutexLock lock(&mu);
    calls.push_back(*request);
    for (const v1::SubmitJobRequest& row : request->requests()) {
      v1::SubmitJobResult& result = *response->add_results();
      if (row.job().job_id() == "bad") {
        result.mutable_error()->set_code(grpc::INVALID_ARGUMENT);
      } else if (row.job().job_id() == "late" && calls.size() == 1) {
        google::rpc::RetryInfo retry;
        retry.mutable_retry_delay()->set_nanos(100'000'000);
        result.mutable_error()->set_code(grpc::UNAVAILABLE);
        result.mutable_error()->add_details()->PackFrom(retry);
        asked = absl::Now();
      } else {
        result.mutable_job()->set_uid(row.request_id());
        took = absl::Now();
      }
    }
    return grpc::Status::OK;
  }

  absl::Mutex mu;
  std::vector<v1::BatchSubmitJobsRequest> calls ABSL_GUARDED_BY(mu);
  absl::Time asked ABSL_GUARDED_BY(mu), took ABSL_GUARDED_BY(mu);
};

TEST_F(BatchTest, TheClientSendsAgainThoseRowsAloneThatMayBeAfterTheServersDelay) {
  ShakyServer service;
  int port = 0;
  const std::unique_ptr<grpc::Server> server = Serve(service, port);
  Client client({.server = absl::StrCat("127.0.0.1:", port)});
  const auto answers = client.SubmitMany("projects/p", {Row("a"), Row("bad"), Row("late")});
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_TRUE(answers[0].ok()) << answers[0].status();
  EXPECT_TRUE(absl::IsInvalidArgument(answers[1].status()));
  ASSERT_TRUE(answers[2].ok()) << answers[2].status();
  absl::MutexLock lock(&service.mu);
  ASSERT_EQ(service.calls.size(), 2u);
  ASSERT_EQ(service.calls[1].requests_size(), 1);
  EXPECT_FALSE(answers[2]->uid().empty());
  EXPECT_EQ(answers[2]->uid(), service.calls[0].requests(2).request_id()) << "the same request";
  EXPECT_GE(service.took - service.asked, absl::Milliseconds(100));
}

// As servers were before there were batches.
class OldServer final : public v1::JobService::Service {
 public:
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::Job* job) override {
    if (request->job().job_id() == "bad") return {grpc::INVALID_ARGUMENT, "bad"};
    job->set_name(absl::StrCat(request->parent(), "/jobs/", request->job().job_id()));
    job->set_uid(request->request_id());
    return grpc::Status::OK;
  }
};

TEST_F(BatchTest, TheClientAsksAServerThatKnowsNoBatchesJobByJob) {
  OldServer service;
  int port = 0;
  const std::unique_ptr<grpc::Server> server = Serve(service, port);
  Client client({.server = absl::StrCat("127.0.0.1:", port)});
  const auto answers = client.SubmitMany("projects/p", {Row("a"), Row("bad"), Row("c", "r")});
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0]->name(), "projects/p/jobs/a");
  EXPECT_FALSE(answers[0]->uid().empty());
  EXPECT_TRUE(absl::IsInvalidArgument(answers[1].status()));
  EXPECT_EQ(answers[2]->uid(), "r");
}

TEST_F(BatchTest, TheClientSendsJobByJobWhatIsTooLargeTogether) {
  v1::SubmitJobRequest wide = Row("");
  v1::JobSpec& spec = *wide.mutable_job()->mutable_spec();
  spec.mutable_model()->mutable_resnet()->set_depth(18);
  spec.mutable_model()->mutable_resnet()->set_stem(v1::Resnet::CIFAR);
  spec.mutable_data()->mutable_webdataset()->add_train("/nowhere/{00000..29999}.tar");
  spec.mutable_data()->mutable_webdataset()->mutable_transform()->set_size(32);
  spec.mutable_data()->mutable_webdataset()->set_classes(10);
  const auto answers = NewClient()->SubmitMany("projects/default", {wide, wide, wide, wide, wide});
  for (const auto& answer : answers) EXPECT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(Count(), 5u);
}

}  // namespace
}  // namespace trainyard
