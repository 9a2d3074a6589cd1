#pragma once

// Which slots ranks hold. Pure.

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "storage/records/attempt.h"

namespace trainyard {

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

}  // namespace trainyard
