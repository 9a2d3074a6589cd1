#pragma once

// What is wrong with a yard, as far as its servers and nodes tell. Pure.

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainyard/v1/access_service.pb.h"
#include "trainyard/v1/resources.pb.h"
#include "trainyard/v1/run_services.pb.h"

namespace trainyard::cli {

struct Finding {
  enum State { kGood, kWarning, kBad };
  State state = kGood;
  std::string what;    // "server", "nodes/n1"
  std::string detail;  // what is so and, where it is not good, what to do
};

// What was asked for the diagnosis.
struct YardReport {
  std::string client_version;
  bool tls = false;
  bool loopback = false;  // the server is on this machine
  v1::ServerInfo server;
  absl::Duration round_trip;
  absl::Time answered;  // on this machine's clock, when the server's answer came
  std::vector<v1::Node> nodes;
  std::optional<std::vector<v1::Project>> projects;  // absent: the caller may not list them
};

// At least one for the server and one for each node, the worst of each first.
std::vector<Finding> Diagnose(const YardReport& yard);

}  // namespace trainyard::cli
