#pragma once

// In which order the stages of a pipeline make their passes over the micro-batches of a step, and
// pass on what they find: one forward pass and one backward pass in turn (Narayanan et al. 2019,
// "PipeDream", 3.2; all within one step), where a stage may have several chunks of the layers
// (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", 2.2). Pure.

#include <cstdint>
#include <vector>

namespace trainyard::plan {

// The layers are cut into stages * chunks pieces: chunk c of stage s is number c * stages + s of
// them, so that from the last stage the next chunk goes on in the first.
struct Pipeline {
  int64_t stages = 1;  // at least two, for what follows
  int64_t chunks = 1;  // that each stage has

  int64_t pieces() const { return stages * chunks; }
  int64_t stage_of(int64_t piece) const { return piece % stages; }
  int64_t chunk_of(int64_t piece) const { return piece / stages; }
  int64_t piece(int64_t chunk, int64_t stage) const { return chunk * stages + stage; }
};

struct StageAction {
  enum class Kind {
    kForward,
    kBackward,
    kBoth,  // of the last piece: one after the other
    kReceiveFromBefore,
    kSendToAfter,
    kReceiveFromAfter,
    kSendToBefore,
  };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;
  int64_t chunk = 0;
  // Which of the places it has for what a chunk keeps of a micro-batch in flight, and, where there
  // are several chunks, of those for what all of them read of it.
  int64_t flight = 0, batch = 0;

  friend bool operator==(const StageAction&, const StageAction&) = default;
};

// What stage `stage` does in a step of `micro_batches`, in order. A neighbour may wait to send
// until the other receives: no stage then waits for another in a circle. What a pass needs is
// received right before it. Of each chunk the backward passes go through the micro-batches in
// order.
std::vector<StageAction> ActionsOf(const Pipeline& pipeline, int64_t stage, int64_t micro_batches);

// What is in flight at once in such a stage at most: begun, and not yet over and passed on.
struct MostInFlight {
  int64_t flights = 1;  // micro-batches, counted once for each chunk in which they are
  int64_t batches = 1;  // micro-batches
};
MostInFlight MostInFlightOf(const Pipeline& pipeline, int64_t stage, int64_t micro_batches);

// The share of a step's time in which a stage waits for the others, if all pieces take equally
// long.
double BubbleShare(const Pipeline& pipeline, int64_t micro_batches);

}  // namespace trainyard::plan
