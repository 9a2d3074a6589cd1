#pragma once

// How two ranks prove to each other, over a connection that anyone may have opened, that they know
// the secret of the same attempt. Pure: bytes in, bytes out. README.md has the format.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "executor/engine/parallel/authentication.h"

namespace trainyard::engine {

// What a connection is for. Each pair of ranks has one of each kind.
enum class Purpose : uint16_t { kControl = 1, kData = 2 };
inline constexpr int kPurposes = 2;

// Who takes part, and in what.
struct Identity {
  int rank = 0;
  int size = 1;
  std::string version;
  std::string secret;
};

// What both ends of a connection know after the handshake, and nobody else.
struct Session {
  MacKey send_key = {};
  MacKey receive_key = {};
  // For whatever else the two have to recognise each other by.
  Digest pairing_key = {};
};

// One end of one handshake. The fixed length of every message bounds what a stranger can make this
// rank hold. For one thread at a time.
class Handshake {
 public:
  // The connecting end, which wants to speak to rank `peer`.
  static Handshake ToListener(const Identity& self, int peer, Purpose purpose);
  // The listening end.
  static Handshake FromConnector(const Identity& self);

  // What has to be sent before anything else is received, also after Receive failed: the other end
  // learns from it what is wrong. The caller empties it.
  std::string& outgoing() { return outgoing_; }
  const std::string& outgoing() const { return outgoing_; }

  // How long the next message is; 0 once there is none.
  size_t next_bytes() const;

  // Takes the next message, of next_bytes() bytes.
  // kPermissionDenied: the other end does not know the secret. kFailedPrecondition: it knows it,
  // but has another version or size, or is another rank than was expected; or it does not speak
  // this protocol's version. kInvalidArgument: it is no rank at all.
  absl::Status Receive(absl::string_view message);

  bool done() const { return expects_ == Expects::kNothing; }
  // The other end has shown that it knows the secret.
  bool proven() const { return proven_; }

  bool listens() const { return listens_; }
  // Who the other end is; to be believed once proven().
  int peer() const { return peer_; }
  Purpose purpose() const { return purpose_; }
  Session session() const;  // once done()

 private:
  enum class Expects { kHello, kChallenge, kProof, kAccept, kNothing };

  Handshake(const Identity& self, bool listens) : self_(self), listens_(listens) {}
  std::string Greeting() const;
  absl::Status ReadGreeting(absl::string_view greeting);
  absl::Status CheckPeer() const;
  Digest Proof(absl::string_view role) const;
  absl::Status ReceiveHello(absl::string_view message);
  absl::Status ReceiveChallenge(absl::string_view message);
  absl::Status ReceiveProof(absl::string_view message);
  absl::Status ReceiveAccept(absl::string_view message);

  Identity self_;
  bool listens_ = false;
  Expects expects_ = Expects::kHello;
  bool proven_ = false;
  int peer_ = -1;
  Purpose purpose_ = Purpose::kControl;
  std::string transcript_;  // both greetings, the connector's first
  std::string outgoing_;

  // What the other end's greeting says.
  uint32_t protocol_ = 0;
  uint32_t their_peer_ = 0;
  uint32_t their_size_ = 0;
  std::string their_version_;         // its first kVersionBytes bytes
  std::string their_version_digest_;  // of all of it
};

}  // namespace trainyard::engine
