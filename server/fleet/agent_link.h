#pragma once

#include "absl/status/status.h"

namespace trainyard {

namespace v1 {
class ServerMessage;
}  // namespace v1

// The agent's end of a session: the stream, behind an interface that keeps gRPC out of the session.
// Thread-safe. Send and ReadNext call nothing of the session back before they return.
class AgentLink {
 public:
  virtual ~AgentLink() = default;

  // In order. Never blocks; an agent that reads nothing for too long loses its stream.
  virtual void Send(const v1::ServerMessage& message) = 0;

  // Asks for the next message: then AgentSession::Receive follows, or Leave.
  virtual void ReadNext() = 0;

  // Ends the stream. The link may be gone as soon as this was called.
  virtual void Finish(const absl::Status& status) = 0;
};

}  // namespace trainyard
