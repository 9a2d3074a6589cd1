// Who may do what: every method, with every role, in its own, another and an unknown project.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/digest.h"
#include "tests/unit/server/rig.h"
#include "trainyard/v1/access_service.grpc.pb.h"

namespace trainyard {
namespace {

using grpc::StatusCode;

// A method, called with something of `project`, and what is the least role that may; a name that
// does not exist is as good as one that does.
struct Method {
  const char* name;
  std::string least;  // "agent": agents and nobody else
  bool of_project;    // it names something of a project
  bool of_yard;       // a role in one project does not count
  std::function<grpc::Status(Rig&, grpc::ClientContext&, const std::string& project)> call;
};

template <typename Request, typename Stub, typename Response>
auto Unary(Stub& (Rig::*service)(),
           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
           std::function<void(Request&, const std::string&)> fill) {
  return [=](Rig& rig, grpc::ClientContext& context, const std::string& project) {
    Request request;
    fill(request, project);
    Response response;
    return ((rig.*service)().*method)(&context, request, &response);
  };
}

std::string JobIn(const std::string& project) { return "projects/" + project + "/jobs/nothing"; }

template <typename Request>
std::function<void(Request&, const std::string&)> NamesJob() {
  return [](Request& request, const std::string& project) { request.set_name(JobIn(project)); };
}
template <typename Request>
std::function<void(Request&, const std::string&)> NamesNode() {
  return [](Request& request, const std::string&) { request.set_name("nodes/nothing"); };
}
template <typename Request>
std::function<void(Request&, const std::string&)> Nothing() {
  return [](Request&, const std::string&) {};
}

std::vector<Method> AllMethods() {
  using J = v1::JobService::Stub;
  using N = v1::NodeService::Stub;
  std::vector<Method> all = {
      {"SubmitJob", "submitter", true, false,
       Unary<v1::SubmitJobRequest>(&Rig::jobs, &J::SubmitJob,
                                   [](auto& r, auto& p) { r.set_parent("projects/" + p); })},
      {"BatchSubmitJobs", "submitter", true, false,
       Unary<v1::BatchSubmitJobsRequest>(&Rig::jobs, &J::BatchSubmitJobs,
                                         [](auto& r, auto& p) { r.set_parent("projects/" + p); })},
      {"PlanLayouts", "submitter", true, false,
       Unary<v1::PlanLayoutsRequest>(&Rig::jobs, &J::PlanLayouts,
                                     [](auto& r, auto& p) { r.set_parent("projects/" + p); })},
      {"GetJob", "viewer", true, false,
       Unary<v1::GetJobRequest>(&Rig::jobs, &J::GetJob, NamesJob<v1::GetJobRequest>())},
      {"ListJobs", "viewer", true, false,
       Unary<v1::ListJobsRequest>(&Rig::jobs, &J::ListJobs,
                                  [](auto& r, auto& p) { r.set_parent("projects/" + p); })},
      {"CancelJob", "submitter", true, false,
       Unary<v1::CancelJobRequest>(&Rig::jobs, &J::CancelJob, NamesJob<v1::CancelJobRequest>())},
      {"PauseJob", "submitter", true, false,
       Unary<v1::PauseJobRequest>(&Rig::jobs, &J::PauseJob, NamesJob<v1::PauseJobRequest>())},
      {"ResumeJob", "submitter", true, false,
       Unary<v1::ResumeJobRequest>(&Rig::jobs, &J::ResumeJob, NamesJob<v1::ResumeJobRequest>())},
      {"ResizeJob", "submitter", true, false,
       Unary<v1::ResizeJobRequest>(&Rig::jobs, &J::ResizeJob, NamesJob<v1::ResizeJobRequest>())},
      {"DeleteJob", "submitter", true, false,
       Unary<v1::DeleteJobRequest>(&Rig::jobs, &J::DeleteJob, NamesJob<v1::DeleteJobRequest>())},
      {"GetGang", "viewer", true, false,
       Unary<v1::GetGangRequest>(&Rig::jobs, &J::GetGang, NamesJob<v1::GetGangRequest>())},
      {"ExplainJob", "viewer", true, false,
       Unary<v1::ExplainJobRequest>(&Rig::jobs, &J::ExplainJob, NamesJob<v1::ExplainJobRequest>())},
      {"WatchJob", "viewer", true, false,
       [](Rig& rig, grpc::ClientContext& context, const std::string& project) {
         v1::WatchJobRequest request;
         request.set_name(JobIn(project));
         return rig.jobs().WatchJob(&context, request)->Finish();
       }},
      {"QueryMetrics", "viewer", true, false,
       Unary<v1::QueryMetricsRequest>(&Rig::metrics, &v1::MetricService::Stub::QueryMetrics,
                                      [](auto& r, auto& p) { r.set_job(JobIn(p)); })},
      {"StreamMetrics", "viewer", true, false,
       [](Rig& rig, grpc::ClientContext& context, const std::string& project) {
         v1::StreamMetricsRequest request;
         request.set_job(JobIn(project));
         return rig.metrics().StreamMetrics(&context, request)->Finish();
       }},
      {"TailLogs", "viewer", true, false,
       [](Rig& rig, grpc::ClientContext& context, const std::string& project) {
         v1::TailLogsRequest request;
         request.set_job(JobIn(project));
         return rig.logs().TailLogs(&context, request)->Finish();
       }},
      {"ListCheckpoints", "viewer", true, false,
       Unary<v1::ListCheckpointsRequest>(&Rig::checkpoints,
                                         &v1::CheckpointService::Stub::ListCheckpoints,
                                         [](auto& r, auto& p) { r.set_parent(JobIn(p)); })},
      {"GetCheckpoint", "viewer", true, false,
       Unary<v1::GetCheckpointRequest>(
           &Rig::checkpoints, &v1::CheckpointService::Stub::GetCheckpoint,
           [](auto& r, auto& p) { r.set_name(JobIn(p) + "/checkpoints/latest"); })},
      {"ListNodes", "viewer", false, false,
       Unary<v1::ListNodesRequest>(&Rig::nodes, &N::ListNodes, Nothing<v1::ListNodesRequest>())},
      {"ListPools", "viewer", false, false,
       Unary<v1::ListPoolsRequest>(&Rig::nodes, &N::ListPools, Nothing<v1::ListPoolsRequest>())},
      {"GetNode", "viewer", false, false,
       Unary<v1::GetNodeRequest>(&Rig::nodes, &N::GetNode, NamesNode<v1::GetNodeRequest>())},
      {"DrainNode", "operator", false, true,
       Unary<v1::DrainNodeRequest>(&Rig::nodes, &N::DrainNode, NamesNode<v1::DrainNodeRequest>())},
      {"UndrainNode", "operator", false, true,
       Unary<v1::UndrainNodeRequest>(&Rig::nodes, &N::UndrainNode,
                                     NamesNode<v1::UndrainNodeRequest>())},
      {"ConfirmNodeEmpty", "operator", false, true,
       Unary<v1::ConfirmNodeEmptyRequest>(&Rig::nodes, &N::ConfirmNodeEmpty,
                                          NamesNode<v1::ConfirmNodeEmptyRequest>())},
      {"CreateJoinToken", "admin", false, true,
       Unary<v1::CreateJoinTokenRequest>(&Rig::nodes, &N::CreateJoinToken,
                                         Nothing<v1::CreateJoinTokenRequest>())},
      {"ListJoinTokens", "admin", false, true,
       Unary<v1::ListJoinTokensRequest>(&Rig::nodes, &N::ListJoinTokens,
                                        Nothing<v1::ListJoinTokensRequest>())},
      {"RevokeJoinToken", "admin", false, true,
       Unary<v1::RevokeJoinTokenRequest>(&Rig::nodes, &N::RevokeJoinToken,
                                         [](auto& r, auto&) { r.set_name("joinTokens/ab"); })},
      {"RevokeNode", "admin", false, true,
       Unary<v1::RevokeNodeRequest>(&Rig::nodes, &N::RevokeNode,
                                    NamesNode<v1::RevokeNodeRequest>())},
      {"GetServerInfo", "viewer", false, false,
       Unary<v1::GetServerInfoRequest>(&Rig::info, &v1::InfoService::Stub::GetServerInfo,
                                       Nothing<v1::GetServerInfoRequest>())},
      {"GetRetention", "admin", false, true,
       Unary<v1::GetRetentionRequest>(&Rig::info, &v1::InfoService::Stub::GetRetention,
                                      Nothing<v1::GetRetentionRequest>())},
      {"SetRetention", "admin", false, true,
       Unary<v1::SetRetentionRequest>(&Rig::info, &v1::InfoService::Stub::SetRetention,
                                      Nothing<v1::SetRetentionRequest>())},
      {"GetCaller", "viewer", false, false,
       Unary<v1::GetCallerRequest>(&Rig::access, &v1::AccessService::Stub::GetCaller,
                                   Nothing<v1::GetCallerRequest>())},
      {"CreateToken", "admin", false, false,
       Unary<v1::CreateTokenRequest>(&Rig::access, &v1::AccessService::Stub::CreateToken,
                                     Nothing<v1::CreateTokenRequest>())},
      {"ListTokens", "admin", false, false,
       Unary<v1::ListTokensRequest>(&Rig::access, &v1::AccessService::Stub::ListTokens,
                                    Nothing<v1::ListTokensRequest>())},
      {"RevokeToken", "admin", false, false,
       Unary<v1::RevokeTokenRequest>(&Rig::access, &v1::AccessService::Stub::RevokeToken,
                                     [](auto& r, auto&) { r.set_name("tokens/ab"); })},
      {"SetProject", "admin", false, true,
       Unary<v1::SetProjectRequest>(&Rig::access, &v1::AccessService::Stub::SetProject,
                                    [](auto& r, auto&) { r.set_name("projects/-"); })},
      {"ListProjects", "admin", false, true,
       Unary<v1::ListProjectsRequest>(&Rig::access, &v1::AccessService::Stub::ListProjects,
                                      Nothing<v1::ListProjectsRequest>())},
      {"ListAuditEntries", "admin", false, true,
       Unary<v1::ListAuditEntriesRequest>(&Rig::access, &v1::AccessService::Stub::ListAuditEntries,
                                          Nothing<v1::ListAuditEntriesRequest>())},
      {"Join", "nobody", false, false,
       Unary<v1::JoinRequest>(&Rig::executors, &v1::ExecutorService::Stub::Join,
                              Nothing<v1::JoinRequest>())},
      {"Connect", "agent", false, false,
       [](Rig& rig, grpc::ClientContext& context, const std::string&) {
         const auto stream = rig.executors().Connect(&context);
         stream->WritesDone();
         return stream->Finish();
       }},
  };
  return all;
}

const std::vector<std::string> kRoles = {"viewer", "submitter", "operator", "admin", "agent"};

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() { spdlog::set_level(spdlog::level::err); }

