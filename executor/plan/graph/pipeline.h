#pragma once

// In which order the stages of a pipeline make their passes over the micro-batches of a step, and
// pass on what they find: one forward pass and one backward pass in turn (Narayanan et al. 2019,
// "PipeDream", 3.2; all within one step). Pure.

#include <cstdint>
#include <vector>

namespace trainyard::plan {

struct StageAction {
  enum class Kind {
    kForward,
    kBackward,
    kBoth,  // of the last stage: one after the other
    kReceiveFromBefore,
    kSendToAfter,
    kReceiveFromAfter,
    kSendToBefore,
  };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;
  int64_t flight = 0;  // which of the places for micro-batches in flight it has

  friend bool operator==(const StageAction&, const StageAction&) = default;
};

// What stage `stage` of `stages`, at least two, does in a step of `micro_batches`, in order. A
// neighbour may wait to send until the other receives: no stage then waits for another in a circle.
// What a pass needs is received right before it.
std::vector<StageAction> ActionsOf(int64_t stages, int64_t stage, int64_t micro_batches);

// The most micro-batches in flight at once in such a stage: begun, and not yet over and passed on.
int64_t MostInFlight(int64_t stages, int64_t stage, int64_t micro_batches);

// The share of a step's time in which a stage waits for the others, if all take equally long.
double BubbleShare(int64_t stages, int64_t micro_batches);

}  // namespace trainyard::plan
