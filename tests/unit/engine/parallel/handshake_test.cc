#include "executor/engine/parallel/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

const Identity kZero = {.rank = 0, .size = 2, .version = "v1", .secret = "secret"};
const Identity kOne = {.rank = 1, .size = 2, .version = "v1", .secret = "secret"};

// What changes a message on its way, by its place among all messages.
using Change = std::function<void(int place, std::string& message)>;

struct Outcome {
  absl::Status listener;
  absl::Status connector;
  bool listener_done = false;
  bool connector_done = false;
};

// Lets two ends talk until one is not satisfied, or both are done.
Outcome Talk(Handshake& listener, Handshake& connector, const Change& change = nullptr) {
  Outcome outcome;
  Handshake* from = &connector;
  Handshake* to = &listener;
  for (int place = 0; outcome.listener.ok() && outcome.connector.ok(); ++place) {
    std::string message = std::move(from->outgoing());
    from->outgoing().clear();
    if (message.empty()) break;
    if (change != nullptr) change(place, message);
    (to == &listener ? outcome.listener : outcome.connector) = to->Receive(message);
    std::swap(from, to);
  }
  // The last words of an end that is not satisfied.
  if (!outcome.connector.ok() && !connector.outgoing().empty()) {
    outcome.listener = listener.Receive(connector.outgoing());
  }
  outcome.listener_done = listener.done();
  outcome.connector_done = connector.done();
  return outcome;
}

TEST(HandshakeTest, BothEndsKnowEachOtherAndTheKeys) {
  Handshake listener = Handshake::FromConnector(kZero);
  Handshake connector = Handshake::ToListener(kOne, 0, Purpose::kData);
  const Outcome outcome = Talk(listener, connector);
  EXPECT_TRUE(outcome.listener_done) << outcome.listener;
  EXPECT_TRUE(outcome.connector_done) << outcome.connector;
  EXPECT_EQ(listener.peer(), 1);
  EXPECT_EQ(listener.purpose(), Purpose::kData);
  const Session a = listener.session();
  const Session b = connector.session();
  EXPECT_EQ(a.send_key, b.receive_key);
  EXPECT_EQ(a.receive_key, b.send_key);
  EXPECT_NE(a.send_key, a.receive_key);
  EXPECT_EQ(a.pairing_key, b.pairing_key);
}

TEST(HandshakeTest, KeysOfTwoConnectionsDiffer) {
  std::optional<Session> before;
  for (int i = 0; i < 2; ++i) {
    Handshake listener = Handshake::FromConnector(kZero);
    Handshake connector = Handshake::ToListener(kOne, 0, Purpose::kData);
    Talk(listener, connector);
    if (before.has_value()) {
      EXPECT_NE(before->send_key, listener.session().send_key);
    }
    before = listener.session();
  }
}

TEST(HandshakeTest, NoByteCanBeChangedOnItsWay) {
  const int kLengths[] = {192, 224, 32, 32};
  for (int place = 0; place < 4; ++place) {
    for (int at = 0; at < kLengths[place]; ++at) {
      Handshake listener = Handshake::FromConnector(kZero);
      Handshake connector = Handshake::ToListener(kOne, 0, Purpose::kControl);
      const Outcome outcome = Talk(listener, connector, [&](int i, std::string& message) {
        if (i == place) message[at] ^= 1;
      });
      EXPECT_FALSE(outcome.connector_done) << place << " " << at;
      // The listener has sent the last message, and cannot know what becomes of it.
      EXPECT_EQ(outcome.listener_done, place == 3) << place << " " << at;
    }
  }
}

TEST(HandshakeTest, WhoDoesNotKnowTheSecretLearnsThatAndIsNotProven) {
  Identity stranger = kOne;
  stranger.secret = "guess";
  Handshake listener = Handshake::FromConnector(kZero);
  Handshake connector = Handshake::ToListener(stranger, 0, Purpose::kControl);
  const Outcome outcome = Talk(listener, connector);
  EXPECT_TRUE(absl::IsPermissionDenied(outcome.connector)) << outcome.connector;
  EXPECT_FALSE(listener.proven());

  // One that pretends to be satisfied.
  Handshake again = Handshake::FromConnector(kZero);
  Handshake hello = Handshake::ToListener(stranger, 0, Purpose::kControl);
  ASSERT_TRUE(again.Receive(hello.outgoing()).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(again.Receive(std::string(32, 'x'))));
  EXPECT_FALSE(again.proven());
}

TEST(HandshakeTest, AListenerDoesNotAcceptItsOwnWords) {
  Handshake listener = Handshake::FromConnector(kZero);
  Handshake connector = Handshake::ToListener(kOne, 0, Purpose::kControl);
  ASSERT_TRUE(listener.Receive(connector.outgoing()).ok());
  const std::string proof_of_listener = listener.outgoing().substr(192);
  EXPECT_TRUE(absl::IsPermissionDenied(listener.Receive(proof_of_listener)));

  // Its greeting neither, as one of a rank that connects.
  Handshake other = Handshake::FromConnector(kZero);
  ASSERT_TRUE(other.Receive(listener.outgoing().substr(0, 192)).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(other.Receive(proof_of_listener)));
}

TEST(HandshakeTest, AWrongPlaceInTheGangIsRefusedByBoth) {
  const struct {
    Identity connector;
    int to;
    const char* words;
  } kCases[] = {
      {{.rank = 1, .size = 3, .version = "v1", .secret = "secret"}, 0, "gang of "},
      {{.rank = 2, .size = 3, .version = "v1", .secret = "secret"}, 1, "rank"},
      {{.rank = 0, .size = 2, .version = "v1", .secret = "secret"}, 0, "rank"},
  };
  for (const auto& wrong : kCases) {
    Handshake listener = Handshake::FromConnector(kZero);
    Handshake connector = Handshake::ToListener(wrong.connector, wrong.to, Purpose::kControl);
    const Outcome outcome = Talk(listener, connector);
    EXPECT_TRUE(absl::IsFailedPrecondition(outcome.connector)) << outcome.connector;
    EXPECT_TRUE(absl::IsFailedPrecondition(outcome.listener)) << outcome.listener;
    EXPECT_THAT(std::string(outcome.listener.message()), HasSubstr(wrong.words));
  }
}

TEST(HandshakeTest, GarbageIsNoRank) {
  Handshake listener = Handshake::FromConnector(kZero);
  EXPECT_TRUE(absl::IsInvalidArgument(listener.Receive(std::string(192, '\xff'))));
  Handshake connector = Handshake::ToListener(kOne, 0, Purpose::kControl);
  EXPECT_TRUE(absl::IsInvalidArgument(connector.Receive(std::string(224, '\0'))));
}

}  // namespace
}  // namespace trainyard::engine
