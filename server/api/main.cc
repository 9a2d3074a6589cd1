// trainyard-server: the control plane as a program.

#include <grpc/support/log.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "proto/tls/certificate.h"
#include "server/api/server.h"
#include "server/audit/kept_heads.h"
#include "server/auth/authority.h"
#include "server/auth/shown_certificate.h"
#include "server/auth/token_file.h"
#include "server/restore/restore.h"
#include "storage/base/file.h"
#include "storage/base/flags_file.h"
#include "storage/base/log.h"
#include "storage/base/retry_pause.h"
#include "storage/base/server_list.h"
#include "storage/base/status.h"
#include "storage/postgres/postgres.h"

namespace trainyard {
namespace {

struct Flags {
  std::string listen = "127.0.0.1:7070";
  std::optional<std::string> listen_agents;
  bool insecure = false;
  std::optional<std::string> tls_certificate, tls_key, authority_key;
  std::vector<std::string> tls_hosts;
  std::string port_file, agents_port_file;
  std::string database;
  std::vector<std::string> token_files;
  std::string checkpoint_root;
  std::string audit_heads;
  std::string revocations;
  std::string pools;
  int64_t heartbeat_ms = 2000;
  int64_t lease_ms = 10000;
  int64_t self_fence_ms = 8000;
  int64_t lease_margin_ms = 2000;
  int64_t orphan_limit_ms = 600000;
  int64_t start_limit_ms = 600000;
  int64_t grow_after_ms = 60000;
  int most_growths = 4;
  CallerLimitOptions limits;
};

constexpr absl::Duration kPatienceAtStart = absl::Seconds(60);
constexpr absl::Duration kFirstRetry = absl::Milliseconds(10);
constexpr absl::Duration kLongestRetry = absl::Milliseconds(500);
constexpr absl::Duration kDrainLimit = absl::Seconds(5);
constexpr absl::Duration kLookEvery = absl::Seconds(1);  // at files of certificates

// SIGTERM and SIGINT, taken by waiting: no handler, no race with threads.
class StopSignals {
 public:
  // Make it before the first thread: threads inherit the mask.
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
  }
  // Whether one came.
  bool WaitFor(absl::Duration limit) {
    const timespec timeout = absl::ToTimespec(limit);
    const int number = sigtimedwait(&set_, nullptr, &timeout);
    if (number > 0) spdlog::info("{}: drains", strsignal(number));
    return number > 0;
  }
  // A second signal ends the process at once.
  void GiveUpWaiting() { pthread_sigmask(SIG_UNBLOCK, &set_, nullptr); }

 private:
  sigset_t set_;
};

// Repeats `step` while the database is away, for a minute at most.
absl::Status Persist(StopSignals& signals, const std::string& what,
                     const std::function<absl::Status()>& step) {
  const absl::Duration limit = SystemClock().SinceBoot() + kPatienceAtStart;
  RetryPause pause(kFirstRetry, kLongestRetry);
  bool told = false;
  while (true) {
    const absl::Status status = step();
    if (!absl::IsUnavailable(status) || SystemClock().SinceBoot() > limit) return status;
    if (!told) spdlog::warn("{}: {}; tries again for a minute", what, status.ToString());
    told = true;
    if (signals.WaitFor(pause.Next())) return absl::CancelledError("stopped while starting");
  }
}

// One stream takes one descriptor at least; with the usual soft limit of 1024 the server would soon
// accept no more connections.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) spdlog::warn("could not raise the descriptor limit");
}

bool Encrypts(const Flags& flags) {
  return flags.tls_certificate.has_value() || flags.authority_key.has_value();
}

