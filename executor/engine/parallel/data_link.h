#pragma once

// How the payloads of Exchange travel between two ranks: over TCP (tcp_link.h) or through memory
// that both map (memory_link.h).

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace trainyard::engine {

// How messages of errors name the two ends of a link: "rank 2 (10.0.0.3:7011)".
struct LinkNames {
  std::string self;
  std::string peer;
};

// Precedes the payload of every message, on either kind of link. Counts of bytes.
struct MessageHeader {
  uint64_t magic = kMagic;
  uint64_t number = 0;   // of the exchange between these two ranks, from 0
  uint64_t length = 0;   // of the payload that follows
  uint64_t expects = 0;  // how long the message is that the sender expects in the same exchange

  static constexpr uint64_t kMagic = 0x3165676e61686378;  // "xchange1"
};
static_assert(sizeof(MessageHeader) == 32);

// OK if `header` is what a rank that sends `send` bytes and receives `receive` in exchange `number`
// must get. The message of an error names both ranks and what they say.
absl::Status CheckHeader(const MessageHeader& header, uint64_t number, size_t send, size_t receive,
                         const LinkNames& names);

// One end of a link, which carries one exchange after the other. For one thread at a time.
class DataLink {
 public:
  virtual ~DataLink() = default;

  // Starts an exchange; done() tells when it is over. A direction that has no bytes sends nothing.
  // The spans must live until then. Not before the exchange before is done.
  virtual void Begin(absl::Span<const char> send, absl::Span<char> receive) = 0;

  // Moves what can be moved at once, of a large message a part only. Returns whether anything
  // moved. kUnavailable: the message that came is not the one that was to come. Only the end of the
  // connection is no error here, but closed().
  virtual absl::StatusOr<bool> Progress() = 0;

  virtual bool done() const = 0;

  // The other end is gone: what is not there by now will not come. Shared memory cannot tell.
  virtual bool closed() const { return false; }

  // The other end's host does not confirm what was sent for `patience`, although its rank is heard
  // of on another connection. Call now and then while the exchange lasts.
  virtual bool Stuck(absl::Duration /*patience*/) { return false; }

  // A link that one waits for with poll: the socket and the events that would let Progress move
  // something; otherwise -1.
  virtual int fd() const { return -1; }
  virtual int16_t events() const { return 0; }

  // A link that one waits for at the doorbell: asks the other end to ring it once there is
  // something to do. Progress has to be tried once more afterwards, before waiting.
  virtual void AskForRing() {}
};

}  // namespace trainyard::engine
