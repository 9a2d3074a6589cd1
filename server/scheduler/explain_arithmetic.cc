#include "server/scheduler/explain_arithmetic.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

constexpr size_t kMostNodesOfOne = 4;  // that are named of those that compute alike
constexpr size_t kMostKinds = 10;      // of slots that compute alike, which are told of

// The slots that fit, where the job is kept from some by what they compute with; else none.
std::vector<SlotTable::Alike> SlotsThatDiffer(const SlotTable& slots, const SlotDemand& demand) {
  if (demand.mixed || (demand.arithmetic.empty() && std::max(demand.count, demand.most) == 1)) {
    return {};
  }
  std::vector<SlotTable::Alike> all = slots.ByArithmetic(demand);
  bool differ = false;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool others = i > 0 && all[i].device == all[i - 1].device;
    differ |= demand.arithmetic.empty() ? others : all[i].arithmetic != demand.arithmetic;
  }
  if (!differ) all.clear();
  return all;
}

std::string SomeOf(const std::vector<std::string>& nodes) {
  const size_t named = std::min(nodes.size(), kMostNodesOfOne);
  std::string text = absl::StrCat(
      "nodes/",
      absl::StrJoin(nodes.begin(), nodes.begin() + static_cast<ptrdiff_t>(named), ", nodes/"));
  if (nodes.size() > named) absl::StrAppend(&text, " and ", nodes.size() - named, " more");
  return text;
}

}  // namespace

std::string DescribeArithmetic(const SlotTable& slots, const SlotDemand& demand) {
  const std::vector<SlotTable::Alike> all = SlotsThatDiffer(slots, demand);
  if (all.empty()) return "";
  int fit = 0, most = 0, same = 0;
  for (const SlotTable::Alike& alike : all) {
    fit += alike.counts.present;
    most = std::max(most, alike.counts.present);
    if (alike.arithmetic == demand.arithmetic) same += alike.counts.present;
  }
  if (demand.arithmetic.empty()) {
    return absl::StrCat("; its slots must compute alike, and of ", fit, " that fit at most ", most,
                        most == 1 ? " does" : " do");
  }
  return absl::StrCat("; it began with '", demand.arithmetic, "': ", same, " of ", fit,
                      " slots that fit compute so");
}

std::vector<std::string> ExplainArithmetic(const SlotTable& slots, const SlotDemand& demand) {
  std::vector<std::string> sentences;
  const std::vector<SlotTable::Alike> all = SlotsThatDiffer(slots, demand);
  for (size_t i = 0; i < std::min(all.size(), kMostKinds); ++i) {
    const SlotTable::Alike& alike = all[i];
    const int present = alike.counts.present;
    std::string text =
        absl::StrCat(present, " ", alike.device, present == 1 ? " slot fits" : " slots fit", ", ",
                     alike.counts.free, " free, on ", SomeOf(alike.nodes), ": ");
    if (alike.arithmetic.empty()) {
      absl::StrAppend(&text,
                      "agents that do not say what they compute with, as older ones do not; "
                      "they count as alike");
    } else {
      absl::StrAppend(&text, present == 1 ? "computes" : "compute", " with '", alike.arithmetic,
                      "'");
    }
    if (!demand.arithmetic.empty()) {
      absl::StrAppend(&text, alike.arithmetic == demand.arithmetic ? ", as the job began"
                                                                   : ", not as the job began");
    }
    sentences.push_back(std::move(text));
  }
  if (all.size() > kMostKinds) {
    sentences.push_back(absl::StrCat("and ", all.size() - kMostKinds,
                                     " more kinds of slots, each of which computes otherwise"));
  }
  return sentences;
}

std::vector<std::string> SuggestForArithmetic(const SlotTable& slots, const SlotDemand& demand,
                                              bool mixed_starts) {
  const bool could = slots.CouldHold(OfAnyArithmetic(demand));
  if (SlotsThatDiffer(slots, demand).empty() || !could) return {};
  const char* const gain = mixed_starts ? " would start now" : " could have the other slots, too";
  if (demand.arithmetic.empty()) {
    return {absl::StrCat("with parallel.arithmetic ANY it", gain,
                         "; the last digits of its results then depend on which it gets")};
  }
  return {
      absl::StrCat("add or free slots that compute as it began; a new job that begins with the "
                   "weights of its newest checkpoint is not bound to them, and",
                   gain)};
}

}  // namespace trainyard
