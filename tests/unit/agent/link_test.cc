#include "executor/agent/link.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "proto/tls/credentials.h"
#include "proto/tls/join_token_file.h"
#include "storage/base/file.h"
#include "trainyard/v1/executor_service.grpc.pb.h"

namespace trainyard {
namespace {

constexpr absl::Duration kLongEnough = absl::Seconds(60);

// The system's, but for the time of day.
class ShiftedClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now() + shift_; }
  absl::Duration SinceBoot() override { return SystemClock().SinceBoot(); }
  void Shift(absl::Duration shift) { shift_ = shift; }

 private:
  absl::Duration shift_ = absl::ZeroDuration();
};

// Where agents connect: gives out certificates to whoever asks, and welcomes who shows one.
class Yard : public v1::ExecutorService::Service {
 public:
  Yard() {
    const TlsIdentity shown = IssueCertificate(authority_, {.name = "server",
                                                            .hosts = {"127.0.0.1"},
                                                            .of_server = true,
                                                            .valid_for = absl::Hours(1)})
                                  .value();
    EXPECT_TRUE(shown_.Write(absl::StrCat(shown.key, shown.certificates)).ok());
    EXPECT_TRUE(vouched_.Write(authority_.certificates).ok());
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    builder.AddListeningPort("127.0.0.1:0",
                             MakeServerCredentials({shown_.path(), shown_.path()}, vouched_.path()),
                             &port_);
    server_ = builder.BuildAndStart();
  }
  ~Yard() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinResponse* response) override {
    absl::MutexLock lock(&mu_);
    asked_.push_back(*request);
    shown_by_callers_.push_back(PeerCertificate(*context));
    if (!refusal_.ok()) return refusal_;
    response->set_certificate(
        SignCertificate(authority_, request->signing_request(),
                        {.name = "n", .of_client = true, .valid_for = absl::Hours(24 * 30)})
            .value());
    return grpc::Status::OK;
  }

  grpc::Status Connect(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ServerMessage, v1::AgentMessage>* stream) override {
    if (PeerCertificate(*context).empty()) return {grpc::UNAUTHENTICATED, "no certificate"};
    v1::AgentMessage message;
    stream->Read(&message);
    v1::ServerMessage welcome;
    welcome.mutable_welcome();
    stream->Write(welcome);
    while (stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }

  // Until as many calls of Join have come.
  std::vector<v1::JoinRequest> WaitForJoins(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return asked_.size() >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&enough), kLongEnough)) << asked_.size();
    return asked_;
  }
  std::string LastShown() {
    absl::MutexLock lock(&mu_);
    return shown_by_callers_.back();
  }
  void Refuse(const grpc::Status& why) {
    absl::MutexLock lock(&mu_);
    refusal_ = why;
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::string authority() const { return authority_.certificates; }

 private:
  const TlsIdentity authority_ = MakeAuthority("yard", absl::Hours(24 * 365)).value();
  PemInMemory shown_, vouched_;
  int port_ = 0;
  absl::Mutex mu_;
  std::vector<v1::JoinRequest> asked_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> shown_by_callers_ ABSL_GUARDED_BY(mu_);
  grpc::Status refusal_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    spdlog::set_level(spdlog::level::err);
    char folder[] = "/tmp/trainyard-link-XXXXXX";
    folder_ = mkdtemp(folder);
    EXPECT_TRUE(WriteFileAtomically(
                    folder_ + "/token",
                    JoinTokenFileText({.token = token_, .authorities = yard_.authority()}), 0600)
                    .ok());
  }
  ~LinkTest() override {
    link_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start(bool with_token = true) {
    Link::Options options{.servers = servers_};
    options.certificate.emplace(folder_);
    options.look_at_certificate = absl::Milliseconds(20);
    if (with_token) options.join_token = folder_ + "/token";
    options.hello.set_node("n");
    options.hello.set_node_secret("secret");
    link_ = std::make_unique<Link>(std::move(options), clock_, [this](const LinkEvent& event) {
      absl::MutexLock lock(&mu_);
      ups_ += event.kind == LinkEvent::kUp ? 1 : 0;
    });
  }

  void Stop() {
    link_.reset();
    absl::MutexLock lock(&mu_);
    ups_ = 0;
  }

  bool WaitUntilUp() {
    absl::MutexLock lock(&mu_);
    const auto up = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ups_ > 0; };
    return mu_.AwaitWithTimeout(absl::Condition(&up), kLongEnough);
  }

  std::string Certificate() { return ReadFile(folder_ + "/node.pem", 1 << 20).value_or(""); }

  const std::string token_ = MakeJoinToken();
  Yard yard_;
  std::vector<std::string> servers_ = {yard_.address()};
  ShiftedClock clock_;
  std::string folder_;
  absl::Mutex mu_;
  int ups_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Link> link_;
};

