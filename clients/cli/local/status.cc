#include "clients/cli/local/status.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/format.h"
#include "clients/cli/local/postgres.h"
#include "clients/cli/local/supervisor.h"
#include "clients/cpp/client.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

void AskPostgres(const Yard& yard, PartStatus& status) {
  const absl::StatusOr<Postgres> postgres = FindPostgres(yard);
  if (!postgres.ok()) {
    status.detail = std::string(postgres.status().message());
    return;
  }
  SpawnOptions options;
  options.argv = {postgres->bin_dir + "/pg_isready",
                  "-q",
                  "-h",
                  yard.socket_dir(),
                  "-U",
                  "trainyard",
                  "-d",
                  "trainyard",
                  "-t",
                  "2"};
  options.log_path = "/dev/null";
  status.healthy = RunToEnd(options, absl::Seconds(5)).ok();
  status.detail = status.healthy ? "accepts connections" : "does not accept connections";
}

std::string DescribeNode(const v1::Node& node) {
  int busy = 0;
  for (const v1::Slot& slot : node.slots()) busy += slot.job().empty() ? 0 : 1;
  return absl::StrCat("node ", LastSegment(node.name()), " ", v1::Node::State_Name(node.state()),
                      node.draining() ? " (draining)" : "",
                      node.has_leave_time() ? " (leaving)" : "", ", ", node.slots_size(),
                      " slots, ", busy, " busy");
}

void AskServer(const Yard& yard, const YardConfig& config, PartStatus& server, PartStatus& agent) {
  ClientOptions options;
  options.server = absl::StrCat("127.0.0.1:", config.port);
  options.token = yard.AdminToken().value_or("");
  options.call_timeout = absl::Seconds(3);
  options.patience = absl::ZeroDuration();
  Client client(std::move(options));
  const absl::Time start = absl::Now();
  const absl::StatusOr<v1::ListNodesResponse> nodes = client.ListNodes({});
  server.healthy = nodes.ok();
  server.detail = nodes.ok() ? absl::StrCat(client.server(), " answers in ",
                                            absl::ToInt64Milliseconds(absl::Now() - start), " ms")
                             : std::string(nodes.status().message());
  if (!nodes.ok() || nodes->nodes().empty()) {
    agent.detail = nodes.ok() ? "not registered" : "unknown: the server does not answer";
    return;
  }
  agent.healthy = nodes->nodes(0).state() == v1::Node::READY;
  agent.detail = DescribeNode(nodes->nodes(0));
}

}  // namespace

std::vector<PartStatus> StatusOfYard(const Yard& yard, const YardConfig& config) {
  std::vector<PartStatus> parts = {{"supervisor"}};
  for (const std::string& name : PartNames()) parts.push_back({name});
  AskPostgres(yard, parts[1]);  // before gRPC makes threads
  AskServer(yard, config, parts[2], parts[3]);
  const std::vector<PartState> states = ReadPartStates(yard);
  for (PartStatus& part : parts) {
    const absl::StatusOr<ProcessId> process = ReadPidFile(yard.pid_path(part.name));
    part.alive = process.ok();
    part.pid = process.ok() ? process->pid : 0;
    for (const PartState& state : states) {
      if (state.name == part.name) part.restarts = state.restarts;
    }
  }
  parts[0].healthy = parts[0].alive;
  parts[0].detail = parts[0].alive ? yard.dir() : "restarts nothing: run `trainyard local start`";
  return parts;
}

}  // namespace trainyard::cli
