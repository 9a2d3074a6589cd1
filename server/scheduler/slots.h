#pragma once

// Which slots exist, which are free, and how a gang is laid out over nodes. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "storage/scheduler_store.h"

namespace trainyard {

// What a job asks of every slot, and how many.
struct SlotDemand {
  int count = 1;
  std::string device;  // "": any, but one kind for the whole gang
  int64_t bytes = 0;
};
SlotDemand DemandOf(const JobRecord& job);
std::string DescribeDemand(const SlotDemand& demand);  // "2 CUDA slots of 8.0 GiB"

// "8.0 GiB", "512.0 MiB", "12 B"
std::string DescribeBytes(int64_t bytes);

// The slots of a snapshot during one pass; placing and keeping change it.
class SlotTable {
 public:
  explicit SlotTable(const SchedulerSnapshot& snapshot);

  enum class Use {
    kFree,
    kTaken,  // a rank that is not proven gone holds it, or this pass gave it out
    kKept,   // free, for a job further ahead
  };

  struct Counts {
    int present = 0;  // fit the demand, on nodes that take work
    int free = 0;     // of those: not taken (kept ones included)
    int kept = 0;     // of the free ones: kept for a job ahead
  };
  // For the device on which most is free (CUDA before CPU when equal), when any will do.
  Counts Count(const SlotDemand& demand) const;

  // Whether all slots that take work now, were they free, could hold it.
  bool CouldHold(const SlotDemand& demand) const;

  // Slots for the whole gang on the fewest nodes, or nothing. Changes nothing.
  std::optional<std::vector<Placement::Rank>> Find(const SlotDemand& demand) const;

  void Take(const std::vector<Placement::Rank>& ranks);

  // Keeps every free slot that `demand` could use. A job that does not start now starts once enough
  // of the slots that it can use are free, and which will be freed first is not known: giving any
  // of them to a job behind could delay it.
  void Keep(const SlotDemand& demand);

  // Nodes that take work now: reachable, within their lease, neither draining nor cordoned.
  int nodes() const { return static_cast<int>(nodes_.size()); }
  int draining() const { return draining_; }
  int away() const { return away_; }
  int cordoned() const { return cordoned_; }

  // "4 CPU slots of up to 8.0 GiB"; "no slot".
  std::string DescribePresent() const;

 private:
  struct Slot {
    int index = 0;
    std::string device;
    int64_t bytes = 0;
    Use use = Use::kFree;
  };
  struct Node {
    std::string name;
    std::vector<Slot> slots;
  };

  Counts CountOn(const SlotDemand& demand, absl::string_view device) const;
  std::optional<std::vector<Placement::Rank>> FindOn(const SlotDemand& demand,
                                                     absl::string_view device) const;

  std::vector<Node> nodes_;
  int draining_ = 0;
  int away_ = 0;
  int cordoned_ = 0;
};

}  // namespace trainyard
