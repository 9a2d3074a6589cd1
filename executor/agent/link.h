#pragma once

// The stream to a server: connects, registers, and reconnects for ever, to the next server of the
// yard when one does not answer. Only this file and link.cc of the agent know gRPC.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "executor/agent/node_certificate.h"
#include "storage/base/clock.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

struct LinkEvent {
  enum Kind {
    kUp,  // registered: `message` holds the Welcome
    kMessage,
    kDown,     // the session ended with `status`; the link tries the next one by itself
    kRefused,  // the server refuses this agent a session, as `status` says; the link tries again
  } kind = kDown;
  std::string server;  // with kUp
  v1::ServerMessage message;
  absl::Duration register_sent = absl::ZeroDuration();  // with kUp, on Clock::SinceBoot
  absl::Status status;
};

// Thread-safe.
class Link {
 public:
  struct Options {
    std::vector<std::string> servers;    // host:port of each; a session is with any of them
    std::string token_file;              // read anew for each session; empty: no token
    std::optional<std::string> ca_file;  // likewise (ReadAuthorities); without: clear text
    // With it the node shows its certificate, for which it first joins the yard with `join_token`,
    // the path of a JoinTokenFile, if it has none; `ca_file` may still say whom to trust.
    std::optional<NodeCertificate> certificate;
    std::optional<std::string> join_token;
    absl::Duration look_at_certificate = absl::Seconds(10);  // how often: is it to be renewed?
    v1::Register hello;
    std::vector<v1::RankKey> running = {};  // until SetRunning is called
  };

  // `deliver` is called from the link's own thread, in order; it must not block.
  Link(Options options, Clock& clock, std::function<void(LinkEvent)> deliver);
  ~Link();

  // Sets what sessions that begin from now on report as Register::running.
  void SetRunning(std::vector<v1::RankKey> running);

  // Without a session the message is dropped: what matters is sent again in the next one.
  void Send(v1::AgentMessage message);

  // Ends the session when nothing was heard from the server for `limit` (a server that hangs, or a
  // network that swallows packets).
  void ResetIfSilentFor(absl::Duration limit);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Pause before connection attempt number `failures` + 1 in a row: 50 ms at first, so that a
// restarted server is met at once, up to 1 s, with `jitter` in [0, 1) spread over +-25 %.
absl::Duration ReconnectPause(int failures, double jitter);

// Pause after the server has refused this node for the `refusals`th time in a row: from 100 ms,
// doubled up to 30 s.
absl::Duration PauseAfterRefusals(int refusals, double jitter);

}  // namespace trainyard
