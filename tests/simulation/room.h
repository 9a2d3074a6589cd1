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

// What a slot computes with, as far as it is known to change bits.
inline std::string ComputesWith(const SlotRecord& slot) {
  std::string text;
  for (const auto& [name, value] : slot.arithmetic) {
    if (name != "caches") text += (text.empty() ? "" : "; ") + name + ": " + value;
  }
  return text;
}

// Whether a slot could ever serve the job, and the test's own idea of who is ahead of whom.
inline bool SlotServes(const SlotRecord& slot, const JobRecord& job) {
  return (job.device.empty() || job.device == slot.device) &&
         slot.memory_bytes >= job.bytes_per_slot &&
         (job.arithmetic.empty() || job.arithmetic == ComputesWith(slot));
}

inline bool IsAhead(const JobRecord& a, const JobRecord& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return std::tie(a.create_time, a.uid) < std::tie(b.create_time, b.uid);
}

inline bool NodeTakesWork(const NodeRecord& node, absl::Time now) {
  return node.reachable && !GivesWorkAway(node) && node.lease_end > now &&
         CordonReason(node).empty();
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

  // The node on which a job failed last is avoided as long as the others suffice, and unless the
  // state that its gang left in memory is there and nowhere else. Of one whose rule is not known
  // its slots are mixed only if they have to be.
  struct Terms {
    std::string avoided;
    bool mixed = false;
  };
  Terms TermsOf(const JobRecord& job) const {
    Terms terms{job.avoid_node, job.arithmetic_rule == ArithmeticRule::kAny};
    if (HasStateOnlyOn(job, job.avoid_node)) terms.avoided.clear();
    const auto any = [](const Entry&) { return true; };
    if (!Holds(job, terms, any)) terms.avoided.clear();
    if (job.arithmetic_rule == ArithmeticRule::kUnknown && !Holds(job, terms, any)) {
      terms.mixed = true;
    }
    return terms;
  }
  std::string AvoidedBy(const JobRecord& job) const { return TermsOf(job).avoided; }

  bool CouldHold(const JobRecord& job) const {
    return Holds(job, TermsOf(job), [](const Entry&) { return true; });
  }
  // With this slot among others.
  bool CouldHold(const JobRecord& job, const SlotRecord& slot) const {
    const Terms terms = TermsOf(job);
    return Count(job, terms, slot, [](const Entry&) { return true; }) >= job.min_slots;
  }
  bool HoldsNow(const JobRecord& job) const {
    return Holds(job, TermsOf(job), [](const Entry& entry) { return !entry.held; });
  }
  // Whether it could start if those that `leave` were free, too.
  bool HoldsWith(const JobRecord& job, const std::set<std::pair<std::string, int>>& leave) const {
    return Holds(job, TermsOf(job), [&](const Entry& entry) {
      return !entry.held || leave.count({*entry.node, entry.slot->index}) > 0;
    });
  }

 private:
  static bool HasStateOnlyOn(const JobRecord& job, const std::string& node) {
    return MayTryKeptState(job, job.attempt + 1) && job.resize->kept_step > 0 &&
           !job.resize->ranks.empty() &&
           std::all_of(job.resize->ranks.begin(), job.resize->ranks.end(),
                       [&node](const RankSlots& rank) { return rank.node == node; });
  }

  struct Entry {
    const SlotRecord* slot;
    const std::string* node;
    bool held;
  };

  // Of the slots that may be used, how many one gang may have together with `one`: of one device,
  // and computing alike unless they may be mixed.
  template <typename MayUse>
  int Count(const JobRecord& job, const Terms& terms, const SlotRecord& one,
            const MayUse& may_use) const {
    return static_cast<int>(std::count_if(slots_.begin(), slots_.end(), [&](const Entry& entry) {
      return entry.slot->device == one.device &&
             (terms.mixed || ComputesWith(*entry.slot) == ComputesWith(one)) &&
             SlotServes(*entry.slot, job) && *entry.node != terms.avoided && may_use(entry);
    }));
  }
  template <typename MayUse>
  bool Holds(const JobRecord& job, const Terms& terms, const MayUse& may_use) const {
    return std::any_of(slots_.begin(), slots_.end(), [&](const Entry& entry) {
      return Count(job, terms, *entry.slot, may_use) >= job.min_slots;
    });
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
