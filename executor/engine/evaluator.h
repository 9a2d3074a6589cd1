#pragma once

// Evaluates the held-out split.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/data/clicks/auc.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/engine/across_ranks.h"
#include "executor/engine/groups.h"
#include "executor/engine/session.h"
#include "executor/engine/shards_across_ranks.h"

namespace trainyard::engine {

// Whether an evaluation failed only because no sample of the held-out split counts.
bool NothingCounts(const absl::Status& status);

// Runs the plan's forward pass over validation samples. Unless Tune was called its kernels are
// prepared with the first run, so that they do not delay the first training step. The ranks of a
// gang share out the batches; each ends with the same values, which do not depend on how many they
// are.
class Evaluator {
 public:
  // `session` and `dataset` must outlive it. `threads` prepare samples while a batch is evaluated.
  Evaluator(Session& session, const data::Dataset& dataset, int64_t threads = 1,
            const Groups& groups = Gang());

  // Where parameters are sharded: `across` gathers them for each batch. Called before what is
  // below; `across` must be there as long as that is called.
  void GatherBy(AcrossRanks& across) { across_ = &across; }

  // Prepares the kernels and measures what there is to choose (Session::Tune): the arena's content
  // is lost.
  absl::Status Tune();

  // Reads and evaluates the first batch, and returns the failure that Run would end with there, if
  // any. It is no failure that none of its samples counts.
  absl::Status Try(int64_t max_samples);

  // "loss" and "accuracy" over the first `max_samples` validation samples (0: all), and
  // "perplexity" for language models, "bits_per_byte" for those of text; for clicks "auc" and,
  // where it is known, "best_auc" (auc.h). Sums are doubles in order of the samples, so that the
  // batch size does not change them. kFailedPrecondition: there is no held-out split, or
  // (with the fault kData, NothingCounts) none of its samples counts.
  absl::StatusOr<std::map<std::string, double>> Run(int64_t max_samples);

 private:
  // A batch that the device computes, or has computed: the results in host memory, and the event
  // after which they are there.
  struct InFlight {
    std::shared_ptr<char[]> losses, correct, logits;  // f32; logits of clicks only
    const int32_t* targets = nullptr;
    std::unique_ptr<kernels::Event> done;
  };
  // What is known of the rows of a batch, in host memory.
  struct Rows {
    const float *losses = nullptr, *correct = nullptr, *logits = nullptr;
    const int32_t* targets = nullptr;
  };
  // Of the whole split.
  struct Sums {
    double loss = 0, correct = 0;
    int64_t rows = 0, text_bytes = 0;
    std::vector<data::Scored> scored;
  };

  absl::Status PrepareOnce(bool tune);
  // The loader of the split, at its first batch again.
  data::Loader& LoaderOf(int64_t samples);
  // Over the first `samples` of the split.
  absl::StatusOr<Sums> Evaluate(int64_t samples);
  InFlight& FlightOf(int64_t round) { return flights_[round % flights_.size()]; }
  // The batch of this rank in a round or, in one that has none for it, its part in the others'.
  absl::Status Enqueue(data::Loader& loader, InFlight& flight);
  absl::Status TakePart();
  // `tokenizer`, unless null, tells how many bytes of text a target is.
  void Add(const Rows& rows, const data::Tokenizer* tokenizer, Sums& sums) const;
  // Waits for this rank's batch of round `round`, if it has one among `batches`, and adds those of
  // all ranks in their order to `sums`. `enqueued`: whether this rank could enqueue its batches so
  // far; if one could not, all fail.
  absl::Status Finish(int64_t round, int64_t batches, const absl::Status& enqueued,
                      const data::Tokenizer* tokenizer, Sums& sums);
  // The batch that this rank takes in a round.
  int64_t Mine(int64_t round) const { return round * gang_.size() + gang_.rank(); }

  Session& session_;
  const data::Dataset& dataset_;
  const int64_t threads_;
  const Groups groups_;
  const Gang& gang_;                         // of groups_: the ranks that share out the batches
  std::optional<ShardsAcrossRanks> shards_;  // of a gang that shares the shards of logical ranks
  AcrossRanks* across_ = nullptr;            // of a gang whose parameters are sharded
  kernels::Kernels begin_;
  Program program_;
  std::vector<InFlight> flights_;         // BatchesInUse of them
  std::vector<char> gathered_;            // of a gang: the rows of each rank's batch
  std::unique_ptr<data::Loader> loader_;  // made with the first evaluation, and kept
};

}  // namespace trainyard::engine