absl::Status CheckTlsFlags(const Flags& flags) {
  if (flags.tls_certificate.has_value() != flags.tls_key.has_value()) {
    return absl::InvalidArgumentError("--tls-certificate and --tls-key are needed together");
  }
  if (flags.listen_agents.has_value() && !flags.authority_key.has_value()) {
    return absl::InvalidArgumentError(
        "--listen-agents: the yard's own authority vouches for agents there; name the file with "
        "its "
        "key (--authority-key)");
  }
  if (flags.tls_certificate.has_value() && flags.authority_key.has_value() &&
      !flags.listen_agents.has_value()) {
    return absl::InvalidArgumentError(
        "either --tls-certificate or --authority-key, unless agents have a port of their own "
        "(--listen-agents): on one port a server shows one certificate");
  }
  if (!flags.agents_port_file.empty() && !flags.listen_agents.has_value()) {
    return absl::InvalidArgumentError(
        "--agents-port-file: there is no such port without "
        "--listen-agents");
  }
  if (!flags.tls_hosts.empty() && !flags.authority_key.has_value()) {
    return absl::InvalidArgumentError(
        "--tls-host is for a certificate by the yard's own authority (--authority-key)");
  }
  if (flags.insecure && Encrypts(flags)) {
    return absl::InvalidArgumentError("--insecure is for a server without TLS; leave it out");
  }
  for (const std::string& host : flags.tls_hosts) {
    TY_RETURN_IF_ERROR(Annotate(CheckHost(host), "--tls-host"));
  }
  if (!Encrypts(flags) && !flags.insecure && !IsLoopback(flags.listen)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen '", flags.listen, "': others than this machine reach this address, and without ",
        "TLS tokens would travel in clear; let the yard be its own authority (--authority-key), ",
        "name a certificate (--tls-certificate, --tls-key), listen on 127.0.0.1 behind a proxy or ",
        "a tunnel that encrypts, or say --insecure on a network that you trust"));
  }
  return absl::OkStatus();
}

// What a certificate by the yard's authority stands for: this machine as it calls itself, and what
// the flags say, or else its name and the addresses that it listens on.
std::vector<std::string> HostsOf(const Flags& flags) {
  std::vector<std::string> hosts = {"localhost", "127.0.0.1"};
  const auto add = [&hosts](const std::string& host) {
    const bool known = std::find(hosts.begin(), hosts.end(), host) != hosts.end();
    if (!known && CheckHost(host).ok()) hosts.push_back(host);
  };
  for (const std::string& host : flags.tls_hosts) add(host);
  if (!flags.tls_hosts.empty()) return hosts;
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) == 0) add(name);
  for (const std::string& address : {flags.listen, flags.listen_agents.value_or("")}) {
    const absl::string_view listen(address);
    const std::string host(
        absl::StripSuffix(absl::StripPrefix(listen.substr(0, listen.rfind(':')), "["), "]"));
    if (host != "0.0.0.0" && host != "::") add(host);
  }
  return hosts;
}

absl::StatusOr<std::string> CheckpointRootUri(const std::string& root) {
  if (absl::StartsWith(root, "/")) return absl::StrCat("file://", root);
  if (absl::StartsWith(root, "file:///")) return root;
  return absl::InvalidArgumentError(
      absl::StrCat("--checkpoint-root '", root, "': expected file:///… or an absolute path"));
}

absl::StatusOr<ServerOptions> ToOptions(const Flags& flags) {
  if (flags.heartbeat_ms <= 0 || flags.heartbeat_ms >= flags.self_fence_ms ||
      flags.self_fence_ms >= flags.lease_ms || flags.lease_margin_ms < 0 ||
      flags.orphan_limit_ms < 0 || flags.start_limit_ms <= 0 || flags.grow_after_ms < 0 ||
      flags.most_growths < 1 || flags.limits.submissions_per_minute < 0 ||
      flags.limits.most_streams < 0) {
    return absl::InvalidArgumentError(
        "expected 0 < --heartbeat-ms < --self-fence-ms < --lease-ms, --lease-margin-ms >= 0, "
        "--orphan-limit-ms >= 0, --start-limit-ms > 0, --grow-after-ms >= 0, --most-growths > 0, "
        "--submissions-per-minute >= 0 and --most-streams >= 0");
  }
  TY_RETURN_IF_ERROR(CheckListenAddress(flags.listen));
  if (flags.listen_agents.has_value()) {
    TY_RETURN_IF_ERROR(CheckListenAddress(*flags.listen_agents, "--listen-agents"));
  }
  TY_RETURN_IF_ERROR(CheckTlsFlags(flags));
  ServerOptions options{.listen = flags.listen};
  options.schema_version = postgres::SchemaVersion();
  options.audit_heads = flags.audit_heads;
  options.revocations = flags.revocations;
  options.limits = flags.limits;
  TY_ASSIGN_OR_RETURN(options.fleet.checkpoint_root, CheckpointRootUri(flags.checkpoint_root));
  options.fleet.heartbeat = absl::Milliseconds(flags.heartbeat_ms);
  options.fleet.lease = absl::Milliseconds(flags.lease_ms);
  options.fleet.self_fence = absl::Milliseconds(flags.self_fence_ms);
  options.fleet.orphan_limit = absl::Milliseconds(flags.orphan_limit_ms);
  options.planner.orphan_limit = options.fleet.orphan_limit;
  options.planner.lease_margin = absl::Milliseconds(flags.lease_margin_ms);
  options.planner.tell_after = absl::Seconds(3);
  options.planner.grow_after = absl::Milliseconds(flags.grow_after_ms);
  options.planner.most_growths = flags.most_growths;
  if (!flags.pools.empty()) {
    TY_ASSIGN_OR_RETURN(options.pools, ReadPools(flags.pools));
  }
  options.scheduler.start_limit = absl::Milliseconds(flags.start_limit_ms);
  return options;
}