TEST_F(LinkTest, JoinsOnceAndGoesByItsCertificateFromThenOn) {
  Start();
  ASSERT_TRUE(WaitUntilUp());
  const auto asked = yard_.WaitForJoins(1);
  EXPECT_EQ(asked[0].token(), token_);
  EXPECT_EQ(asked[0].node(), "n");
  EXPECT_EQ(asked[0].node_secret(), "secret");
  EXPECT_EQ(yard_.LastShown(), "");
  const std::string certificate = Certificate();
  Stop();
  std::filesystem::remove(folder_ + "/token");
  Start();
  ASSERT_TRUE(WaitUntilUp());
  EXPECT_EQ(yard_.WaitForJoins(1).size(), 1u);
  EXPECT_EQ(Certificate(), certificate);
}

TEST_F(LinkTest, RenewsWhileASessionGoesOn) {
  Start();
  ASSERT_TRUE(WaitUntilUp());
  Stop();
  const std::string before = Certificate();
  clock_.Shift(absl::Hours(24 * 16));
  Start(/*with_token=*/false);
  ASSERT_TRUE(WaitUntilUp());
  // The new one is past its half by this clock, too: once it is kept the next is asked for.
  const auto asked = yard_.WaitForJoins(3);
  EXPECT_EQ(asked[1].token(), "");
  EXPECT_EQ(*KeyOfSigningRequest(asked[1].signing_request()),
            *KeyOfSigningRequest(asked[0].signing_request()));
  EXPECT_NE(yard_.LastShown(), "");
  EXPECT_NE(Certificate(), before);
}

TEST_F(LinkTest, ACertificateThatIsOverIsReplacedByATokenAlone) {
  Start();
  ASSERT_TRUE(WaitUntilUp());
  Stop();
  clock_.Shift(absl::Hours(24 * 31));
  Start();
  // The new one is over by this clock, too: it asks again and again.
  EXPECT_EQ(yard_.WaitForJoins(3)[2].token(), token_);
}

TEST_F(LinkTest, ANodeWhoseKeyWasRemovedJoinsThoughItsFirstTryFails) {
  Start();
  ASSERT_TRUE(WaitUntilUp());
  Stop();
  std::filesystem::remove(folder_ + "/node.key");
  yard_.Refuse({grpc::FAILED_PRECONDITION, "the token is used up"});
  Start();
  yard_.WaitForJoins(2);
  Stop();
  yard_.Refuse(grpc::Status::OK);
  Start();
  EXPECT_TRUE(WaitUntilUp());
}

TEST_F(LinkTest, ATokenOfAnotherYardMakesTheNodeJoinThat) {
  Start();
  ASSERT_TRUE(WaitUntilUp());
  Stop();
  Yard other;
  const JoinTokenFile file{.token = MakeJoinToken(), .authorities = other.authority()};
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/token", JoinTokenFileText(file), 0600).ok());
  servers_ = {other.address()};
  Start();
  EXPECT_TRUE(WaitUntilUp());
  EXPECT_EQ(other.WaitForJoins(1)[0].token(), file.token);
  Stop();
}

TEST(PauseAfterRefusalsTest, GrowsToHalfAMinute) {
  EXPECT_EQ(PauseAfterRefusals(0, 0.5), absl::ZeroDuration());
  EXPECT_EQ(PauseAfterRefusals(1, 0.5), absl::Milliseconds(100));
  EXPECT_EQ(PauseAfterRefusals(1000, 0.5), absl::Seconds(30));
}

TEST_F(LinkTest, WhoIsRefusedAsksAgainAndIsStoppedAtOnce) {
  yard_.Refuse({grpc::FAILED_PRECONDITION, "the token is used up"});
  Start();
  yard_.WaitForJoins(2);
  yard_.Refuse(grpc::Status::OK);
  EXPECT_TRUE(WaitUntilUp());
}

}  // namespace
}  // namespace trainyard
