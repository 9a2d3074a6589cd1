#include "server/api/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/tls/credentials.h"
#include "server/api/services.h"
#include "server/api/store_watch.h"
#include "server/audit/audit_log.h"
#include "server/auth/authenticator.h"
#include "server/fleet/executor_service.h"
#include "server/fleet/provision/provisioner.h"
#include "server/fleet/provision/slurm/slurm_engine.h"
#include "server/watch/watch_hub.h"
#include "server/work/task_pool.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kLargestMessage = 4 << 20;
constexpr int kMostGrpcThreads = 64;  // they hand calls on, and answer reflection

void Configure(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kLargestMessage);
  builder.SetMaxSendMessageSize(4 * kLargestMessage);  // desired sets; answers keep below 4 MiB
  // A small gzip message can unfold to a large one.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  // Two servers on one port would take each other's calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients ping every 10 s; a peer that vanished is noticed after 30 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  // No pings that measure the bandwidth: with every agent and watcher on a connection of its own
  // they were most of the traffic of an idle yard. Without them the flow-control window stays
  // small: a peer sends 64 KiB per round trip, and the rest of a large message; 0.6 MB/s of small
  // messages where a round trip takes 100 ms.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  grpc::ResourceQuota quota("calls");
  quota.SetMaxThreads(kMostGrpcThreads);
  builder.SetResourceQuota(quota);
}

// The name with which this server leads, "HOST BOOT LISTEN/REPLICA". Only one process at a time can
// listen on an address of a machine, so a server that listens there after a crash need not wait for
// the lease of its predecessor.
std::string LeaderName(const ServerOptions& options) {
  char host[256] = "";
  const absl::StatusOr<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id", 256);
  if (gethostname(host, sizeof(host) - 1) != 0 || !boot.ok() ||
      absl::EndsWith(options.listen, ":0")) {
    return options.replica;
  }
  const std::string where =
      absl::StrCat(host, " ", absl::StripAsciiWhitespace(*boot), " ", options.listen);
  return absl::StrCat(absl::StrReplaceAll(where, {{"/", "_"}}), "/", options.replica);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> CredentialsFor(
    const std::optional<TlsFiles>& tls) {
  if (!tls.has_value()) return grpc::InsecureServerCredentials();
  TY_RETURN_IF_ERROR(CheckTlsFiles(*tls, absl::Now()).status());
  return MakeServerCredentials(*tls);
}

absl::StatusOr<std::unique_ptr<grpc::Server>> Listen(
    const std::string& address, const std::shared_ptr<grpc::ServerCredentials>& credentials,
    const std::vector<std::shared_ptr<grpc::Service>>& services, int& port) {
  grpc::ServerBuilder builder;
  Configure(builder);
  for (const auto& service : services) builder.RegisterService(service.get());
  builder.AddListeningPort(address, credentials, &port);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server != nullptr && port != 0) return server;
  return absl::UnavailableError(absl::StrCat(
      "cannot listen on ", address, ": is the port taken, or the host not of this machine?"));
}

}  // namespace

absl::Status CheckListenAddress(const std::string& listen, const char* flag) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " '", listen, "': expected HOST:PORT with a port of 0 to 65535"));
  }
  return absl::OkStatus();
}

// Members are made in this order and destroyed in the reverse order, after Drain, which stops the
// pools: until then tasks of the fleet's pool call the watches.
struct Server::Parts {
  Parts(Stores& stores, Clock& clock, const ServerOptions& options, std::unique_ptr<Sizer> sizes)
      : sizer(std::move(sizes)),
        calls(options.calls),
        stream_pool(options.stream_threads),
        fleet_pool(options.fleet_threads),
        audit(stores.audit(), clock,
              {.replica = options.replica,
               .epoch = options.yard_epoch,
               .heads_file = options.audit_heads}),
        revocations(options.revocations, clock),
        limits(options.limits, clock),
        authenticator(stores.tokens(), clock),
        watches(stores.jobs(), stores.wakeups(), stream_pool, options.watch),
        fleet(stores.fleet(), stores.wakeups(), fleet_pool, clock, options.fleet,
              [this](const std::string& uid, const SharedItems& items) {
                watches.Offer(uid, items);
              }),
        provisioner(stores, clock,
                    {.pools = options.pools,
                     .make_engine =
                         [](const std::string& yard_id) {
                           return std::make_unique<SlurmEngine>(yard_id);
                         }}),
        scheduler(stores.scheduler(), stores.wakeups(), clock, SchedulerOptions(options)),
        retention(stores.retention(), options.retention) {
    if (options.agents.has_value()) {
      admission.emplace(stores.node_keys(), options.agents->authority);
    }
  }

