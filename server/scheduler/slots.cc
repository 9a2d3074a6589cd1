#include "server/scheduler/slots.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

constexpr absl::string_view kDevices[] = {"CUDA", "CPU"};  // preferred first

bool Allows(const SlotDemand& demand, absl::string_view device) {
  return demand.device.empty() || demand.device == device;
}

}  // namespace

SlotDemand DemandOf(const JobRecord& job) {
  return {.count = std::max(1, job.min_slots), .device = job.device, .bytes = job.bytes_per_slot};
}

std::string DescribeBytes(int64_t bytes) {
  constexpr double kKi = 1024;
  const double b = static_cast<double>(bytes);
  if (b < kKi) return absl::StrCat(bytes, " B");
  if (b < kKi * kKi) return absl::StrFormat("%.1f KiB", b / kKi);
  if (b < kKi * kKi * kKi) return absl::StrFormat("%.1f MiB", b / (kKi * kKi));
  return absl::StrFormat("%.1f GiB", b / (kKi * kKi * kKi));
}

std::string DescribeDemand(const SlotDemand& demand) {
  return absl::StrCat(demand.count, demand.device.empty() ? "" : " ", demand.device,
                      demand.count == 1 ? " slot of " : " slots of ", DescribeBytes(demand.bytes));
}

SlotTable::SlotTable(const SchedulerSnapshot& snapshot) {
  std::set<std::pair<std::string, int>> held;
  for (const AttemptRecord& attempt : snapshot.attempts) {
    for (const RankRecord& rank : attempt.ranks) {
      if (rank.state == RankState::kGone) continue;
      for (int slot : rank.slots) held.emplace(rank.node, slot);
    }
  }
  for (const NodeRecord& record : snapshot.nodes) {
    if (!record.reachable || record.lease_end <= snapshot.now) {
      ++away_;
      continue;
    }
    if (record.draining) {
      ++draining_;
      continue;
    }
    if (!CordonReason(record).empty()) {
      ++cordoned_;
      continue;
    }
    Node node{.name = record.name};
    for (const SlotRecord& slot : record.slots) {
      const bool taken = held.count({record.name, slot.index}) > 0;
      node.slots.push_back({.index = slot.index,
                            .device = slot.device,
                            .bytes = slot.memory_bytes,
                            .use = taken ? Use::kTaken : Use::kFree});
    }
    // The smallest slot that serves is used first.
    std::sort(node.slots.begin(), node.slots.end(), [](const Slot& a, const Slot& b) {
      return std::tie(a.bytes, a.index) < std::tie(b.bytes, b.index);
    });
    nodes_.push_back(std::move(node));
  }
  std::sort(nodes_.begin(), nodes_.end(),
            [](const Node& a, const Node& b) { return a.name < b.name; });
}

SlotTable::Counts SlotTable::CountOn(const SlotDemand& demand, absl::string_view device) const {
  Counts counts;
  if (!Allows(demand, device)) return counts;
  for (const Node& node : nodes_) {
    for (const Slot& slot : node.slots) {
      if (slot.device != device || slot.bytes < demand.bytes) continue;
      ++counts.present;
      if (slot.use != Use::kTaken) ++counts.free;
      if (slot.use == Use::kKept) ++counts.kept;
    }
  }
  return counts;
}

SlotTable::Counts SlotTable::Count(const SlotDemand& demand) const {
  Counts best;
  for (absl::string_view device : kDevices) {
    const Counts counts = CountOn(demand, device);
    const bool enough = counts.present >= demand.count;
    const bool best_enough = best.present >= demand.count;
    if (std::make_tuple(enough, counts.free, counts.present) >
        std::make_tuple(best_enough, best.free, best.present)) {
      best = counts;
    }
  }
  return best;
}

bool SlotTable::CouldHold(const SlotDemand& demand) const {
  return std::any_of(std::begin(kDevices), std::end(kDevices), [&](absl::string_view device) {
    return CountOn(demand, device).present >= demand.count;
  });
}

std::optional<std::vector<Placement::Rank>> SlotTable::Find(const SlotDemand& demand) const {
  for (absl::string_view device : kDevices) {
    auto ranks = FindOn(demand, device);
    if (ranks.has_value()) return ranks;
  }
  return std::nullopt;
}

std::optional<std::vector<Placement::Rank>> SlotTable::FindOn(const SlotDemand& demand,
                                                              absl::string_view device) const {
  if (!Allows(demand, device)) return std::nullopt;
  struct Candidate {
    const Node* node;
    std::vector<int> slots;
  };
  std::vector<Candidate> candidates;
  int free = 0;
  for (const Node& node : nodes_) {
    Candidate candidate{.node = &node};
    for (const Slot& slot : node.slots) {
      if (slot.use == Use::kFree && slot.device == device && slot.bytes >= demand.bytes) {
        candidate.slots.push_back(slot.index);
      }
    }
    free += static_cast<int>(candidate.slots.size());
    if (!candidate.slots.empty()) candidates.push_back(std::move(candidate));
  }
  if (free < demand.count) return std::nullopt;
  // The largest nodes first make the fewest nodes; the last part goes where it leaves least over.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.slots.size() > b.slots.size(); });
  std::vector<Placement::Rank> ranks;
  size_t next = 0;
  while (static_cast<int>(ranks.size()) < demand.count) {
    const size_t left = demand.count - ranks.size();
    size_t chosen = next;
    if (candidates[next].slots.size() >= left) {
      while (chosen + 1 < candidates.size() && candidates[chosen + 1].slots.size() >= left) {
        ++chosen;
      }
      // Among equals the first by name.
      while (chosen > next &&
             candidates[chosen - 1].slots.size() == candidates[chosen].slots.size()) {
        --chosen;
      }
    }
    const Candidate& from = candidates[chosen];
    for (size_t i = 0; i < from.slots.size() && i < left; ++i) {
      ranks.push_back({.node = from.node->name, .slots = {from.slots[i]}});
    }
    ++next;
  }
  return ranks;
}

void SlotTable::Take(const std::vector<Placement::Rank>& ranks) {
  for (const Placement::Rank& rank : ranks) {
    for (Node& node : nodes_) {
      if (node.name != rank.node) continue;
      for (Slot& slot : node.slots) {
        if (std::count(rank.slots.begin(), rank.slots.end(), slot.index) > 0)
          slot.use = Use::kTaken;
      }
    }
  }
}

void SlotTable::Keep(const SlotDemand& demand) {
  for (absl::string_view device : kDevices) {
    // A kind of device of which there are too few can never serve the job: nothing is kept there.
    if (CountOn(demand, device).present < demand.count) continue;
    for (Node& node : nodes_) {
      for (Slot& slot : node.slots) {
        if (slot.use == Use::kFree && slot.device == device && slot.bytes >= demand.bytes) {
          slot.use = Use::kKept;
        }
      }
    }
  }
}

std::string SlotTable::DescribePresent() const {
  std::map<std::string, std::pair<int, int64_t>> kinds;
  for (const Node& node : nodes_) {
    for (const Slot& slot : node.slots) {
      auto& [count, bytes] = kinds[slot.device];
      ++count;
      bytes = std::max(bytes, slot.bytes);
    }
  }
  if (kinds.empty()) return "no slot";
  return absl::StrJoin(kinds, ", ", [](std::string* out, const auto& kind) {
    const auto& [count, bytes] = kind.second;
    absl::StrAppend(out, count, " ", kind.first, count == 1 ? " slot of " : " slots of up to ",
                    DescribeBytes(bytes));
  });
}

}  // namespace trainyard
