// control_load: agents with null workers, clients and the planner alone, for
// tests/bench/control/run.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/bench/control/load.h"

namespace trainyard::bench {

std::shared_ptr<grpc::Channel> Dial(const Target& target, Peer peer) {
  grpc::ChannelArguments arguments;
  if (peer == Peer::kAgent) arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // as executor/agent
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  return grpc::CreateCustomChannel(target.server, grpc::InsecureChannelCredentials(), arguments);
}

void AddToken(const Target& target, grpc::ClientContext& context) {
  context.AddMetadata("authorization", absl::StrCat("Bearer ", target.token));
}

double Quantile(std::vector<double>& values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

namespace {

int Main(int argc, char** argv) {
  CLI::App app("Load for the benchmark of the control plane.", "control_load");
  app.require_subcommand(1);
  Target target;
  std::string token_file, names_file, filter;
  const auto with_target = [&](CLI::App* command) {
    command->add_option("--server", target.server)->required();
    command->add_option("--token-file", token_file)->required();
  };
  AgentOptions agent;
  CLI::App* agents = app.add_subcommand("agents");
  with_target(agents);
  agents->add_option("--nodes", agent.nodes);
  agents->add_option("--slots", agent.slots);
  agents->add_option("--prefix", agent.prefix);
  agents->add_option("--device", agent.device);
  agents->add_flag("--hold", agent.hold);
  MetricOptions metric;
  CLI::App* metrics = app.add_subcommand("metrics");
  with_target(metrics);
  metrics->add_option("--nodes", metric.nodes);
  metrics->add_option("--slots", metric.slots);
  metrics->add_option("--points", metric.points);
  metrics->add_option("--seconds", metric.seconds);
  metrics->add_option("--steps", metric.steps);
  SubmitOptions submission;
  CLI::App* submit = app.add_subcommand("submit");
  with_target(submit);
  submit->add_option("--request", submission.request_file)->required();
  submit->add_option("--clients", submission.clients);
  submit->add_option("--batch", submission.batch);
  submit->add_option("--seconds", submission.seconds);
  submit->add_option("--count", submission.count);
  int page_size = 50, calls = 20;
  CLI::App* list = app.add_subcommand("list");
  with_target(list);
  list->add_option("--filter", filter);
  list->add_option("--page-size", page_size);
  list->add_option("--calls", calls);
  int watchers = 1, connections = 1;
  CLI::App* watch = app.add_subcommand("watch");
  with_target(watch);
  watch->add_option("--names", names_file)->required();
  watch->add_option("--watchers", watchers);
  watch->add_option("--connections", connections);
  int queued = 1, nodes = 1, slots = 8, rounds = 5, fingerprints = 1, free_nodes = 1, group = 1;
  CLI::App* pass = app.add_subcommand("pass");
  pass->add_option("--queued", queued);
  pass->add_option("--nodes", nodes);
  pass->add_option("--slots", slots);
  pass->add_option("--rounds", rounds);
  pass->add_option("--fingerprints", fingerprints)->check(CLI::PositiveNumber);
  pass->add_option("--free-nodes", free_nodes);
  pass->add_option("--group", group)->check(CLI::PositiveNumber);
  std::string database;
  CLI::App* delta = app.add_subcommand("delta");
  delta->add_option("--database", database)->required();
  delta->add_option("--rounds", rounds);
  CLI11_PARSE(app, argc, argv);
  std::ifstream(token_file) >> target.token;
  if (agents->parsed()) return RunAgents(target, agent);
  if (metrics->parsed()) return RunMetrics(target, metric);
  if (submit->parsed()) return RunSubmit(target, submission);
  if (list->parsed()) return RunList(target, filter, page_size, calls);
  if (watch->parsed()) return RunWatch(target, names_file, watchers, connections);
  if (delta->parsed()) return RunDelta(database, rounds);
  return RunPass(queued, nodes, slots, rounds, fingerprints, free_nodes, group);
}

}  // namespace
}  // namespace trainyard::bench

int main(int argc, char** argv) { return trainyard::bench::Main(argc, argv); }
