#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/base/arithmetic.h"
#include "storage/records/attempt.h"

namespace trainyard {

struct SlotRecord {
  int index = 0;
  std::string device;  // "CPU" or "CUDA"
  std::string model;
  int64_t memory_bytes = 0;
  int cpu_threads = 0;
  Arithmetic arithmetic;  // empty: unknown
};

// What a GPU is doing, as its driver says; 0 where it does not tell.
struct SlotUsage {
  int index = 0;           // of the slot
  double utilization = 0;  // 0 to 1
  int64_t memory_used_bytes = 0;
  double temperature_celsius = 0;
  double power_watts = 0;
  int last_xid = 0;

  friend bool operator==(const SlotUsage&, const SlotUsage&) = default;
};

// What an agent tells with each heartbeat; what it does not tell is absent, 0 or empty.
struct NodeReport {
  std::vector<SlotUsage> usage;
  std::optional<int64_t> disk_free_bytes;  // where the agent keeps what its ranks write
  std::optional<int64_t> disk_total_bytes;
  std::string state_dir;                     // which folder that is
  std::optional<int64_t> memory_free_bytes;  // of the host, for processes that begin now
  std::optional<int64_t> memory_total_bytes;
  int64_t failed_starts = 0;  // of workers, since the agent began
  int64_t failed_writes = 0;  // of what it stores for its ranks, since it began
};

// One attempt of a job that failed on a node, in a way that may be the node's fault.
struct NodeFailure {
  std::string job_uid;
  std::string job_id;
  int64_t attempt = 0;
  std::string category;  // DEVICE, STORAGE, START; LOST: the node's lease ended
  absl::Time time;       // the same for all jobs that one loss of the node struck
  bool charged = false;  // LOST: the job paid for it
};

// A rank whose node's lease ended and that has not been proven gone since: its process may still
// hold its slots.
struct LostRank {
  RankId id;
  Claim claim;
  std::vector<int> slots;
  absl::Time time;  // when it was lost
};

struct NodeRecord {
  std::string name;      // a label: unique among the nodes whose leases hold
  std::string uid;       // digest of the agent's secret; "": one that has none
  std::string instance;  // which boot of which machine, and which state directory there
  // Of a registration: the key by which the agent proves who it is (CertificateFacts); empty: none.
  std::string key_fingerprint;
  // Of a registration: the ranks whose folders the agent found there when it started.
  std::vector<RankId> found;
  // Of a registration: its ranks whose processes run. As it is answered: those that rejoined.
  std::vector<RunningRank> running;
  std::string incarnation;  // of the agent's process, and of its session
  std::string address;
  std::string agent_version;
  std::map<std::string, std::string> labels;
  std::vector<SlotRecord> slots;
  NodeReport report;  // as of the last heartbeat
  bool draining = false;
  // Until when its agent, which leaves, lets what runs there end; infinite: it stays.
  absl::Time leave_time = absl::InfiniteFuture();
  bool reachable = true;  // false once its lease ended and its ranks were declared lost
  int64_t beat = 0;       // grows with each renewal of its lease
  absl::Time lease_end;   // on the store's clock; renewed by heartbeats
  absl::Time create_time;
  std::vector<NodeFailure> failures;  // of the last day, the oldest first
  std::vector<LostRank> lost_ranks;   // under this name, whichever agent has it now
  std::string cordon;                 // why its failures keep work from it; empty: they do not
  // Failures before this time no longer count: an operator looked at the node then.
  absl::Time lifted_time = absl::InfinitePast();
  // When this boot, or this state directory, became known, if there was another one before.
  absl::Time boot_time = absl::InfinitePast();
};

// kInvalidArgument names the field of a registration that cannot be kept.
absl::Status CheckNode(const NodeRecord& node);

// Why nothing is placed on a node that is reachable, and what to do about it; "" when something may
// be placed. Ranks that run there go on. The disk counts as full when less than 64 MiB of it are
// free, or less than a quarter if it is smaller than 256 MiB.
std::string CordonReason(const NodeRecord& node);

// "3.0 MiB of disk and 1.2 GiB of memory are free; 2 starts failed", as far as its agent tells.
std::string DescribeReport(const NodeReport& report);

// Whether `node` may take over the name that `holder` has: it is another session of the same agent,
// or the lease of `holder` is over. A holder without uid, an older agent, proves nothing: its
// successor is another without uid, or whoever knows all ranks that live there, `alive`.
// kFailedPrecondition says who holds the name.
absl::Status CheckNameIsFree(const NodeRecord& holder, const std::vector<RankId>& alive,
                             const NodeRecord& node);

// kAborted: tells a session that its lease is over, or belongs to another session by now.
absl::Status LeaseIsOver(const std::string& node, const std::string& incarnation);

// Whether a lost rank may still hold its slots of the node as it is registered now: the rank was
// placed in the same boot, whichever agent it is now, or one of the boots is not known.
bool MayHoldSlots(const NodeRecord& node, const LostRank& rank);

// The lost rank that may still hold this slot; nullptr: none.
const LostRank* LostRankOn(const NodeRecord& node, int slot);

// Whether the key of its agent was just revoked: its lease, which nobody can renew, runs out.
bool IsRevoked(const NodeRecord& node);
inline constexpr char kRevokedSession[] = " revoked";  // at the end of `incarnation`

// Whether what runs there is to go elsewhere, since the node drains or leaves; nothing new is
// placed there then.
bool GivesWorkAway(const NodeRecord& node);

// Whether new ranks may be placed on these slots of the node: it has them, is reachable, does not
// give its work away, and no lost rank may hold them. The age of its lease is not looked at: the
// leader judges that before it decides.
bool TakesWork(const NodeRecord& node, const std::vector<int>& slots);

// Whether the node as a whole takes new ranks at `now`: it is reachable within its lease, is not
// cordoned and does not give its work away.
bool TakesWorkNow(const NodeRecord& node, absl::Time now);

}  // namespace trainyard
