#pragma once

// One thin class per proto service: admit, validate, store, answer, wake. Each in a file of its
// own.

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/audit/audit_log.h"
#include "server/auth/authenticator.h"
#include "server/auth/caller_limits.h"
#include "server/auth/node_admission.h"
#include "server/auth/revocation_list.h"
#include "server/fleet/fleet.h"
#include "server/fleet/provision/pools.h"
#include "server/scheduler/loop.h"
#include "server/sizing/sizer.h"
#include "server/watch/watch_hub.h"
#include "server/work/call_queue.h"
#include "server/work/task_pool.h"
#include "storage/stores.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace trainyard {

// What the services work with; all of it outlives them.
struct ServiceDependencies {
  Stores& stores;
  Authenticator& authenticator;
  WatchHub& watches;
  Fleet& fleet;
  AuditLog& audit;
  RevocationList& revocations;
  CallerLimits& limits;
  NodeAdmission* admission;  // null: the server has no port for agents alone
  SchedulerLoop& scheduler;
  Sizer& sizer;
  TaskPool& pool;
  CallQueue& calls;
  std::vector<Pool> pools;
  PlannerOptions planner;
  absl::Duration pause_grace = absl::Minutes(5);  // to write a checkpoint
  std::string version;
  int schema_version = 0;
  std::string replica;
};

std::shared_ptr<grpc::Service> MakeAccessService(const ServiceDependencies& dependencies);
std::shared_ptr<grpc::Service> MakeJobService(const ServiceDependencies& dependencies);
std::shared_ptr<grpc::Service> MakeMetricService(const ServiceDependencies& dependencies);
std::shared_ptr<grpc::Service> MakeLogService(const ServiceDependencies& dependencies);
std::shared_ptr<grpc::Service> MakeCheckpointService(const ServiceDependencies& dependencies);
std::shared_ptr<grpc::Service> MakeNodeService(const ServiceDependencies& dependencies);
std::shared_ptr<grpc::Service> MakeInfoService(const ServiceDependencies& dependencies);

}  // namespace trainyard
