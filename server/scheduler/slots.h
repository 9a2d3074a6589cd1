#pragma once

// Which slots exist, which are free, and how a gang is laid out over nodes. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/scheduler/held_slots.h"
#include "server/scheduler/slot_demand.h"
#include "storage/scheduler_store.h"

namespace trainyard {

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

  // Slots that a gang may have together: of one device, and of one fingerprint unless it may have
  // several. Of this table and its copies. Empty: none.
  struct Pool {
    int begin = 0;
    int end = 0;
    bool empty() const { return begin == end; }
  };
  // Those of the preferred device first.
  std::vector<Pool> PoolsFor(const SlotDemand& demand) const;

  struct Counts {
    int present = 0;  // fit the demand, on nodes that take work
    int free = 0;     // of those: not taken (kept ones included)
    int kept = 0;     // of the free ones: kept for a job ahead
  };
  // For the pool in which most is free (CUDA before CPU when equal), when any will do.
  Counts Count(const SlotDemand& demand) const;
  Counts CountIn(const SlotDemand& demand, const Pool& pool) const;
  std::vector<Counts> CountEach(const SlotDemand& demand, const std::vector<Pool>& pools) const;

  // The slots that would fit if their fingerprint did not matter, by device and fingerprint.
  struct Alike {
    absl::string_view device;
    std::string arithmetic;
    Counts counts;
    std::vector<std::string> nodes;  // that have some, by name
  };
  std::vector<Alike> ByArithmetic(const SlotDemand& demand) const;

  // Of a node that takes work: nobody has it. Kept ones included.
  bool IsFree(const std::string& node, int slot) const;
  // Of a node that takes work, whoever has it: it is in the pool, serves `demand` and is not kept.
  bool Serves(const SlotDemand& demand, const Pool& pool, const std::string& node, int slot) const;

  // Of a node that takes work, whoever has it: it is as large as `demand` wants.
  bool IsLargeEnough(const SlotDemand& demand, const std::string& node, int slot) const;

  // Whether all slots that take work now, were they free, could hold it.
  bool CouldHold(const SlotDemand& demand) const;

  // Slots for the whole gang on the fewest nodes, or nothing; in the order of the ranks. Where
  // there are groups of ranks that are best on one node (rank_groups.h), as few of them as can be
  // are on several: that comes before few nodes. It never decides whether there is something.
  // Changes nothing.
  std::optional<std::vector<Placement::Rank>> Find(const SlotDemand& demand) const;

  // Of the slots that a gang has, any of which stands for all; empty: it is not known here.
  Pool PoolOf(const SlotDemand& demand, const std::vector<Placement::Rank>& ranks) const;

  // Whether a gang may have these slots, all of which are known here, together.
  bool MayShare(const SlotDemand& demand, const std::vector<Placement::Rank>& ranks) const;

  // At most `most` more slots of the pool of `ranks`, on their nodes first, then on as few others
  // as can be; perhaps none. What completes groups on one node comes first. Changes nothing.
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

  // Nodes that take work now: reachable, within their lease, neither draining, leaving nor
  // cordoned.
  int nodes() const { return static_cast<int>(nodes_.size()); }
  int draining() const { return draining_; }
  int away() const { return away_; }
  int cordoned() const { return cordoned_; }

  // "4 CPU slots of up to 8.0 GiB"; "no slot".
  std::string DescribePresent() const;

 private:
  // The slots of one device and fingerprint.
  struct Group {
    size_t device = 0;  // among those that there are; beyond: another, which serves nobody
    std::string arithmetic;
    friend auto operator<=>(const Group&, const Group&) = default;
  };
  // Those of one size. The free ones are all kept or none is: a job keeps all slots that it could
  // use, and which these are depends on device, fingerprint and size.
  struct Kind {
    std::string device;
    int64_t bytes = 0;
    int group = 0;
    int present = 0;
    int free = 0;       // not taken: no rank that may live holds it, and this pass gave it to none
    bool kept = false;  // the free ones, for a job further ahead
    // Set for the slots of a node that a job avoids. They are a kind of their own, because that job
    // keeps only the slots of other nodes.
    std::string of_node;
    bool Serves(const SlotDemand& demand) const {
      return bytes >= demand.bytes && (demand.avoid.empty() || of_node != demand.avoid);
    }
    bool Serves(const SlotDemand& demand, const Pool& pool) const {
      return pool.begin <= group && group < pool.end && Serves(demand);
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
    bool near = false;  // SlotDemand::near
    size_t parts = 0;   // how many times so many slots as are taken together
  };

  void AddNode(const NodeRecord& record, const std::multiset<int>& held);
  int KindOf(const SlotRecord& slot);
  int GroupOf(const SlotRecord& slot);
  void SortGroups();
  Node* FindNode(const std::string& name);
  const Node* FindNode(const std::string& name) const {
    return const_cast<SlotTable*>(this)->FindNode(name);
  }
  void SetApart(const std::string& node);
  const Slot* FindSlot(const std::string& node, int slot) const;
  // By kind: which of the pools it is in, if it serves `demand`; else -1.
  std::vector<int> PoolOfEachKind(const SlotDemand& demand, const std::vector<Pool>& pools) const;
  // In one of the pools, each of which has enough.
  std::vector<Placement::Rank> FindIn(const SlotDemand& demand, const std::vector<Pool>& pools,
                                      const std::vector<Counts>& counts) const;
  static std::vector<Placement::Rank> LayOut(std::vector<Candidate> candidates, int count,
                                             int group);
  // Takes `count` parts of `unit` slots, each on one node: at least so many are there.
  static void TakeParts(size_t count, size_t unit, std::vector<Candidate>& candidates,
                        std::vector<Placement::Rank>& ranks);
  // Of those with at least so many parts, of which there must be one, the one with fewest.
  static Candidate& WithJustEnough(size_t parts, std::vector<Candidate>& candidates);
  // `pool_of`: as PoolOfEachKind has it.
  Placement::Rank FindOne(const SlotDemand& demand, const std::vector<int>& pool_of) const;

  std::vector<Node> nodes_;    // by name
  std::vector<Group> groups_;  // in order
  std::vector<Kind> kinds_;
  struct ByFingerprint {
    bool operator()(const SlotRecord* a, const SlotRecord* b) const {
      return std::tie(a->device, a->arithmetic) < std::tie(b->device, b->arithmetic);
    }
  };
  // While nodes are added: kinds by bytes and group, groups by a slot with their device and whole
  // fingerprint, and the slot that was asked for last. They borrow from the nodes.
  std::map<std::pair<int64_t, int>, int> kind_of_;
  std::map<const SlotRecord*, int, ByFingerprint> group_of_;
  const SlotRecord* last_slot_ = nullptr;
  int last_kind_ = 0;
  int draining_ = 0;
  int away_ = 0;
  int cordoned_ = 0;
};

}  // namespace trainyard
