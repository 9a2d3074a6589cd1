#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/engine/across_ranks.h"
#include "executor/engine/gang_sums.h"
#include "executor/engine/step_patience.h"
#include "executor/plan/passes/bucket_order.h"

namespace trainyard::engine {

// By the links between the GPUs of the gang. Buckets are exchanged on a stream of their own while
// the backward pass goes on, everything else on that of the session. The streams wait for what is
// exchanged, and the host does not; only when two ranks exchange for the first time does it wait
// until they are connected.
class AcrossGpus : public AcrossRanks {
 public:
  // kResourceExhausted: no memory for what is received of a bucket.
  static absl::StatusOr<std::unique_ptr<AcrossGpus>> Make(Session& session, const Gang& gang);
  ~AcrossGpus() override;

  kernels::Kernels WithExchanges(const kernels::Kernels& micro, const StepPart& part) override;
  // The stream waits for all parameters at once.
  kernels::Kernels WithArrivals(const kernels::Kernels& micro) override { return micro; }
  absl::Status Started() override { return OfGang(started_); }
  absl::Status AwaitSums() override;
  absl::Status AddSums() override;
  absl::Status CompleteLeaves() override;
  absl::Status ShareLeaves() override;
  absl::Status GatherParameters() override;
  absl::Status InOrder(const std::function<absl::Status()>& exchange) override;
  absl::Status AwaitParameters() override { return absl::OkStatus(); }
  void Quiesce() override { session_.Synchronize().IgnoreError(); }
  absl::Duration waited() const override { return absl::ZeroDuration(); }
  absl::Status Gather(absl::Span<const absl::Span<char>> parts) override;

 protected:
  AcrossGpus(Session& session, const Gang& gang);
  // Memory, and kernels.
  virtual absl::Status Prepare();
  // `bytes` for what others send.
  absl::Status AllocateReceived(int64_t bytes);
  // total[0..n) += part[0..n), if that is anything.
  template <typename T>
  absl::Status PrepareFold(const T* part, T* total, size_t n, kernels::Kernels& to);
  absl::Status OfGang(const absl::Status& status) { return session_.OfGang(status); }

  Session& session_;
  const Gang gang_;
  DeviceCommunicator& links_;
  const std::vector<plan::ReadyBucket> order_;
  std::vector<PartialSum> places_;  // by number of the partial sum
  char* received_ = nullptr;        // what others bring: of one bucket, or of losses and targets
  std::unique_ptr<kernels::Stream> exchanges_;
  StepPatience patience_;
  absl::Status started_;

 private:
  // One bucket, ready to be exchanged.
  struct PreparedBucket {
    // rounds[i]: the i-th sum of this rank goes to those whose slices it holds, as those of others
    // come here.
    std::vector<std::vector<Transfer>> rounds;
    std::vector<kernels::Kernels> folds;  // [p]: sum p + 1 of this rank is added to sum p
    kernels::Kernels add_up;
    absl::Span<char> own_slice;  // of the gradients of this rank
    absl::Span<char> total;      // where the sum of that slice is made: in place, at rank 0
    std::unique_ptr<kernels::Event> ready;
  };

  absl::StatusOr<PreparedBucket> PrepareBucket(const plan::Bucket& bucket);
  absl::Status PrepareSums();
  // Exchanges and adds up one bucket on `stream`, which may be recorded.
  absl::Status Exchange(size_t bucket, kernels::Stream& stream);
  // Each rank's slice of a bucket in `values`, which are as many as the gradients, goes to all.
  absl::Status GatherSlices(const plan::Bucket& bucket, absl::Span<float> values,
                            kernels::Stream& stream);

  const GangSums all_;
  std::vector<PreparedBucket> buckets_;
  std::vector<absl::Span<char>> losses_;  // by rank: its sums of losses and targets
  kernels::Kernels add_losses_;
  std::unique_ptr<kernels::Event> exchanged_;
};

}  // namespace trainyard::engine
