// A server with a port for agents alone, which know one another by certificates.

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cpp/client.h"
#include "gtest/gtest.h"
#include "proto/tls/certificate.h"
#include "proto/tls/credentials.h"
#include "proto/tls/join_token_file.h"
#include "server/auth/shown_certificate.h"
#include "storage/base/digest.h"
#include "storage/memory/memory_stores.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using Stub = v1::ExecutorService::Stub;
using Stream = grpc::ClientReaderWriter<v1::AgentMessage, v1::ServerMessage>;

class JoinTest : public ::testing::Test {
 protected:
  JoinTest() : stores_(SystemClock()) {
    spdlog::set_level(spdlog::level::err);
    authority_ = MakeAuthority("the yard", absl::Hours(24)).value();
    shown_ = ShownCertificate::OfAuthority(authority_, {"127.0.0.1"}, absl::Now()).value();
    EXPECT_TRUE(stores_.tokens().AddToken(Sha256Hex(kAdminToken), {"user:ann", "admin"}).ok());
    EXPECT_TRUE(stores_.tokens().AddToken(Sha256Hex(kAgentToken), {"agent:n", "agent"}).ok());
    ServerOptions options = Rig::FastOptions();
    options.agents =
        AgentsPort{.listen = "127.0.0.1:0", .tls = shown_->files(), .authority = authority_};
    auto server = Server::Start(stores_, SystemClock(), options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  Client Caller(const std::string& token = kAdminToken) {
    return Client({.server = absl::StrCat("127.0.0.1:", server_->port()),
                   .token = token,
                   .patience = absl::ZeroDuration()});
  }

  JoinTokenFile MakeToken(int joins = 9) {
    v1::CreateJoinTokenRequest request;
    request.set_pool("blue");
    request.set_most_joins(joins);
    const auto made = Caller().CreateJoinToken(request);
    EXPECT_TRUE(made.ok()) << made.status();
    return ParseJoinTokenFile(made->file(), "the token").value();
  }

  std::shared_ptr<grpc::Channel> Channel(const std::optional<TlsIdentity>& own) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->agents_port()),
                                     MakeChannelCredentials(authority_.certificates, own).value(),
                                     arguments);
  }

  absl::StatusOr<v1::JoinResponse> Ask(const v1::JoinRequest& request,
                                       const std::optional<TlsIdentity>& own = std::nullopt) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::JoinResponse response;
    const grpc::Status status =
        v1::ExecutorService::NewStub(Channel(own))->Join(&context, request, &response);
    if (status.ok()) return response;
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  static v1::JoinRequest RequestOf(const std::string& node, const std::string& key,
                                   const std::string& token = "") {
    v1::JoinRequest request;
    request.set_token(token);
    request.set_node(node);
    request.set_node_secret(node + " secret");
    request.set_signing_request(MakeSigningRequest(key).value());
    return request;
  }

  TlsIdentity Join(const std::string& node) {
    const std::string key = MakePrivateKey().value();
    const auto joined = Ask(RequestOf(node, key, MakeToken().token));
    EXPECT_TRUE(joined.ok()) << joined.status();
    return {joined->certificate(), key};
  }

  // The first answer to Register, and how the session ended if there is none.
  struct Session {
    std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
    std::unique_ptr<Stub> stub;
    std::unique_ptr<Stream> stream;
    bool welcome = false;
    grpc::Status end;
  };
  Session Connect(const std::optional<TlsIdentity>& own, const std::string& node,
                  const std::string& secret) {
    Session session;
    session.context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    session.stub = v1::ExecutorService::NewStub(Channel(own));
    session.stream = session.stub->Connect(session.context.get());
    v1::AgentMessage message;
    v1::Register& hello = *message.mutable_register_();
    hello.set_node(node);
    hello.set_node_secret(secret);
    hello.set_incarnation("i");
    hello.set_address("there:1");
    hello.set_protocol_version(1);
    session.stream->Write(message);
    v1::ServerMessage answer;
    session.welcome = session.stream->Read(&answer) && answer.has_welcome();
    if (!session.welcome) session.end = session.stream->Finish();
    return session;
  }

  MemoryStores stores_;
  TlsIdentity authority_;
  std::unique_ptr<ShownCertificate> shown_;
  std::unique_ptr<Server> server_;
};

