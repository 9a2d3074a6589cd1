#pragma once

// A run on several ranks, as threads of this process.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/engine/checkpoint/layout.h"
#include "storage/base/file.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/in_threads.h"

namespace trainyard::engine {

// Ranks, of which each `stages` times `sharing` share some logical ranks: `sharing` the shards of
// each stage of their layers, and with `sequence` the tokens of what belongs to no shard.
struct Layout {
  int ranks = 1, sharing = 1, stages = 1;
  bool sequence = false;
  int chunks = 1;  // of each stage

  std::string Words() const {
    return absl::StrCat(" on ", ranks, ", ", sharing, " share", sequence ? " tokens too" : "", ", ",
                        stages, " stages",
                        chunks > 1 ? absl::StrCat(" in ", chunks, " chunks") : "");
  }
};

// What rank 0 saw of a run, and how it ended on each.
class OnRanks {
 public:
  // `change`: what is special about the request of each rank. `stop_at`: after that step all are
  // told to stop.
  OnRanks(v1::JobSpec spec, const std::string& root, const Layout& layout,
          const std::optional<RestorePoint>& restore = std::nullopt,
          const std::function<void(int rank, RunRequest&)>& change = nullptr, int64_t stop_at = -1)
      : ended(layout.ranks), results(layout.ranks) {
    seen.stop_at = stop_at;
    spec.mutable_resources()->set_min_slots(layout.ranks);
    v1::Layout& told = *spec.mutable_parallel()->mutable_layout();
    told.set_tensor(layout.sharing);
    told.set_pipeline(layout.stages);
    told.set_sequence(layout.sequence);
    if (layout.chunks > 1) told.set_chunks(layout.chunks);
    InThreads(layout.ranks, [&](Communicator& communicator) {
      const auto device = kernels::OpenCpu(1).value();
      RecordingObserver other;
      RecordingObserver& observer = communicator.rank() == 0 ? seen : other;
      RunRequest request = RequestFor(spec, root, restore, 1, &communicator);
      if (change != nullptr) change(communicator.rank(), request);
      const absl::StatusOr<RunResult> result = Run(*device, request, observer, seen.stop);
      ended[communicator.rank()] = result.status();
      results[communicator.rank()] = result.value_or(RunResult());
    });
  }

  OnRanks(const v1::JobSpec& spec, const std::string& root, int ranks, int sharing = 1,
          const std::optional<RestorePoint>& restore = std::nullopt)
      : OnRanks(spec, root, Layout{.ranks = ranks, .sharing = sharing}, restore) {}

  // Every rank ended well.
  void ExpectOk() const {
    for (size_t rank = 0; rank < ended.size(); ++rank) {
      EXPECT_TRUE(ended[rank].ok())
          << "rank " << rank << " of " << ended.size() << ": " << ended[rank];
    }
  }

  RecordingObserver seen;
  std::vector<absl::Status> ended;  // by rank
  std::vector<RunResult> results;   // likewise
};

// Of the weights, the optimizer, its counters and the averages.
inline void ExpectSameState(const WrittenCheckpoint& found, const WrittenCheckpoint& expected) {
  EXPECT_EQ(found.weights_sha256, expected.weights_sha256);
  for (const char* file : {kOptimizerFile, kStateFile, kEmaFile}) {
    const auto read = [file](const WrittenCheckpoint& checkpoint) {
      return ReadFile(absl::StrCat(checkpoint.uri, "/", file)).value_or("");
    };
    EXPECT_TRUE(read(found) == read(expected)) << file;
  }
}

// The last of `losses`, as many as `resumed`, which went on from a checkpoint, has.
inline std::vector<double> LastOf(const std::vector<double>& losses, const OnRanks& resumed) {
  const size_t n = std::min(losses.size(), resumed.seen.TrainLosses().size());
  return {losses.end() - static_cast<std::ptrdiff_t>(n), losses.end()};
}

}  // namespace trainyard::engine