absl::Status Serve(const Flags& flags, StopSignals& signals) {
  TY_ASSIGN_OR_RETURN(ServerOptions options, ToOptions(flags));
  std::vector<TokenFile> token_files;
  for (const std::string& flag : flags.token_files) {
    TY_ASSIGN_OR_RETURN(token_files.emplace_back(), ParseTokenFlag(flag));
  }
  if (!Encrypts(flags) && !IsLoopback(flags.listen)) {
    spdlog::warn("{} is reached without TLS: tokens and everything else travel in clear",
                 flags.listen);
  }
  std::unique_ptr<ShownCertificate> of_operator, of_authority;
  if (flags.tls_certificate.has_value()) {
    TY_ASSIGN_OR_RETURN(
        of_operator,
        ShownCertificate::OfFiles({*flags.tls_certificate, *flags.tls_key}, SystemClock().Now()));
    options.tls = of_operator->files();
  }
  RaiseDescriptorLimit();
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<Stores> stores,
                      postgres::Open(flags.database, {.application_name = "trainyard-server"}));
  TY_RETURN_IF_ERROR(
      Persist(signals, "migrate", [&] { return postgres::Migrate(flags.database); }));
  TY_RETURN_IF_ERROR(Persist(signals, "--audit-heads", [&]() -> absl::Status {
    TY_ASSIGN_OR_RETURN(options.yard_epoch, stores->YardEpoch());
    return CheckKeptHeads(flags.audit_heads, stores->audit(), options.yard_epoch);
  }));
  for (const TokenFile& file : token_files) {
    TY_RETURN_IF_ERROR(
        Persist(signals, "tokens", [&] { return AddTokenFile(file, stores->tokens()); }));
  }
  if (flags.authority_key.has_value()) {
    TlsIdentity authority;
    TY_RETURN_IF_ERROR(Persist(signals, "authority", [&]() -> absl::Status {
      TY_ASSIGN_OR_RETURN(authority, OpenAuthority(stores->authority(), *flags.authority_key));
      return absl::OkStatus();
    }));
    TY_ASSIGN_OR_RETURN(of_authority, ShownCertificate::OfAuthority(authority, HostsOf(flags),
                                                                    SystemClock().Now()));
    if (of_operator == nullptr) options.tls = of_authority->files();
    if (flags.listen_agents.has_value()) {
      options.agents = AgentsPort{
          .listen = *flags.listen_agents, .tls = of_authority->files(), .authority = authority};
    }
  }
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                      Server::Start(*stores, SystemClock(), options));
  if (!flags.port_file.empty()) {
    TY_RETURN_IF_ERROR(WriteFileAtomically(flags.port_file, absl::StrCat(server->port(), "\n")));
  }
  if (!flags.agents_port_file.empty()) {
    TY_RETURN_IF_ERROR(
        WriteFileAtomically(flags.agents_port_file, absl::StrCat(server->agents_port(), "\n")));
  }
  while (!signals.WaitFor(kLookEvery) && server->Outdated().ok()) {
    for (ShownCertificate* shown : {of_operator.get(), of_authority.get()}) {
      if (shown != nullptr) shown->LookAgain(SystemClock().Now());
    }
  }
  signals.GiveUpWaiting();
  const absl::Status outdated = server->Outdated();
  server->Drain(kDrainLimit);
  spdlog::info("ends");
  return outdated;
}

