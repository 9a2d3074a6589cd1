#pragma once

// What the ranks that share a logical rank exchange while they compute.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "executor/engine/gang.h"
#include "executor/engine/session.h"
#include "executor/engine/step_patience.h"
#include "executor/plan/graph/plan.h"
#include "kernels/device.h"

namespace trainyard::engine {

// Each rank sends what it makes of a tensor's parts to the others, which wait for it. Every rank
// runs the same exchanges in the same order: between GPUs on the stream of the session, which waits
// in place of the host, if the group's are linked; else between hosts, which must reach the
// device's memory.
class ShardsAcrossRanks {
 public:
  // Makes an exchange in the order of those that this rank has started otherwise. Absent: there are
  // none, or they are in a stream.
  using InOrder = std::function<absl::Status(const std::function<absl::Status()>& exchange)>;

  // `session`, and what `group` stands for, must outlive it and the kernels that it returns.
  ShardsAcrossRanks(Session& session, const Gang& group, InOrder in_order = nullptr);
  ShardsAcrossRanks(const ShardsAcrossRanks&) = delete;
  ShardsAcrossRanks& operator=(const ShardsAcrossRanks&) = delete;

  // `kernels`, those of the ops of one list of the plan, bound to the places that `of` says, which
  // make `exchanges` before the ops that need them.
  kernels::Kernels WithExchanges(kernels::Kernels kernels,
                                 const std::vector<plan::ShardExchange>& exchanges,
                                 const plan::Instance& of = {});

  // What goes to, or comes from, rank `rank` of the group: a tensor in the place that `of` says.
  // The other makes the opposite call.
  void Send(int64_t rank, plan::TensorId id, const plan::Instance& of);
  void Receive(int64_t rank, plan::TensorId id, const plan::Instance& of);

  // A step begins: its exchanges do not wait for ever for a rank that hangs.
  void BeginStep();
  void EndStep() { bound_ = absl::InfiniteDuration(); }

  // The first exchange that failed, with the fault kGang: none is made after it, and what kernels
  // found since is worthless. Not while a stream is recorded.
  absl::Status status() const;

  // How long the host has exchanged so far.
  absl::Duration waited() const { return waited_; }

 private:
  // The parts of an exchange by round: in each, one of every rank that has as many.
  using Rounds = std::vector<std::vector<Transfer>>;
  Rounds RoundsOf(const plan::ShardExchange& exchange, const plan::Instance& of) const;
  absl::Span<char> Place(plan::TensorId id, const plan::Instance& of) const;
  void Exchange(const Rounds& rounds, kernels::Stream& stream);
  absl::Status ExchangeBetweenHosts(const Rounds& rounds);
  absl::Status ExchangeBetweenGpus(const Rounds& rounds, kernels::Stream& stream);

  Session& session_;
  const Gang group_;
  const InOrder in_order_;
  StepPatience patience_;
  absl::Duration bound_ = absl::InfiniteDuration();
  absl::Duration waited_;
  absl::Status status_;
};

}  // namespace trainyard::engine
