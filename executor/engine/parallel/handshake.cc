#include "executor/engine/parallel/handshake.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "executor/engine/parallel/wire.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr absl::string_view kMagic = "trainyrd";
constexpr uint32_t kProtocol = 1;
constexpr size_t kVersionBytes = 96;
constexpr size_t kGreetingBytes =
    8 + 4 + 2 + 2 + 4 + 4 + 4 + 4 + sizeof(Nonce) + sizeof(Digest) + kVersionBytes;
static_assert(kGreetingBytes == 192);

// What a proof is a proof of. An end never accepts its own words back: the roles differ.
constexpr absl::string_view kListener = "trainyard rank: I listen";
constexpr absl::string_view kConnector = "trainyard rank: I connect";
constexpr absl::string_view kAccepted = "trainyard rank: I accept";
constexpr absl::string_view kKeyToListener = "trainyard rank: key of the connector's messages";
constexpr absl::string_view kKeyToConnector = "trainyard rank: key of the listener's messages";
constexpr absl::string_view kPairingKey = "trainyard rank: key to recognise each other by";

MacKey FirstBytes(const Digest& digest) {
  MacKey key;
  std::copy_n(digest.begin(), key.size(), key.begin());
  return key;
}

}  // namespace

Handshake Handshake::ToListener(const Identity& self, int peer, Purpose purpose) {
  Handshake handshake(self, /*listens=*/false);
  handshake.peer_ = peer;
  handshake.purpose_ = purpose;
  handshake.transcript_ = handshake.Greeting();
  handshake.outgoing_ = handshake.transcript_;
  handshake.expects_ = Expects::kChallenge;
  return handshake;
}

Handshake Handshake::FromConnector(const Identity& self) {
  return Handshake(self, /*listens=*/true);
}

size_t Handshake::next_bytes() const {
  switch (expects_) {
    case Expects::kHello:
      return kGreetingBytes;
    case Expects::kChallenge:
      return kGreetingBytes + sizeof(Digest);
    case Expects::kProof:
    case Expects::kAccept:
      return sizeof(Digest);
    case Expects::kNothing:
      return 0;
  }
  return 0;
}

absl::Status Handshake::Receive(absl::string_view message) {
  TY_CHECK(message.size() == next_bytes(), message.size(), " bytes of ", next_bytes());
  switch (expects_) {
    case Expects::kHello:
      return ReceiveHello(message);
    case Expects::kChallenge:
      return ReceiveChallenge(message);
    case Expects::kProof:
      return ReceiveProof(message);
    case Expects::kAccept:
      return ReceiveAccept(message);
    case Expects::kNothing:
      break;
  }
  return absl::OkStatus();
}

std::string Handshake::Greeting() const {
  std::string greeting(kMagic);
  AppendInteger(kProtocol, greeting);
  AppendInteger(static_cast<uint16_t>(purpose_), greeting);
  AppendInteger(static_cast<uint16_t>(std::min(self_.version.size(), kVersionBytes)), greeting);
  AppendInteger(static_cast<uint32_t>(self_.rank), greeting);
  AppendInteger(static_cast<uint32_t>(peer_), greeting);
  AppendInteger(static_cast<uint32_t>(self_.size), greeting);
  AppendInteger(uint32_t{0}, greeting);  // so that the next field is aligned
  absl::StrAppend(&greeting, View(RandomNonce()), View(Sha256Of(self_.version)));
  std::string version = self_.version.substr(0, kVersionBytes);
  version.resize(kVersionBytes, '\0');
  return greeting + version;
}

