#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/audit_store.h"
#include "storage/authority_store.h"
#include "storage/fleet_store.h"
#include "storage/job_store.h"
#include "storage/node_key_store.h"
#include "storage/project_store.h"
#include "storage/provision_store.h"
#include "storage/retention_store.h"
#include "storage/scheduler_store.h"
#include "storage/token_store.h"
#include "storage/wakeups.h"

namespace trainyard {

// Everything that lasts, over one database. The references live as long as this does.
class Stores {
 public:
  virtual ~Stores() = default;
  virtual JobStore& jobs() = 0;
  virtual FleetStore& fleet() = 0;
  virtual SchedulerStore& scheduler() = 0;
  virtual TokenStore& tokens() = 0;
  virtual AuditStore& audit() = 0;
  virtual AuthorityStore& authority() = 0;
  virtual NodeKeyStore& node_keys() = 0;
  virtual ProjectStore& projects() = 0;
  virtual ProvisionStore& provision() = 0;
  virtual RetentionStore& retention() = 0;
  virtual Wakeups& wakeups() = 0;

  // OK when the store answers; else why not. kFailedPrecondition: the yard was restored from a
  // backup since the first probe; whoever remembers anything of it has to begin anew.
  virtual absl::Status Probe() = 0;
  // Raised whenever the yard is restored from a backup (storage/restore.h).
  virtual absl::StatusOr<int64_t> YardEpoch() = 0;
};

}  // namespace trainyard