TEST_F(JoinTest, ANodeJoinsByATokenAndRegistersByItsCertificate) {
  const TlsIdentity own = Join("n1");
  const auto facts = ReadCertificate(own.certificates, "it");
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->subject, "n1");
  Session session = Connect(own, "n1", "n1 secret");
  ASSERT_TRUE(session.welcome) << session.end.error_message();
  v1::GetNodeRequest request;
  request.set_name("nodes/n1");
  const auto node = Caller().GetNode(request);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->labels().at("pool"), "blue");
  session.context->TryCancel();
}

TEST_F(JoinTest, WithoutACertificateOrWithAnothersNobodyRegisters) {
  const TlsIdentity own = Join("n1");
  const std::pair<std::string, std::string> others[] = {{"n2", "n2 secret"}, {"n1", "other"}};
  for (const auto& [node, secret] : others) {
    const Session session = Connect(own, node, secret);
    EXPECT_EQ(session.end.error_code(), grpc::PERMISSION_DENIED) << session.end.error_message();
  }
  const Session without = Connect(std::nullopt, "n1", "n1 secret");
  EXPECT_EQ(without.end.error_code(), grpc::UNAUTHENTICATED) << without.end.error_message();
  // One that the yard signed, but gave to nobody: the certificate of a server, and one for a key
  // that did not join.
  const CertificateRequest of_node = {.name = "n1", .of_client = true, .valid_for = absl::Hours(1)};
  const Session unknown = Connect(IssueCertificate(authority_, of_node).value(), "n1", "n1 secret");
  EXPECT_EQ(unknown.end.error_code(), grpc::UNAUTHENTICATED) << unknown.end.error_message();
  const CertificateRequest of_server = {
      .name = "n1", .hosts = {"n1"}, .of_server = true, .valid_for = absl::Hours(1)};
  const Session server =
      Connect(IssueCertificate(authority_, of_server).value(), "n1", "n1 secret");
  EXPECT_EQ(server.end.error_code(), grpc::UNAVAILABLE) << server.end.error_message();
  const TlsIdentity foreign =
      IssueCertificate(MakeAuthority("the yard", absl::Hours(1)).value(), of_node).value();
  const Session stranger = Connect(foreign, "n1", "n1 secret");
  EXPECT_EQ(stranger.end.error_code(), grpc::UNAVAILABLE) << stranger.end.error_message();
}

TEST_F(JoinTest, WhoWantsToRegisterAsAnotherIsInTheAudit) {
  const TlsIdentity own = Join("n1");
  EXPECT_FALSE(Connect(own, "n2", "n2 secret").welcome);
  server_.reset();  // which writes what was pending
  const auto entries = stores_.audit().ListAudit({}, 100);
  ASSERT_TRUE(entries.ok()) << entries.status();
  std::string all;
  for (const AuditEntry& entry : *entries) {
    absl::StrAppend(&all, entry.principal, " ", entry.method, " ", entry.resource, " ",
                    entry.outcome, " ", entry.detail, "\n");
  }
  EXPECT_TRUE(absl::StrContains(all, "node:n1 Join nodes/n1 OK joined")) << all;
  EXPECT_TRUE(absl::StrContains(all,
                                " Connect  PERMISSION_DENIED register: nodes/n2 with the "
                                "certificate of nodes/n1"))
      << all;
}

TEST_F(JoinTest, ACertificateIsRenewedForTheSameKeyAlone) {
  const TlsIdentity own = Join("n1");
  const auto renewed = Ask(RequestOf("whoever", own.key), own);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->node(), "n1");
  const auto before = ReadCertificate(own.certificates, "it"),
             after = ReadCertificate(renewed->certificate(), "it");
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->subject, "n1");
  EXPECT_EQ(after->key_fingerprint, before->key_fingerprint);
  EXPECT_NE(after->fingerprint, before->fingerprint);
  const std::string other = MakePrivateKey().value();
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(RequestOf("n1", other), own).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(Ask(RequestOf("n1", own.key)).status()));
}

