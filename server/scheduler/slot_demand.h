#pragma once

// What a job asks of slots. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "storage/records/job.h"

namespace trainyard {

// What a job asks of every slot, and how many. What slots compute with is the fingerprint of their
// arithmetic, of which what is certain to change bits counts; all that tell none are alike.
struct SlotDemand {
  int count = 1;
  std::string device;  // "": any, but one kind for the whole gang
  int64_t bytes = 0;
  std::string avoid;  // a node whose slots do not serve; "": none
  // Nodes that have its state in memory, or may have it: they come first among equals.
  std::vector<std::string> near;
  int most = 0;            // what it takes if there is so much; less than `count`: that
  int group = 1;           // so many neighbours are best on one node; a preference, no demand
  bool mixed = false;      // its slots may have several fingerprints
  std::string arithmetic;  // the fingerprint that its slots must have, as text; "": any
};
std::string DescribeDemand(const SlotDemand& demand);  // "2 CUDA slots of 8.0 GiB"
SlotDemand WholeDemandOf(const JobRecord& job);        // on any node

// The node that failed the job last, which it avoids as long as others suffice; "": none, or the
// state that its gang left in memory is there and nowhere else, where it is tried again.
std::string AvoidedBy(const JobRecord& job);

// The same of slots whatever their fingerprints are.
SlotDemand OfAnyArithmetic(SlotDemand demand);

}  // namespace trainyard
