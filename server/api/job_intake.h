#pragma once

// What SubmitJob and BatchSubmitJobs do for a caller who is admitted.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/api/project_facts.h"
#include "server/fleet/provision/pools.h"
#include "server/sizing/sizer.h"
#include "storage/stores.h"
#include "trainyard/v1/job_service.pb.h"

namespace trainyard {

// Checks jobs, plans them, and stores those that hold. Thread-safe.
class JobIntake {
 public:
  // Why a job that is about to be stored will wait; absent: not known.
  using Foretell = std::function<std::optional<Reason>(const JobRecord&)>;

  // What is referred to outlives it.
  // `pools`: of which engines could add nodes to those that there are.
  JobIntake(Stores& stores, Sizer& sizer, ProjectFacts::Look look, Foretell foretell,
            std::vector<Pool> pools = {})
      : stores_(stores),
        jobs_(stores.jobs()),
        sizer_(sizer),
        facts_(stores.projects(), std::move(look)),
        foretell_(std::move(foretell)),
        pools_(std::move(pools)),
        possible_(PossibleNodes(pools_)) {}

  // True once nobody waits for the answer any more: then nothing is written.
  using Gone = std::function<bool()>;

  // As SubmitJob says.
  absl::StatusOr<v1::Job> Submit(const v1::SubmitJobRequest& request, const std::string& creator,
                                 const Gone& gone);

  // As BatchSubmitJobs says: an answer for each request, in order. Jobs with the same spec are
  // planned once. Planning all of them takes at most kLongestBatchPlanning: the rest is
  // kUnavailable.
  absl::StatusOr<std::vector<absl::StatusOr<v1::Job>>> SubmitMany(
      const v1::BatchSubmitJobsRequest& request, const std::string& creator, const Gone& gone);

  // As PlanLayouts says.
  absl::Status PlanLayouts(const v1::PlanLayoutsRequest& request, const std::string& creator,
                           const Gone& gone, v1::PlanLayoutsResponse* response);

  // The slots and the layout that `request` asks for, if the job may have them and could then fit.
  absl::StatusOr<SlotRange> CheckRange(const v1::ResizeJobRequest& request, const JobRecord& job);

 private:
  // What was found out about one spec.
  struct Plan {
    absl::StatusOr<Sizing> sizing;
    absl::Status fits;  // whether it fits the nodes
    // Of a job that leaves its mesh to the service: what was chosen.
    std::optional<v1::JobSpec> chosen;
  };
  struct Row {
    const v1::SubmitJobRequest* request = nullptr;
    JobRecord job;
    absl::StatusOr<v1::Job> answer = absl::UnknownError("not answered");
    bool refused = false;  // `answer` says why
    bool mesh_was_chosen = false;
  };

  using Nodes = std::shared_ptr<const std::vector<NodeRecord>>;

  // For a job that leaves its mesh to the service.
  struct Chosen {
    v1::JobSpec spec;
    Sizing sizing;
    Nodes nodes;            // that it was chosen for
    std::string none_fits;  // why, if none fits these: then `spec` is the job as it is
  };

  absl::StatusOr<Sizing> Size(const JobRecord& job, SteadyTime until);
  Plan MakePlan(JobRecord job, SteadyTime until);
  absl::StatusOr<Chosen> ChooseMesh(JobRecord job, SteadyTime until, const Gone& gone);
  Plan MakeOpenPlan(JobRecord job, SteadyTime until, const Gone& gone);
  Nodes NodesOfAMomentAgo();  // none: they were read earlier than that
  absl::StatusOr<Nodes> ReadNodes();
  absl::Status CheckFitsNodes(const JobRecord& job, const plan::DataFacts& facts, SteadyTime until);
  // On the nodes that there are, with those that one of the pools could have.
  absl::Status CheckFitsWithPools(const JobRecord& job, const std::vector<NodeRecord>& nodes,
                                  absl::FunctionRef<std::string(int64_t)> what_fits) const;
  int64_t LargestSlotWithPools(const JobRecord& job, const std::vector<NodeRecord>& nodes) const;
  absl::Status CheckFitsOn(const std::vector<NodeRecord>& nodes, const JobRecord& job,
                           const plan::DataFacts& facts, SteadyTime until);
  absl::StatusOr<JobRecord> FindEarlier(const JobRecord& job);
  absl::StatusOr<std::vector<Row>> CheckBatch(const v1::BatchSubmitJobsRequest& request,
                                              const std::string& creator);
  Plan MakeRowPlan(const Row& row, SteadyTime until, const Gone& gone);
  void PlanBatch(std::vector<Row>& rows, const Gone& gone);
  absl::Status PlanRow(Row& row, const Plan& plan);
  absl::Status TakeEarlierMesh(Row& row);
  bool TakenByTheSame(Row& row, const absl::Status& submitted);

  Stores& stores_;
  JobStore& jobs_;
  Sizer& sizer_;
  ProjectFacts facts_;
  const Foretell foretell_;
  const std::vector<Pool> pools_;
  const std::vector<NodeRecord> possible_;  // of each pool
  absl::Mutex mu_;
  Nodes nodes_ ABSL_GUARDED_BY(mu_);  // as of a moment ago
  absl::Duration nodes_read_ ABSL_GUARDED_BY(mu_) =
      -absl::InfiniteDuration();  // on Clock::SinceBoot
};

// Limits of one call of BatchSubmitJobs.
inline constexpr int kMostInBatch = 256;
inline constexpr int64_t kLargestBatch = int64_t{2} << 20;  // its answer stays below 4 MiB
inline constexpr absl::Duration kLongestBatchPlanning = absl::Seconds(20);

// All that helpers do for one call: less than what a client waits for an answer.
inline constexpr absl::Duration kLongestPlanning = absl::Seconds(25);

// Of one call of PlanLayouts, and of one choice of a mesh.
inline constexpr int kMostLayouts = 64;
inline constexpr int kMostPlannedSlots = 1024;  // a plan of more takes much memory

}  // namespace trainyard
