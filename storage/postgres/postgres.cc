#include "storage/postgres/postgres.h"

#include <atomic>
#include <pqxx/pqxx>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/postgres/audit_store.h"
#include "storage/postgres/authority_store.h"
#include "storage/postgres/database.h"
#include "storage/postgres/fleet_store.h"
#include "storage/postgres/job_store.h"
#include "storage/postgres/node_key_store.h"
#include "storage/postgres/project_store.h"
#include "storage/postgres/provision_store.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/retention_store.h"
#include "storage/postgres/scheduler_store.h"
#include "storage/postgres/token_store.h"
#include "storage/postgres/wakeups.h"

namespace trainyard::postgres {
namespace {

constexpr int kLeaseConnections = 2;
constexpr int kHeartbeatConnections = 1;

// Fails on a stand-by as a write would, so that the connection to it is given up.
constexpr char kRefuseStandBy[] =
    "DO $$ BEGIN IF pg_is_in_recovery() THEN RAISE 'a stand-by' USING ERRCODE = '25006'; END IF; "
    "END $$";

class PostgresStores : public Stores {
 public:
  PostgresStores(const std::string& conninfo, const Options& options)
      : database_(conninfo, options.max_connections, options.longest_call),
        agents_(conninfo, options.max_agent_connections, options.longest_agent_call),
        leases_(conninfo, kLeaseConnections, options.longest_agent_call),
        heartbeats_(conninfo, kHeartbeatConnections, options.longest_agent_call),
        wakeups_(conninfo) {}

  JobStore& jobs() override { return jobs_; }
  FleetStore& fleet() override { return fleet_; }
  SchedulerStore& scheduler() override { return scheduler_; }
  TokenStore& tokens() override { return tokens_; }
  AuditStore& audit() override { return audit_; }
  AuthorityStore& authority() override { return authority_; }
  NodeKeyStore& node_keys() override { return node_keys_; }
  ProjectStore& projects() override { return projects_; }
  ProvisionStore& provision() override { return provision_; }
  RetentionStore& retention() override { return retention_; }
  Wakeups& wakeups() override { return wakeups_; }

  absl::Status Probe() override {
    const auto probe = [this](Transaction& transaction) -> absl::Status {
      transaction.RunText(kRefuseStandBy, Params());
      const auto epoch = transaction.Run(kReadYardEpoch, Params())[0][0].as<int64_t>();
      int64_t first = 0;
      if (epoch_.compare_exchange_strong(first, epoch) || first == epoch) return absl::OkStatus();
      return absl::FailedPreconditionError(
          absl::StrCat("the yard was restored from a backup (its epoch is ", epoch, ", and was ",
                       first, "): what this program remembers of it counts no more"));
    };
    return leases_.Run("probe", probe, Access::kStatements);
  }

  absl::StatusOr<int64_t> YardEpoch() override {
    const auto read = [](Transaction& transaction) -> absl::StatusOr<int64_t> {
      return transaction.Run(kReadYardEpoch, Params())[0][0].as<int64_t>();
    };
    return leases_.Run("read the yard's epoch", read, Access::kStatements);
  }

 private:
  std::atomic<int64_t> epoch_{0};  // of the yard, as the first probe found it; 0: none yet
  Database database_;
  Database agents_;
  Database leases_;      // for leadership and probes, which wait behind no call of users or agents
  Database heartbeats_;  // for the leases of all nodes of this server
  PostgresJobStore jobs_{database_};
  PostgresFleetStore fleet_{heartbeats_, agents_, database_};
  PostgresSchedulerStore scheduler_{database_, leases_};
  PostgresTokenStore tokens_{database_, leases_};
  PostgresAuditStore audit_{database_};
  PostgresAuthorityStore authority_{database_};
  PostgresNodeKeyStore node_keys_{agents_};
  PostgresProjectStore projects_{database_};
  PostgresProvisionStore provision_{database_};
  PostgresRetentionStore retention_{database_};
  PostgresWakeups wakeups_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stores>> Open(const std::string& conninfo, const Options& options) {
  TY_ASSIGN_OR_RETURN(const std::string complete, CompleteConninfo(conninfo, options));
  return std::make_unique<PostgresStores>(complete, options);
}

}  // namespace trainyard::postgres
