#pragma once

// The half of the benchmark of the control plane that is not Python: agents with null workers,
// clients, and the planner alone. Each function prints JSON to standard output and returns the exit
// code.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trainyard::bench {

struct Target {
  std::string server;  // HOST:PORT
  std::string token;
};

enum class Peer { kClient, kAgent };

// A channel with a connection of its own, as every real agent and client has.
std::shared_ptr<grpc::Channel> Dial(const Target& target, Peer peer = Peer::kClient);
void AddToken(const Target& target, grpc::ClientContext& context);

struct AgentOptions {
  int nodes = 1;
  int slots = 1;
  std::string prefix = "node-";
  std::string device = "CPU";  // or CUDA
  bool hold = false;           // ranks start and never finish
};
// Registers the nodes and runs null workers on them until standard input ends. Per line read, one
// line of JSON:
//   reach N SECONDS  once N ranks in all have finished and their ends are acknowledged, or the time
//   is over
//   emit RATE SECONDS    points of the ranks that are held, RATE per second; once all are stored
//   stats                now; lateness of the heartbeats since the last `stats`
int RunAgents(const Target& target, const AgentOptions& options);

struct MetricOptions {
  int nodes = 25;
  int slots = 8;     // ranks per node, each of a job of its own
  int points = 256;  // per report, as the agent cuts them
  double seconds = 10;
  int64_t steps = 0;  // per rank, in place of `seconds`; 0: as many as there is time for
};
// Registers the nodes and lets the rank on each slot report ten metrics a
// step in columns, the next report once the one before the last is acknowledged.
int RunMetrics(const Target& target, const MetricOptions& options);

struct SubmitOptions {
  std::string request_file;  // a serialized SubmitJobRequest without job id and request id
  int clients = 1;
  int batch = 0;  // jobs per call of BatchSubmitJobs; 0: calls of SubmitJob
  double seconds = 1;
  int count = 0;  // calls, in place of `seconds`
};
int RunSubmit(const Target& target, const SubmitOptions& options);
// Times of `calls` calls of ListJobs.
int RunList(const Target& target, const std::string& filter, int page_size, int calls);
// Watches the jobs that the lines of `names_file` name, over `connections`, until standard input
// ends. Per line read ("POINTS SECONDS": waits for so many, so long), one line of JSON: how many
// watchers began, and of the points that came since the last line how many milliseconds after their
// agent had sent them.
int RunWatch(const Target& target, const std::string& names_file, int watchers, int connections);

// Full passes of the planner over a queue, in this process, the nodes being of so many
// fingerprints of the arithmetic. Of jobs that have so many slots `group` ranks share shards.
int RunPass(int queued, int nodes, int slots_per_node, int rounds, int fingerprints, int free_nodes,
            int group);

// Passes over changes alone, of the jobs in a real database: each begins with one job submitted,
// and reads, folds and plans. One in ten reads the leases, too, as a leader does twice a second.
int RunDelta(const std::string& database, int rounds);

// The p-th quantile (0 to 1) of `values`, which it sorts; 0 of none.
double Quantile(std::vector<double>& values, double p);

}  // namespace trainyard::bench
