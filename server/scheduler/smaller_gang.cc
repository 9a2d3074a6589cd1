#include "server/scheduler/smaller_gang.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

constexpr size_t kMostNodes = 4;  // that are named

std::string NamesOf(const SmallerGang& gang) {
  const size_t named = std::min(gang.nodes.size(), kMostNodes);
  std::string text = absl::StrJoin(gang.nodes.begin(), gang.nodes.begin() + named, ", ",
                                   [](std::string* out, const auto& node) {
                                     absl::StrAppend(out, node.second, " on nodes/", node.first);
                                   });
  const size_t more = gang.nodes.size() - named;
  if (more > 0) absl::StrAppend(&text, " and more on ", more, more == 1 ? " other" : " others");
  return text;
}

}  // namespace

SmallerGang FindSmallerGang(const SlotTable& slots, const SlotDemand& demand,
                            const SpecChanges& changes) {
  SmallerGang gang;
  const int present = slots.Count(demand).present;
  if (present < demand.count) gang.later = changes.MostSlots(present);
  SlotDemand smaller = demand;
  smaller.count = demand.count - 1;
  while (smaller.count > 0 && !slots.Find(smaller).has_value()) --smaller.count;
  gang.free = smaller.count;
  smaller.count = gang.slots = changes.MostSlots(gang.free);
  gang.sets_max = changes.NeedsMaxSlots(gang.slots > 0 ? gang.slots : gang.later);
  const auto ranks = gang.slots > 0 ? slots.Find(smaller) : std::nullopt;
  if (!ranks.has_value()) return gang;
  std::map<std::string, int> of_node;
  for (const Placement::Rank& rank : *ranks) ++of_node[rank.node];
  gang.nodes.assign(of_node.begin(), of_node.end());
  std::stable_sort(gang.nodes.begin(), gang.nodes.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return gang;
}

std::string DescribeSmallerGang(const SmallerGang& gang, const SlotDemand& demand,
                                int logical_ranks) {
  if (demand.count < 2) return "";
  const std::string with =
      absl::StrCat("with resources.min_slots ", gang.sets_max ? "and max_slots " : "");
  const std::string same = absl::StrCat(
      " (parallel.logical_ranks ", logical_ranks,
      " keeps its bits; a rank then hosts more logical ranks: 'trainyard plan' tells its memory)");
  if (gang.slots > 0) {
    return absl::StrCat(gang.free, gang.free == 1 ? " such slot is" : " such slots are",
                        " free for it, ", gang.free > gang.slots ? "of these " : "", NamesOf(gang),
                        ": ", with, gang.slots, " it would start now", same);
  }
  if (gang.later > 0) {
    return absl::StrCat(with, gang.later,
                        gang.later == 1 ? " it would start once that slot is free"
                                        : " it would start once these slots are free",
                        same);
  }
  if (gang.free > 0) {
    return absl::StrCat(gang.free, gang.free == 1 ? " such slot is" : " such slots are",
                        " free for it: too few for any number of slots that it may have");
  }
  return "no such slot is free for it: on fewer it would not start either";
}

}  // namespace trainyard
