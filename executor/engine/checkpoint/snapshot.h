#pragma once

// The training state in host memory: a copy that a checkpoint is written from while training goes
// on, or, when it does not, the state itself.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/checkpoint/tensor_view.h"
#include "executor/plan/graph/plan.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// The optimizer state of a parameter has this prefix and the parameter's name in a checkpoint:
// "exp_avg.".
std::string OptimizerPrefix(const plan::Plan& plan, size_t kind);

// The average of an adapter's matrix has this prefix and the matrix's name in a checkpoint: "ema.".
std::string AveragePrefix();

// Owns one buffer of the plan's parameter, optimizer, average and buffer bytes, allocated with the
// first copy. Not to be moved: the views point into it. The plan must outlive it.
class Snapshot {
 public:
  // Where the regions of a plan begin. Of a sharded plan the optimizer's state is what each rank
  // has whole (Plan::whole_state_bytes) and then that of all ranks, kind by kind, without what pads
  // it, or nothing where it is found by parameter; so are, behind parameters that are not sharded,
  // those that are.
  struct Places {
    const char *parameters, *optimizer, *averages, *buffers;
  };

  // What goes with a parameter: the optimizer's state of a kind, counted from 0, or one of these.
  static constexpr int64_t kWeights = -1, kAverages = -2;

  // Reads what of that is sharded, from element `first` of the dense gradients on.
  using ReadState = std::function<absl::Status(int64_t what, int64_t first, absl::Span<float> to)>;

  // The tensor that goes with plan.parameters[position]; kNone: there is none.
  static plan::TensorId TensorOf(const plan::Plan& plan, int64_t what, size_t position);

  // Reads what goes with parameter `position` of Plan::of_group, and is not all here
  // (ForEachElsewhere), from element `first` on.
  using ReadShard = std::function<absl::Status(int64_t what, size_t position, int64_t first,
                                               absl::Span<float> to)>;

  using Allocate = std::function<std::shared_ptr<char[]>(size_t bytes)>;

  // `model`: that of the plan's spec. `allocate`: where the buffer lies; null: in ordinary memory.
  Snapshot(const plan::Plan& plan, v1::Model model, Allocate allocate = nullptr);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Where the regions of the arena are to be copied to; from now on views show what lies there.
  struct Room {
    char *parameters, *optimizer, *averages, *buffers;
  };
  Room Own();

  // From now on views show the regions at `places`, which are someone else's, and what is not all
  // here as `elsewhere` reads it.
  void Borrow(const Places& places, const ReadShard& elsewhere = nullptr);

  // After Own: reads all that is not here.
  absl::Status ReadElsewhere(const ReadShard& elsewhere);

  // Of a sharded plan: what is sharded is read as it is written, from now on or, if there is room
  // for it, at once, into `room`.
  void BorrowState(ReadState read);
  absl::Status ReadStateInto(const Room& room, const ReadState& read);

  // Micro-batches of the steps taken so far, a number that torch keeps beside each running mean.
  void SetBatches(int64_t batches) { batches_ = batches; }

  // Parameters, adapters merged into what they adapt, buffers and, for each `X.running_mean`,
  // `X.num_batches_tracked`.
  const std::map<std::string, TensorView>& model() const { return model_; }
  // The model with averages in place of the trained parameters; empty when there are none.
  const std::map<std::string, TensorView>& ema() const { return ema_; }
  const std::map<std::string, TensorView>& optimizer_state() const { return optimizer_state_; }
  // With low-rank adaptation, else empty. adapter(): the adapters and the modules that are trained
  // directly, under peft's names. base(): the weights that are adapted, before merging, and the
  // averages "ema.X" of the adapters.
  const std::map<std::string, TensorView>& adapter() const { return adapter_; }
  const std::map<std::string, TensorView>& base() const { return base_; }

 private:
  void SetAdaptersApart();
  // Adds a view of each tensor of which the plan has shards, and of those that are elsewhere;
  // `of_parameters` says where what goes with each parameter begins, null: nowhere.
  void AddShards(int64_t what, const std::string& prefix, std::vector<const char*> of_parameters,
                 const ReadShard& elsewhere, std::map<std::string, TensorView>& views) const;
  // Calls f(what, position in Plan::of_group, its tensor) for all that other ranks host, or have
  // shares of the state of (Plan::state_by_parameter).
  template <typename F>
  void ForEachElsewhere(const F& f) const;
  // Calls f(what, stored tensor, its first element) for each of which that is sharded.
  template <typename F>
  void ForEachState(const F& f) const;
  // Of the stored tensor `name`, or what goes with it.
  TensorView& ViewOf(int64_t what, const std::string& name);

  const plan::Plan& plan_;
  const v1::Model model_spec_;
  const Allocate allocate_;
  std::shared_ptr<char[]> memory_;
  char* elsewhere_ =
      nullptr;  // in memory_: where what other ranks host is copied to; null: nowhere
  int64_t batches_ = 0;
  std::map<std::string, TensorView> model_, ema_, optimizer_state_, adapter_, base_;
};

}  // namespace trainyard::engine