TEST_F(JoinTest, ARevokedNodeLosesItsSessionAndGetsNoOther) {
  const TlsIdentity own = Join("n1"), other = Join("n2");
  Session session = Connect(own, "n1", "n1 secret"), others = Connect(other, "n2", "n2 secret");
  ASSERT_TRUE(session.welcome) << session.end.error_message();
  v1::RevokeNodeRequest request;
  request.set_name("nodes/n1");
  ASSERT_TRUE(Caller().RevokeNode(request).ok());
  v1::ServerMessage message;
  while (session.stream->Read(&message)) {
  }
  const grpc::Status end = session.stream->Finish();
  EXPECT_EQ(end.error_code(), grpc::PERMISSION_DENIED) << end.error_message();
  EXPECT_TRUE(absl::StrContains(end.error_message(), "revoked by user:ann")) << end.error_message();
  EXPECT_EQ(Connect(own, "n1", "n1 secret").end.error_code(), grpc::PERMISSION_DENIED);
  EXPECT_TRUE(absl::IsPermissionDenied(Ask(RequestOf("n1", own.key), own).status()));
  // The other one is left alone.
  v1::AgentMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_id(7);
  others.stream->Write(heartbeat);
  while (others.stream->Read(&message) && !message.has_lease()) {
  }
  EXPECT_EQ(message.lease().heartbeat_id(), 7);
  others.context->TryCancel();
}

TEST_F(JoinTest, WhatIsNoRequestToJoinIsRefusedWithTheField) {
  const std::string key = MakePrivateKey().value(), token = MakeToken().token;
  const auto refused = [&](const std::string& field, v1::JoinRequest request) {
    const absl::Status status = Ask(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), field)) << status;
  };
  refused("node:", RequestOf("No Name", key, token));
  v1::JoinRequest request = RequestOf("n1", key, token);
  request.clear_node_secret();
  refused("node_secret:", request);
  request = RequestOf("n1", key, token);
  request.set_signing_request("nonsense");
  refused("signing_request:", request);
  request.set_signing_request(std::string(5000, 'x'));
  refused("signing_request:", request);
  request.set_signing_request(std::string(1 << 20, 'x'));
  refused("a request of ", request);
  const auto unknown = Ask(RequestOf("n1", key, std::string(64, '0')));
  EXPECT_TRUE(absl::IsUnauthenticated(unknown.status())) << unknown.status();
}

TEST_F(JoinTest, TheTwoPortsDoNotMix) {
  // No service but theirs is where agents connect.
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  context.AddMetadata("authorization", absl::StrCat("Bearer ", kAdminToken));
  v1::ListNodesResponse nodes;
  const grpc::Status status = v1::NodeService::NewStub(Channel(std::nullopt))
                                  ->ListNodes(&context, v1::ListNodesRequest(), &nodes);
  EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED) << status.error_message();
  // And agents with tokens are sent there.
  grpc::ClientContext agent;
  agent.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  agent.AddMetadata("authorization", absl::StrCat("Bearer ", kAgentToken));
  const auto users = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                         grpc::InsecureChannelCredentials());
  const grpc::Status end = v1::ExecutorService::NewStub(users)->Connect(&agent)->Finish();
  EXPECT_EQ(end.error_code(), grpc::UNIMPLEMENTED) << end.error_message();
  EXPECT_TRUE(absl::StrContains(end.error_message(), "port for agents")) << end.error_message();
}

TEST_F(JoinTest, AgentsMakeNoTokens) {
  EXPECT_TRUE(absl::IsPermissionDenied(
      Caller(kAgentToken).CreateJoinToken(v1::CreateJoinTokenRequest()).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(
      Caller(kAgentToken).ListJoinTokens(v1::ListJoinTokensRequest()).status()));
}

TEST(JoinWithoutPortTest, NoTokenIsMade) {
  spdlog::set_level(spdlog::level::err);
  Rig rig;
  v1::JoinToken made;
  const grpc::Status status =
      rig.nodes().CreateJoinToken(Rig::Context().get(), v1::CreateJoinTokenRequest(), &made);
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION) << status.error_message();
}

}  // namespace
}  // namespace trainyard