  // A token of somebody with this role in the project, or if it is empty in the whole yard.
  std::string TokenOf(const std::string& role, const std::string& project,
                      const std::string& name = "user:bob") {
    const std::string token = absl::StrCat(name, " ", role, " of ", project, " 0123456789abcdef");
    const std::string secret = Sha256Hex(token);
    EXPECT_TRUE(
        rig_.stores()
            .tokens()
            .CreateToken(Sha256Hex(secret), {.principal = {name, role, project}}, absl::Hours(1))
            .ok());
    return secret;
  }

  Rig rig_;
};

TEST_F(AccessTest, EveryMethodIsInTheTable) {
  std::set<std::string> known, declared;
  for (const Method& method : AllMethods()) known.insert(method.name);
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* service :
       {"AccessService", "JobService", "MetricService", "LogService", "CheckpointService",
        "NodeService", "InfoService", "ExecutorService"}) {
    const auto* const found = pool->FindServiceByName(absl::StrCat("trainyard.v1.", service));
    ASSERT_NE(found, nullptr) << service;
    for (int i = 0; i < found->method_count(); ++i) declared.insert(found->method(i)->name());
  }
  EXPECT_EQ(known, declared);
}

TEST_F(AccessTest, ARoleMayWhatTheTableSaysAndInItsProjectAlone) {
  const auto rank = [](const std::string& role) {
    return std::find(kRoles.begin(), kRoles.end(), role) - kRoles.begin();
  };
  for (const Method& method : AllMethods()) {
    for (const std::string& role : kRoles) {
      for (const std::string& scope : {std::string(), std::string("own")}) {
        const std::string token = TokenOf(role, scope);
        for (const char* project : {"own", "other", "unknown"}) {
          const std::string what = absl::StrCat(method.name, " of ", project, " by ", role, " of ",
                                                scope.empty() ? "the yard" : scope);
          const grpc::Status status = method.call(rig_, *Rig::Context(token), project);
          const bool agents_own = role == "agent" && method.name == std::string("GetServerInfo");
          const bool caller = role == "agent" && method.name == std::string("GetCaller");
          if (method.least == "nobody") {
            EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION) << what;
            continue;
          }
          const bool of_role =
              method.least == "agent"
                  ? role == "agent"
                  : (role != "agent" && rank(role) >= rank(method.least)) || agents_own || caller;
          if (!of_role || (method.of_yard && !scope.empty())) {
            EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED)
                << what << ": " << status.error_message();
          } else if (method.of_project && !scope.empty() && project != scope) {
            EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND)
                << what << ": " << status.error_message();
            EXPECT_EQ(status.error_message(),
                      absl::StrCat("projects/", project, ": no such project"))
                << what;
          } else {
            EXPECT_NE(status.error_code(), StatusCode::PERMISSION_DENIED)
                << what << ": " << status.error_message();
            EXPECT_NE(status.error_code(), StatusCode::UNAUTHENTICATED) << what;
            EXPECT_FALSE(absl::StrContains(status.error_message(), "no such project")) << what;
          }
        }
      }
    }
  }
}

