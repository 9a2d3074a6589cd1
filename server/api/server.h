#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/tls/certificate.h"
#include "proto/tls/pem_files.h"
#include "server/auth/caller_limits.h"
#include "server/fleet/fleet.h"
#include "server/fleet/provision/pools.h"
#include "server/retention/retention_loop.h"
#include "server/scheduler/loop.h"
#include "server/sizing/sizer.h"
#include "server/watch/watch.h"
#include "server/work/call_queue.h"
#include "storage/base/clock.h"
#include "storage/stores.h"

namespace trainyard {

// A port for agents alone, who show the certificate that they get when they join.
struct AgentsPort {
  std::string listen;     // HOST:PORT; port 0: any free one
  TlsFiles tls;           // what agents are shown: a certificate by `authority`
  TlsIdentity authority;  // the yard's, which vouches for nodes
};

struct ServerOptions {
  std::string listen = "127.0.0.1:7070";  // HOST:PORT; port 0: any free one
  std::optional<TlsFiles> tls;            // without: clear text
  std::optional<AgentsPort> agents;       // without: agents come to `listen`, with tokens
  std::string replica;                    // unique to this process; made up when empty
  int schema_version = 0;
  FleetOptions fleet;
  PlannerOptions planner;
  WatchOptions watch;
  LoopOptions scheduler;  // `holder`, `planner` and `lease` are filled in
  SizerOptions sizer;
  RetentionOptions retention;
  std::vector<Pool> pools;  // whose nodes engines make
  int64_t yard_epoch = 1;
  std::string audit_heads;  // file for AuditLogOptions::heads_file
  std::string revocations;  // file for RevocationList; empty: there is none
  CallerLimitOptions limits;
  absl::Duration pause_grace = absl::Minutes(5);
  CallQueueOptions calls;  // store calls for everything that is not a stream
  int stream_threads = 4;  // store calls for watchers and logs
  int fleet_threads = 6;   // store calls for agents
};

// kInvalidArgument unless it is HOST:PORT, of the flag that is named.
absl::Status CheckListenAddress(const std::string& listen, const char* flag = "--listen");

// A running server over `stores`: services, scheduler, watchers, sessions. Thread-safe.
class Server {
 public:
  // kInvalidArgument or kUnavailable when it cannot listen, kFailedPrecondition without
  // trainyard-sizer; what CheckTlsFiles says. `stores` and `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Stores& stores, Clock& clock,
                                                       ServerOptions options);
  ~Server();

  int port() const;
  int agents_port() const;  // 0: there is none
  const std::string& replica() const;

  // kFailedPrecondition: the yard was restored from a backup, and this server remembers things that
  // were forgotten (Stores::Probe). It has to end, and to be started anew.
  absl::Status Outdated() const;

  // Takes no new work, gives leadership up, ends every stream with UNAVAILABLE, and waits for calls
  // under way at most `limit`; those that last longer are cancelled. Idempotent. The destructor
  // drains.
  void Drain(absl::Duration limit = absl::Seconds(5));

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace trainyard
