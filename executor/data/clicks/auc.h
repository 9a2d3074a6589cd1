#pragma once

#include <optional>
#include <vector>

namespace trainyard::data {

struct Scored {
  float score = 0;  // any monotone function of the probability of a click
  bool click = false;
};

// The area under the ROC curve: the share of pairs of a click and a non-click in which the click
// has the larger score, ties counting half. Exact, in integers until the last division; sorts
// `scored`. nullopt: there is no such pair, or a score is no number.
std::optional<double> Auc(std::vector<Scored>& scored);

}  // namespace trainyard::data