TEST_F(AccessTest, ASubmitterChangesItsOwnJobsAlone) {
  const auto submit = [&](const std::string& token, const std::string& id) {
    v1::SubmitJobRequest request;
    request.set_parent("projects/default");
    *request.mutable_job() = SmallJob(id);
    v1::Job job;
    return rig_.jobs().SubmitJob(Rig::Context(token).get(), request, &job);
  };
  const auto cancel = [&](const std::string& token, const std::string& id) {
    v1::CancelJobRequest request;
    request.set_name("projects/default/jobs/" + id);
    v1::Job job;
    return rig_.jobs().CancelJob(Rig::Context(token).get(), request, &job).error_code();
  };
  ScriptedAgent node(rig_);
  node.Register("n", 1);
  node.Welcomed();
  const std::string bob = TokenOf("submitter", "default"),
                    eve = TokenOf("submitter", "default", "user:eve"),
                    op = TokenOf("operator", "default", "user:op"), other = TokenOf("admin", "red");
  for (const char* id : {"a", "b"})
    ASSERT_TRUE(submit(bob, id).ok()) << submit(bob, id).error_message();
  EXPECT_EQ(submit(other, "c").error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(cancel(eve, "a"), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(cancel(other, "a"), StatusCode::NOT_FOUND);
  EXPECT_EQ(cancel(bob, "a"), StatusCode::OK);
  EXPECT_EQ(cancel(op, "b"), StatusCode::OK);
  // All projects are those of the caller, and of nodes it sees what is its own.
  v1::ListJobsRequest all;
  all.set_parent("projects/-");
  v1::ListJobsResponse jobs;
  ASSERT_TRUE(rig_.jobs().ListJobs(Rig::Context(eve).get(), all, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 2);
  ASSERT_TRUE(rig_.jobs().ListJobs(Rig::Context(other).get(), all, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
}

TEST_F(AccessTest, OfOtherProjectsNoNameIsSeenOnNodes) {
  ScriptedAgent node(rig_);
  node.Register("n", 1);
  node.Welcomed();
  rig_.Submit(SmallJob("secret"));
  node.NextDesired(1);
  const auto slot_of = [&](const std::string& token) {
    v1::GetNodeRequest request;
    request.set_name("nodes/n");
    v1::Node seen;
    EXPECT_TRUE(rig_.nodes().GetNode(Rig::Context(token).get(), request, &seen).ok());
    v1::ListNodesResponse list;
    EXPECT_TRUE(
        rig_.nodes().ListNodes(Rig::Context(token).get(), v1::ListNodesRequest(), &list).ok());
    EXPECT_EQ(list.nodes(0).slots(0).job(), seen.slots(0).job());
    return seen.slots(0).job();
  };
  EXPECT_EQ(slot_of(TokenOf("viewer", "default")), "projects/default/jobs/secret");
  EXPECT_EQ(slot_of(TokenOf("viewer", "red")), "projects/-/jobs/-");
}

TEST_F(AccessTest, TokensAreMadeListedAndRevokedAndStreamsEndWithThem) {
  const auto create = [&](const std::string& by, const std::string& role,
                          const std::string& project) {
    v1::CreateTokenRequest request;
    request.set_principal("service:ci");
    request.set_role(role);
    request.set_project(project);
    v1::AccessToken made;
    const grpc::Status status = rig_.access().CreateToken(Rig::Context(by).get(), request, &made);
    return std::make_pair(status.error_code(), made);
  };
  const auto [code, viewer] = create(kAdminToken, "viewer", "projects/default");
  ASSERT_EQ(code, StatusCode::OK);
  EXPECT_EQ(viewer.creator(), "user:ann");
  EXPECT_EQ(viewer.holder().project(), "projects/default");
  EXPECT_EQ(create(viewer.token(), "viewer", "projects/default").first,
            StatusCode::PERMISSION_DENIED);
  const std::string red = TokenOf("admin", "red");
  EXPECT_EQ(create(red, "viewer", "projects/red").first, StatusCode::OK);
  EXPECT_EQ(create(red, "viewer", "projects/default").first, StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(create(red, "viewer", "").first, StatusCode::PERMISSION_DENIED);
  for (const char* role : {"agent", "root", ""}) {
    EXPECT_EQ(create(kAdminToken, role, "").first, StatusCode::INVALID_ARGUMENT) << role;
  }
  v1::ListTokensResponse listed;
  ASSERT_TRUE(
      rig_.access().ListTokens(Rig::Context(red).get(), v1::ListTokensRequest(), &listed).ok());
  EXPECT_EQ(listed.tokens_size(), 2) << "its own and the one that it made";
  for (const v1::AccessToken& token : listed.tokens()) EXPECT_EQ(token.token(), "");

  // A watch of the viewer's ends when its token does.
  ScriptedAgent node(rig_);
  node.Register("n", 1);
  node.Welcomed();
  const v1::Job job = rig_.Submit(SmallJob("a"));
  v1::WatchJobRequest watch;
  watch.set_name(job.name());
  const auto context = Rig::Context(viewer.token()), anns = Rig::Context();
  const auto stream = rig_.jobs().WatchJob(context.get(), watch),
             other = rig_.jobs().WatchJob(anns.get(), watch);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream->Read(&response));
  v1::RevokeTokenRequest revoke;
  revoke.set_name(viewer.name());
  v1::AccessToken revoked;
  EXPECT_EQ(rig_.access().RevokeToken(Rig::Context(red).get(), revoke, &revoked).error_code(),
            StatusCode::NOT_FOUND);
  const absl::Time asked = absl::Now();
  ASSERT_TRUE(rig_.access().RevokeToken(Rig::Context().get(), revoke, &revoked).ok());
  EXPECT_TRUE(revoked.has_revoke_time());
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_LT(absl::Now() - asked, absl::Seconds(10));
  EXPECT_TRUE(other->Read(&response));
  anns->TryCancel();
  v1::GetJobRequest get;
  get.set_name(job.name());
  v1::Job got;
  EXPECT_EQ(rig_.jobs().GetJob(Rig::Context(viewer.token()).get(), get, &got).error_code(),
            StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace trainyard
