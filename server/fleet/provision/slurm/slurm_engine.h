#pragma once

#include <string>
#include <vector>

#include "server/fleet/provision/node_engine.h"

namespace trainyard {

// Nodes as tasks of Slurm's job arrays, by sbatch, squeue and scancel: an ask is one array, whose
// tasks run the pool's script. There the node's name is $SLURM_JOB_NAME-$SLURM_ARRAY_TASK_ID.
class SlurmEngine : public NodeEngine {
 public:
  // `command_limit`: how long one command may take.
  explicit SlurmEngine(const std::string& yard_id, absl::Duration command_limit = absl::Seconds(20))
      : yard_id_(yard_id), limit_(command_limit) {}

  absl::StatusOr<std::vector<std::string>> Ensure(const Pool& pool, const std::string& ask,
                                                  const std::vector<int>& indices) override;
  absl::StatusOr<std::vector<Allocation>> List() override;
  absl::Status Release(const std::vector<std::string>& ids) override;

 private:
  // Takes the proof from those that are over on machines that cannot be believed.
  absl::Status DoubtEnds(std::vector<Allocation>& allocations);
  absl::StatusOr<std::string> Run(const std::vector<std::string>& arguments);

  const std::string yard_id_;
  const absl::Duration limit_;
};

// The arguments of sbatch.
std::vector<std::string> BatchArguments(const Pool& pool, const std::string& ask,
                                        const std::vector<int>& indices,
                                        const std::string& yard_id);

}  // namespace trainyard