absl::Status Handshake::ReadGreeting(absl::string_view greeting) {
  if (ConsumeBytes(greeting, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("what it sent is not the greeting of a rank");
  }
  protocol_ = ConsumeInteger<uint32_t>(greeting);
  const auto purpose = ConsumeInteger<uint16_t>(greeting);
  const auto version_bytes = ConsumeInteger<uint16_t>(greeting);
  const auto rank = ConsumeInteger<uint32_t>(greeting);
  their_peer_ = ConsumeInteger<uint32_t>(greeting);
  their_size_ = ConsumeInteger<uint32_t>(greeting);
  ConsumeInteger<uint32_t>(greeting);
  ConsumeBytes(greeting, sizeof(Nonce));  // part of the transcript, which is all that it is for
  their_version_digest_ = std::string(ConsumeBytes(greeting, sizeof(Digest)));
  if (version_bytes > kVersionBytes || (purpose != static_cast<uint16_t>(Purpose::kControl) &&
                                        purpose != static_cast<uint16_t>(Purpose::kData))) {
    return absl::InvalidArgumentError("what it sent is not the greeting of a rank");
  }
  their_version_ = std::string(greeting.substr(0, version_bytes));
  if (listens_) {
    purpose_ = static_cast<Purpose>(purpose);
    peer_ = rank < their_size_ && rank <= uint32_t{1} << 20 ? static_cast<int>(rank) : -1;
  } else if (static_cast<Purpose>(purpose) != purpose_ || static_cast<int64_t>(rank) != peer_) {
    their_peer_ = rank;
    return absl::FailedPreconditionError(
        absl::StrCat("it says that it is rank ", rank, ", where rank ", peer_, " was expected"));
  }
  return absl::OkStatus();
}

// What two ranks that know the secret must have in common.
absl::Status Handshake::CheckPeer() const {
  if (their_version_digest_ != View(Sha256Of(self_.version))) {
    return absl::FailedPreconditionError(
        absl::StrCat("its version is \"", EscapedLine(their_version_), "\", that of rank ",
                     self_.rank, " is \"", EscapedLine(self_.version), "\""));
  }
  if (static_cast<int64_t>(their_size_) != self_.size) {
    return absl::FailedPreconditionError(absl::StrCat("it is of a gang of ", their_size_,
                                                      " ranks, rank ", self_.rank, " of one of ",
                                                      self_.size));
  }
  if (static_cast<int64_t>(their_peer_) != self_.rank || peer_ < 0 ||
      (listens_ ? peer_ <= self_.rank : peer_ >= self_.rank)) {
    return absl::FailedPreconditionError(
        absl::StrCat("it wants to reach rank ", their_peer_, ", and this is rank ", self_.rank));
  }
  return absl::OkStatus();
}

Digest Handshake::Proof(absl::string_view role) const {
  return HmacSha256(self_.secret, absl::StrCat(role, transcript_));
}

absl::Status Handshake::ReceiveHello(absl::string_view message) {
  TY_RETURN_IF_ERROR(ReadGreeting(message));
  transcript_ = std::string(message);
  const std::string greeting = Greeting();
  transcript_ += greeting;
  outgoing_ = absl::StrCat(greeting, View(Proof(kListener)));
  if (protocol_ != kProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("it speaks version ", protocol_,
                                                      " of the protocol of ranks, rank ",
                                                      self_.rank, " version ", kProtocol));
  }
  expects_ = Expects::kProof;
  return absl::OkStatus();
}

absl::Status Handshake::ReceiveChallenge(absl::string_view message) {
  const absl::string_view greeting = message.substr(0, kGreetingBytes);
  const absl::Status read = ReadGreeting(greeting);
  if (absl::IsInvalidArgument(read)) return read;
  if (protocol_ != kProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("it speaks version ", protocol_,
                                                      " of the protocol of ranks, rank ",
                                                      self_.rank, " version ", kProtocol));
  }
  absl::StrAppend(&transcript_, greeting);
  if (!SameBytes(message.substr(kGreetingBytes), View(Proof(kListener)))) {
    return absl::PermissionDeniedError("it does not know the secret of this attempt");
  }
  proven_ = true;
  // Also to a rank of another version, which learns in this way that it is not a stranger who says
  // so.
  outgoing_ = std::string(View(Proof(kConnector)));
  TY_RETURN_IF_ERROR(read);
  TY_RETURN_IF_ERROR(CheckPeer());
  expects_ = Expects::kAccept;
  return absl::OkStatus();
}

absl::Status Handshake::ReceiveProof(absl::string_view message) {
  if (!SameBytes(message, View(Proof(kConnector)))) {
    return absl::PermissionDeniedError("it does not know the secret of this attempt");
  }
  proven_ = true;
  TY_RETURN_IF_ERROR(CheckPeer());
  outgoing_ = std::string(View(Proof(kAccepted)));
  expects_ = Expects::kNothing;
  return absl::OkStatus();
}

absl::Status Handshake::ReceiveAccept(absl::string_view message) {
  if (!SameBytes(message, View(Proof(kAccepted)))) {
    return absl::InvalidArgumentError("its acceptance does not verify");
  }
  expects_ = Expects::kNothing;
  return absl::OkStatus();
}

Session Handshake::session() const {
  const MacKey to_listener = FirstBytes(Proof(kKeyToListener));
  const MacKey to_connector = FirstBytes(Proof(kKeyToConnector));
  return Session{.send_key = listens_ ? to_connector : to_listener,
                 .receive_key = listens_ ? to_listener : to_connector,
                 .pairing_key = Proof(kPairingKey)};
}

}  // namespace trainyard::engine
