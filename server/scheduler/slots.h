#pragma once

// Which slots exist, which are free, and how a gang is laid out over nodes. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "storage/scheduler_store.h"

namespace trainyard {

// What a job asks of every slot, and how many.
struct SlotDemand {
  int count = 1;
  std::string device;  // "": any, but one kind for the whole gang
  int64_t bytes = 0;
  std::string avoid;  // a node whose slots do not serve; "": none
};
std::string DescribeDemand(const SlotDemand& demand);  // "2 CUDA slots of 8.0 GiB"
SlotDemand WholeDemandOf(const JobRecord& job);        // on any node

// The slots that are held by ranks that are not over, as attempts come and go. What LOST ranks hold
// is in NodeRecord::lost_ranks.
class HeldSlots {
 public:
  HeldSlots() = default;
  explicit HeldSlots(const std::vector<AttemptRecord>& attempts) {
    for (const AttemptRecord& attempt : attempts) Add(attempt);
  }
  void Add(const AttemptRecord& attempt);
  void Remove(const AttemptRecord& attempt);  // as it was added
  void Clear() { by_node_.clear(); }

  const std::multiset<int>& On(const std::string& node) const;

 private:
  std::unordered_map<std::string, std::multiset<int>> by_node_;
};

// The slots of all nodes during one pass; placing and keeping change it. Slots are counted by kind,
// of which there are few, so that what a job waits for is found without looking at each slot.
class SlotTable {
 public:
  // Nodes in any order.
  SlotTable(const std::vector<const NodeRecord*>& nodes, const HeldSlots& held, absl::Time now);
  explicit SlotTable(const SchedulerSnapshot& snapshot);

  // What `job` asks for: its demand, away from the node that failed it last as long as the others
  // that take work could hold it.
  SlotDemand DemandOf(const JobRecord& job);

  // The slots of `node` serve nobody: it is cordoned by this pass.
  void SetAside(const std::string& node);

  // Kinds of devices, those first that are preferred.
  static absl::Span<const absl::string_view> Devices();

  struct Counts {
    int present = 0;  // fit the demand, on nodes that take work
    int free = 0;     // of those: not taken (kept ones included)
    int kept = 0;     // of the free ones: kept for a job ahead
  };
  // For the device on which most is free (CUDA before CPU when equal), when any will do.
  Counts Count(const SlotDemand& demand) const;
  Counts CountOn(const SlotDemand& demand, absl::string_view device) const;

  // Of a node that takes work: nobody has it. Kept ones included.
  bool IsFree(const std::string& node, int slot) const;
  // Of a node that takes work, whoever has it: it serves `demand` and is not kept.
  bool Serves(const SlotDemand& demand, absl::string_view device, const std::string& node,
              int slot) const;

  // Whether all slots that take work now, were they free, could hold it.
  bool CouldHold(const SlotDemand& demand) const;

  // Slots for the whole gang on the fewest nodes, or nothing. Changes nothing.
  std::optional<std::vector<Placement::Rank>> Find(const SlotDemand& demand) const;

  // Of the slots that a gang has, any of which stands for all; "": it is not known here.
  absl::string_view DeviceOf(const std::vector<Placement::Rank>& ranks) const;

  // At most `most` more slots like those of `ranks`, on their nodes first, then on as few others as
  // can be; perhaps none. Changes nothing.
  std::vector<Placement::Rank> FindMore(const SlotDemand& demand,
                                        const std::vector<Placement::Rank>& ranks, int most) const;

  void Take(const std::vector<Placement::Rank>& ranks);
  // Marks a slot as taken or free, for a rank that came or went after the table was made. A slot
  // that becomes free must be of a kind that is not kept.
  void SetTaken(const std::string& node, int slot, bool taken);

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
  // Slots of one device and size. The free ones are all kept or none is: a job keeps all slots that
  // it could use, and which these are depends on device and size.
  struct Kind {
    std::string device;
    int64_t bytes = 0;
    int present = 0;
    int free = 0;       // not taken: no rank that may live holds it, and this pass gave it to none
    bool kept = false;  // the free ones, for a job further ahead
    // Set for the slots of a node that a job avoids. They are a kind of their own, because that job
    // keeps only the slots of other nodes.
    std::string of_node;
    bool Serves(const SlotDemand& demand, absl::string_view on) const {
      return device == on && bytes >= demand.bytes &&
             (demand.avoid.empty() || of_node != demand.avoid);
    }
  };
  struct Slot {
    int index = 0;
    int kind = 0;
    bool taken = false;
  };
  struct Node {
    std::string name;
    std::vector<Slot> slots;
    int free = 0;
  };
  struct Candidate {
    const Node* node = nullptr;
    std::vector<int> slots;
  };

  void AddNode(const NodeRecord& record, const std::multiset<int>& held);
  int KindOf(const SlotRecord& slot);
  Node* FindNode(const std::string& name);
  const Node* FindNode(const std::string& name) const {
    return const_cast<SlotTable*>(this)->FindNode(name);
  }
  void SetApart(const std::string& node);
  const Slot* FindSlot(const std::string& node, int slot) const;
  std::optional<std::vector<Placement::Rank>> FindOn(const SlotDemand& demand,
                                                     absl::string_view device) const;
  static std::vector<Placement::Rank> LayOut(std::vector<Candidate> candidates, int count);
  std::optional<Placement::Rank> FindOne(const std::vector<bool>& serves) const;

  std::vector<Node> nodes_;  // by name
  std::vector<Kind> kinds_;
  std::map<std::pair<int64_t, std::string>, int> kind_of_;  // by bytes and device: its index
  size_t last_kind_ = 0;                                    // that was asked for
  int draining_ = 0;
  int away_ = 0;
  int cordoned_ = 0;
};

}  // namespace trainyard
