#pragma once

// What the invariants know of slots: written apart from the planner that they check.

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "storage/records/node_health.h"
#include "storage/scheduler_store.h"

namespace trainyard {

// Whether a slot could ever serve the job, and the test's own idea of who is ahead of whom.
inline bool SlotServes(const SlotRecord& slot, const JobRecord& job) {
  return (job.device.empty() || job.device == slot.device) &&
         slot.memory_bytes >= job.bytes_per_slot;
}

inline bool IsAhead(const JobRecord& a, const JobRecord& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return std::tie(a.create_time, a.uid) < std::tie(b.create_time, b.uid);
}

inline bool NodeTakesWork(const NodeRecord& node, absl::Time now) {
  return node.reachable && !node.draining && node.lease_end > now && CordonReason(node).empty();
}

// The slots of nodes that take work.
class Room {
 public:
  Room(const SchedulerSnapshot& snapshot, const std::vector<NodeRecord>& nodes, absl::Time now) {
    std::vector<std::pair<absl::string_view, int>> held;
    for (const AttemptRecord& attempt : snapshot.attempts) {
      for (const RankRecord& rank : attempt.ranks) {
        if (IsOver(rank.state)) continue;
        for (int slot : rank.slots) held.emplace_back(rank.node, slot);
      }
    }
    for (const JobRecord& job : snapshot.jobs) {  // kept for a resize
      if (!IsResizing(job)) continue;
      for (const RankSlots& rank : job.resize->ranks) {
        for (int slot : rank.slots) held.emplace_back(rank.node, slot);
      }
    }
    for (const NodeRecord& node : nodes) {
      if (!NodeTakesWork(node, now)) continue;
      for (const SlotRecord& slot : node.slots) {
        const bool taken = LostRankOn(node, slot.index) != nullptr ||
                           std::count(held.begin(), held.end(),
                                      std::pair<absl::string_view, int>(node.name, slot.index)) > 0;
        slots_.push_back({&slot, &node.name, taken});
      }
    }
  }

  // The slots of a gang are of one device. The node on which the job failed last is avoided as long
  // as the others suffice.
  bool CouldHold(const JobRecord& job, absl::string_view device) const {
    return Count(job, device, AvoidedBy(job), false) >= job.min_slots;
  }
  bool CouldHold(const JobRecord& job) const {
    return CouldHold(job, "CPU") || CouldHold(job, "CUDA");
  }
  bool HoldsNow(const JobRecord& job) const {
    const std::string avoided = AvoidedBy(job);
    return Count(job, "CPU", avoided, true) >= job.min_slots ||
           Count(job, "CUDA", avoided, true) >= job.min_slots;
  }
  // Whether it could start if those that `leave` were free, too.
  bool HoldsWith(const JobRecord& job, const std::set<std::pair<std::string, int>>& leave) const {
    const std::string avoided = AvoidedBy(job);
    for (const absl::string_view device : {"CPU", "CUDA"}) {
      int slots = 0;
      for (const Entry& entry : slots_) {
        const bool serves =
            entry.slot->device == device && SlotServes(*entry.slot, job) && *entry.node != avoided;
        const bool free = !entry.held || leave.count({*entry.node, entry.slot->index}) > 0;
        slots += serves && free;
      }
      if (slots >= job.min_slots) return true;
    }
    return false;
  }
  std::string AvoidedBy(const JobRecord& job) const {
    const bool others = Count(job, "CPU", job.avoid_node, false) >= job.min_slots ||
                        Count(job, "CUDA", job.avoid_node, false) >= job.min_slots;
    return others ? job.avoid_node : "";
  }

 private:
  struct Entry {
    const SlotRecord* slot;
    const std::string* node;
    bool held;
  };

  int Count(const JobRecord& job, absl::string_view device, absl::string_view avoided,
            bool only_free) const {
    return static_cast<int>(std::count_if(slots_.begin(), slots_.end(), [&](const Entry& entry) {
      return entry.slot->device == device && SlotServes(*entry.slot, job) &&
             *entry.node != avoided && !(only_free && entry.held);
    }));
  }

  std::vector<Entry> slots_;
};

inline const SlotRecord* FindSlot(const SchedulerSnapshot& snapshot, const std::string& node,
                                  int index) {
  for (const NodeRecord& record : snapshot.nodes) {
    if (record.name != node) continue;
    for (const SlotRecord& slot : record.slots) {
      if (slot.index == index) return &slot;
    }
  }
  return nullptr;
}

}  // namespace trainyard
