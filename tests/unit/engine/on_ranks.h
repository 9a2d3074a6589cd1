#pragma once

// A run on several ranks, as threads of this process.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/in_threads.h"

namespace trainyard::engine {

// What rank 0 saw of a run on `ranks` ranks, of which each `sharing` share the shards of some
// logical ranks, and how it ended on each.
class OnRanks {
 public:
  OnRanks(v1::JobSpec spec, const std::string& root, int ranks, int sharing = 1,
          const std::optional<RestorePoint>& restore = std::nullopt)
      : ended(ranks) {
    spec.mutable_resources()->set_min_slots(ranks);
    if (sharing > 1) spec.mutable_parallel()->mutable_layout()->set_tensor(sharing);
    InThreads(ranks, [&](Communicator& communicator) {
      const auto device = kernels::OpenCpu(1).value();
      RecordingObserver other;
      RecordingObserver& observer = communicator.rank() == 0 ? seen : other;
      ended[communicator.rank()] =
          RunOn(*device, spec, root, observer, restore, 1, &communicator).status();
    });
  }

  // Every rank ended well.
  void ExpectOk() const {
    for (size_t rank = 0; rank < ended.size(); ++rank) {
      EXPECT_TRUE(ended[rank].ok())
          << "rank " << rank << " of " << ended.size() << ": " << ended[rank];
    }
  }

  RecordingObserver seen;
  std::vector<absl::Status> ended;  // by rank
};

}  // namespace trainyard::engine