void Declare(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen, "HOST:PORT; port 0 takes a free one")
      ->capture_default_str();
  app.add_option(
      "--listen-agents", flags.listen_agents,
      "HOST:PORT for agents alone, who join the yard there and show the certificate that "
      "they then get; without it they come to --listen with tokens");
  app.add_flag("--insecure", flags.insecure,
               "listen beyond this machine without TLS: tokens travel in clear");
  app.add_option(
      "--tls-certificate", flags.tls_certificate,
      "PEM file with the certificate that clients are shown; read again when it changes");
  app.add_option("--tls-key", flags.tls_key, "PEM file with the private key to it");
  app.add_option("--authority-key", flags.authority_key,
                 "the yard is its own authority, which issues this server's certificate: a file "
                 "with the key that opens it, the same on all servers; the first one makes it");
  app.add_option(
      "--tls-host", flags.tls_hosts,
      "name or address by which this server is called, for a certificate by the yard's "
      "own authority, beside localhost (repeatable; default: the host's name and those of "
      "--listen and --listen-agents)");
  app.add_option("--port-file", flags.port_file, "file that gets the bound port");
  app.add_option("--agents-port-file", flags.agents_port_file, "likewise for --listen-agents");
  app.add_option("--database", flags.database, "libpq connection string");
  app.add_option("--token-file", flags.token_files,
                 "ROLE:NAME:PATH (role admin or agent; repeatable): a token to accept");
  app.add_option("--checkpoint-root", flags.checkpoint_root,
                 "URI under which checkpoints go: file:///…");
  app.add_option(
      "--audit-heads", flags.audit_heads,
      "file that gets a line with the head of this server's part of the audit every 10 s "
      "in which it grew: kept elsewhere, it shows `trainyard audit verify` what was cut "
      "off or written anew");
  app.add_option("--revocations", flags.revocations,
                 "file that gets a line with each token and each key of a node that is revoked by "
                 "this server: kept elsewhere, it keeps them revoked when the database is restored "
                 "from a backup");
  app.add_option("--pools", flags.pools,
                 "YAML file with the pools whose nodes Slurm makes when jobs wait for them, the "
                 "same on all servers");
  app.add_option("--heartbeat-ms", flags.heartbeat_ms, "agents renew this often")
      ->capture_default_str();
  app.add_option("--lease-ms", flags.lease_ms, "how long an agent may run without")
      ->capture_default_str();
  app.add_option("--self-fence-ms", flags.self_fence_ms,
                 "when it takes the lease for lost: its workers make nothing visible from then on")
      ->capture_default_str();
  app.add_option("--orphan-limit-ms", flags.orphan_limit_ms,
                 "how long after that workers step on, should the server come back")
      ->capture_default_str();
  app.add_option("--lease-margin-ms", flags.lease_margin_ms, "waited beyond a lease")
      ->capture_default_str();
  app.add_option("--start-limit-ms", flags.start_limit_ms,
                 "how long a job may be STARTING, from its placement until all of its ranks have "
                 "restored: then it is stopped, and begins again elsewhere")
      ->capture_default_str();
  app.add_option("--grow-after-ms", flags.grow_after_ms,
                 "for how long slots must have been of use to no waiting job before a running job "
                 "takes them, within its resources.max_slots")
      ->capture_default_str();
  app.add_option("--most-growths", flags.most_growths,
                 "how often within an hour one job takes more slots while it runs")
      ->capture_default_str();
  app.add_option("--submissions-per-minute", flags.limits.submissions_per_minute,
                 "how many jobs one caller may submit to this server; more are to be tried again "
                 "later, which trainyard does by itself. 0: any number")
      ->capture_default_str();
  app.add_option("--most-streams", flags.limits.most_streams,
                 "how many watches and logs one caller may have open on this server. 0: any number")
      ->capture_default_str();
}

// gRPC tells of each connection that it could not make or take, of which any stranger may cause as
// many as he likes: one a second is enough.
void LogForGrpc(gpr_log_func_args* said) {
  static std::atomic<int64_t> last_second = 0;
  const int64_t second = absl::ToInt64Seconds(SystemClock().SinceBoot());
  if (last_second.exchange(second) == second) return;
  spdlog::warn("gRPC: {}", said->message);
}

absl::Status PrintAuthority(const std::string& database, StopSignals& signals) {
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<Stores> stores,
                      postgres::Open(database, {.application_name = "trainyard-server"}));
  std::optional<AuthorityRecord> authority;
  TY_RETURN_IF_ERROR(Persist(signals, "authority", [&]() -> absl::Status {
    TY_ASSIGN_OR_RETURN(authority, stores->authority().FindAuthority());
    return absl::OkStatus();
  }));
  if (!authority.has_value()) {
    return absl::NotFoundError(
        "the yard has no authority of its own; a server with --authority-key makes one");
  }
  std::cout << authority->certificate << std::flush;
  if (!std::cout) return absl::InternalError("the certificate could not be written");
  return absl::OkStatus();
}