  LoopOptions SchedulerOptions(const ServerOptions& options) {
    LoopOptions loop = options.scheduler;
    loop.wants_capacity = [this] { return provisioner.WantsCapacity(); };
    loop.on_capacity = [this](CapacityView view) { provisioner.Offer(std::move(view)); };
    return loop;
  }

  absl::Status ListenForAgents(const AgentsPort& options) {
    TY_RETURN_IF_ERROR(CheckTlsFiles(options.tls, absl::Now()).status());
    TY_RETURN_IF_ERROR(authority.Write(options.authority.certificates));
    TY_ASSIGN_OR_RETURN(grpc_for_agents,
                        Listen(options.listen, MakeServerCredentials(options.tls, authority.path()),
                               services_for_agents, agents_port));
    spdlog::info("listens for agents on {} (port {})", options.listen, agents_port);
    return absl::OkStatus();
  }

  std::vector<grpc::Server*> Listening() const {
    std::vector<grpc::Server*> servers;
    for (grpc::Server* server : {grpc.get(), grpc_for_agents.get()}) {
      if (server != nullptr) servers.push_back(server);
    }
    return servers;
  }

  void SetServing(bool serving) {
    for (grpc::Server* server : Listening()) {
      server->GetHealthCheckService()->SetServingStatus(serving);
    }
  }

  void TellOutdated(const absl::Status& why) {
    absl::MutexLock lock(&outdated_mu);
    outdated = why;
  }

  // Ends every stream with `why`, and waits for calls under way at most `limit`.
  void Shutdown(const absl::Status& why, absl::Duration limit) {
    watches.Drain(why);
    fleet.Drain(why);
    const auto until = absl::ToChronoTime(absl::Now() + limit);
    std::vector<std::thread> each;  // at the same time: neither takes new calls any more
    for (grpc::Server* server : Listening()) {
      each.emplace_back([server, until] { server->Shutdown(until); });
    }
    for (std::thread& one : each) one.join();
    sizer->Stop();  // nobody waits for their answers any more
    for (grpc::Server* server : Listening()) server->Wait();
    // No call and no stream is left; what timers remain has nothing to do.
    calls.Stop();
    stream_pool.Stop();
    fleet_pool.Stop();
    audit.Stop();
  }

  std::string replica;
  int port = 0, agents_port = 0;
  bool drained = false;
  absl::Mutex outdated_mu;
  absl::Status outdated ABSL_GUARDED_BY(outdated_mu);
  const std::unique_ptr<Sizer> sizer;  // calls use it
  CallQueue calls;
  TaskPool stream_pool;
  TaskPool fleet_pool;
  AuditLog audit;
  RevocationList revocations;
  CallerLimits limits;
  Authenticator authenticator;
  WatchHub watches;
  Fleet fleet;
  Provisioner provisioner;  // whom the scheduler tells what waits
  SchedulerLoop scheduler;
  RetentionLoop retention;
  std::optional<NodeAdmission> admission;  // with a port for agents
  PemInMemory authority;                   // whose certificates agents show there
  std::vector<std::shared_ptr<grpc::Service>> services, services_for_agents;
  std::unique_ptr<grpc::Server> grpc, grpc_for_agents;
  std::unique_ptr<StoreWatch> store_watch;
};

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() { Drain(); }

int Server::port() const { return parts_->port; }

int Server::agents_port() const { return parts_->agents_port; }

