#pragma once

// What a job that keeps to slots that compute alike, or as it began, finds of them, in sentences.
// Pure. Nothing is said of a job that it keeps from no slot.

#include <string>
#include <vector>

#include "server/scheduler/slots.h"

namespace trainyard {

// "; its slots must compute alike, and of 8 that fit at most 4 do". "" if it does not matter.
std::string DescribeArithmetic(const SlotTable& slots, const SlotDemand& demand);

// A sentence for the slots of each fingerprint: how many fit, how many are free, on which nodes.
std::vector<std::string> ExplainArithmetic(const SlotTable& slots, const SlotDemand& demand);

// What the user can do; `mixed_starts`: it would start now whatever the slots compute with.
std::vector<std::string> SuggestForArithmetic(const SlotTable& slots, const SlotDemand& demand,
                                              bool mixed_starts);

}  // namespace trainyard