CLI::App* DeclareRestore(CLI::App& app, RestoreFlags& flags) {
  CLI::App* restore = app.add_subcommand(
      "restore",
      "make a database that was restored from a backup one that servers may work on, and end: jobs "
      "go on from the checkpoints that exist, what ran is fenced, and what was revoked stays so. "
      "All servers must be stopped");
  restore->add_option("--database", flags.database, "libpq connection string")->required();
  restore
      ->add_option("--checkpoint-root", flags.checkpoint_root,
                   "under which servers keep checkpoints; it has to be seen from here")
      ->required();
  restore->add_option(
      "--revocations", flags.revocation_files,
      "file in which a server wrote down what was revoked (repeatable: one for each server)");
  restore->add_flag("--revoke-all", flags.revoke_all,
                    "revoke all tokens that people made and all keys of nodes: it is not known "
                    "which of them were revoked since the backup");
  restore->add_flag("--copy", flags.copy,
                    "the yard that was backed up goes on working, and this is a copy of it, for a "
                    "trial say: it gets an identity of its own, and no node of the other one");
  restore->add_option("--forget-checkpoints", flags.forget_checkpoints,
                      "a job (projects/P/jobs/J; repeatable) that is to begin anew, since none of "
                      "the checkpoints exists that the database knows of it; or `all` such jobs");
  return restore;
}

absl::Status Restore(RestoreFlags flags) {
  if (flags.revocation_files.empty() && !flags.revoke_all && !flags.copy) {
    return absl::InvalidArgumentError(
        "--revocations or --revoke-all is needed: the database does not know what was revoked "
        "since "
        "the backup was made");
  }
  TY_ASSIGN_OR_RETURN(flags.checkpoint_root, CheckpointRootUri(flags.checkpoint_root));
  TY_ASSIGN_OR_RETURN(const std::string told, RestoreYard(flags));
  std::cout << told << std::flush;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  // Debian's Abseil detects deadlocks: for that each lock of a mutex, gRPC's too, takes one lock
  // that the whole process shares.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Flags flags;
  CLI::App app(
      "The control plane of Trainyard: gRPC in, PostgreSQL behind.\n"
      "Exit codes: 0 ended by SIGTERM, 1 failed, 2 wrong flags.",
      "trainyard-server");
  Declare(app, flags);
  CLI::App* show_authority = app.add_subcommand(
      "authority", "print the certificate of the yard's own authority, for agents and clients");
  show_authority->add_option("--database", flags.database, "libpq connection string");
  CLI::App* migrate =
      app.add_subcommand("migrate", "bring the database's tables up to date, and end");
  migrate->add_option("--database", flags.database, "libpq connection string");
  RestoreFlags restored;
  CLI::App* restore = DeclareRestore(app, restored);
  app.set_version_flag("--version", TRAINYARD_VERSION);
  try {
    ParseFlags(app, argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  StopSignals signals;
  SetUpLog("trainyard-server");
  gpr_set_log_function(LogForGrpc);
  absl::Status status;
  if (restore->parsed()) {
    status = Restore(restored);
    if (!status.ok()) spdlog::error("{}", status.ToString());
    return status.ok() ? 0 : absl::IsInvalidArgument(status) ? 2 : 1;
  }
  const bool serves = !migrate->parsed() && !show_authority->parsed();
  if (flags.database.empty() || (serves && flags.checkpoint_root.empty())) {
    std::cerr << "trainyard-server: --database "
              << (serves ? "and --checkpoint-root are needed" : "is needed") << "; see --help\n";
    return 2;
  }
  if (migrate->parsed()) {
    status = Persist(signals, "migrate", [&] { return postgres::Migrate(flags.database); });
  } else if (show_authority->parsed()) {
    status = PrintAuthority(flags.database, signals);
  } else {
    status = Serve(flags, signals);
  }
  if (status.ok() || absl::IsCancelled(status)) return 0;  // cancelled: SIGTERM came while starting
  spdlog::error("{}", status.ToString());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) { return trainyard::Main(argc, argv); }