const std::string& Server::replica() const { return parts_->replica; }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Stores& stores, Clock& clock,
                                                      ServerOptions options) {
  TY_RETURN_IF_ERROR(CheckListenAddress(options.listen));
  if (options.agents.has_value()) {
    TY_RETURN_IF_ERROR(CheckListenAddress(options.agents->listen, "--listen-agents"));
  }
  if (options.replica.empty()) options.replica = absl::StrCat("server-", RandomHex(4));
  options.scheduler.holder = LeaderName(options);
  options.scheduler.planner = options.planner;
  options.scheduler.lease = options.fleet.lease;
  TY_ASSIGN_OR_RETURN(std::unique_ptr<Sizer> sizer, Sizer::Start(options.sizer));
  // Before the first entry of the audit, by which a restore tells whether the list is old enough.
  TY_RETURN_IF_ERROR(RevocationList(options.revocations, clock).Begin());
  auto parts = std::make_unique<Parts>(stores, clock, options, std::move(sizer));
  parts->replica = options.replica;
  const ServiceDependencies dependencies{
      .stores = stores,
      .authenticator = parts->authenticator,
      .watches = parts->watches,
      .fleet = parts->fleet,
      .audit = parts->audit,
      .revocations = parts->revocations,
      .limits = parts->limits,
      .admission = parts->admission.has_value() ? &*parts->admission : nullptr,
      .scheduler = parts->scheduler,
      .sizer = *parts->sizer,
      .pool = parts->stream_pool,
      .calls = parts->calls,
      .pools = options.pools,
      .planner = options.planner,
      .pause_grace = options.pause_grace,
      .version = TRAINYARD_VERSION,
      .schema_version = options.schema_version,
      .replica = options.replica};
  parts->services = {MakeAccessService(dependencies),     MakeJobService(dependencies),
                     MakeMetricService(dependencies),     MakeLogService(dependencies),
                     MakeCheckpointService(dependencies), MakeNodeService(dependencies),
                     MakeInfoService(dependencies)};
  if (parts->admission.has_value()) {
    parts->services.push_back(MakeExecutorServiceElsewhere(parts->fleet, parts->audit));
    parts->services_for_agents = {
        MakeExecutorService(parts->fleet, *parts->admission, parts->audit)};
  } else {
    parts->services.push_back(
        MakeExecutorService(parts->fleet, parts->authenticator, parts->audit));
  }
  // Before the first builder; both are for the whole process.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  TY_ASSIGN_OR_RETURN(const auto credentials, CredentialsFor(options.tls));
  if (options.agents.has_value()) TY_RETURN_IF_ERROR(parts->ListenForAgents(*options.agents));
  absl::StatusOr<std::unique_ptr<grpc::Server>> grpc =
      Listen(options.listen, credentials, parts->services, parts->port);
  if (!grpc.ok()) {
    parts->Shutdown(grpc.status(), absl::ZeroDuration());
    return grpc.status();
  }
  parts->grpc = *std::move(grpc);
  parts->provisioner.Start();
  parts->scheduler.Start();
  // Whoever is connected to a server that has lost its store moves to another.
  parts->store_watch = std::make_unique<StoreWatch>(
      [&stores, &parts = *parts] {
        const absl::Status answer = stores.Probe();
        if (answer.ok()) parts.authenticator.LookAgain();
        if (absl::IsFailedPrecondition(answer)) parts.TellOutdated(answer);
        return answer;
      },
      clock,
      [&parts = *parts](const absl::Status& away) {
        parts.SetServing(away.ok());
        parts.fleet.SetStoreAway(away);
        if (!away.ok()) parts.watches.EndAll(away);
      });
  parts->retention.Start();
  spdlog::info("listens on {} (port {}) as {}{}", options.listen, parts->port, options.replica,
               options.tls.has_value() ? ", with TLS" : "");
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

absl::Status Server::Outdated() const {
  absl::MutexLock lock(&parts_->outdated_mu);
  return parts_->outdated;
}

void Server::Drain(absl::Duration limit) {
  Parts& parts = *parts_;
  if (parts.drained) return;
  parts.drained = true;
  parts.scheduler.Stop();  // first: another replica leads from then on
  parts.store_watch->Stop();
  parts.SetServing(false);
  parts.provisioner.Stop();
  parts.retention.Stop();
  parts.Shutdown(absl::UnavailableError("server is draining"), limit);
}

}  // namespace trainyard
