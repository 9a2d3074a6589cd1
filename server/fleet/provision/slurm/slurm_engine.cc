#include "server/fleet/provision/slurm/slurm_engine.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/fleet/provision/slurm/run_command.h"
#include "server/fleet/provision/slurm/squeue.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr size_t kLongestComplaint = 200;
constexpr size_t kMostIdsAtOnce = 1000;  // in one command line

// The last line of what a command complained of.
std::string ComplaintIn(const CommandResult& result) {
  const absl::string_view text = absl::StripAsciiWhitespace(result.err);
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) return absl::StrCat("exit code ", result.exit_code);
  return Printable(lines.back().substr(0, kLongestComplaint));
}

}  // namespace

std::vector<std::string> BatchArguments(const Pool& pool, const std::string& ask,
                                        const std::vector<int>& indices,
                                        const std::string& yard_id) {
  std::vector<std::string> arguments = {"sbatch", "--parsable"};
  // What follows counts more than the pool's options, which cannot say these.
  arguments.insert(arguments.end(), pool.slurm.options.begin(), pool.slurm.options.end());
  for (std::string& own : std::vector<std::string>{
           absl::StrCat("--job-name=", ask), absl::StrCat("--array=", absl::StrJoin(indices, ",")),
           absl::StrCat("--comment=", CommentOf(yard_id)),
           // Of our environment, which has secrets, nothing.
           "--export=NIL",
           // A name stands for one allocation: another one gets another.
           "--no-requeue",
           // To the script alone: what ends an allocation otherwise signals all of its processes.
           absl::StrCat("--signal=B:USR1@",
                        absl::ToInt64Seconds(absl::Ceil(pool.slurm.leave, absl::Seconds(1)))),
           pool.slurm.script}) {
    arguments.push_back(std::move(own));
  }
  return arguments;
}

absl::StatusOr<std::string> SlurmEngine::Run(const std::vector<std::string>& arguments) {
  TY_ASSIGN_OR_RETURN(CommandResult result, RunCommand(arguments, limit_));
  if (result.exit_code == 0) return std::move(result.out);
  return absl::UnavailableError(ComplaintIn(result));
}

absl::Status SlurmEngine::Ensure(const Pool& pool, const std::string& ask,
                                 const std::vector<int>& indices) {
  return Run(BatchArguments(pool, ask, indices, yard_id_)).status();
}

absl::StatusOr<std::vector<Allocation>> SlurmEngine::List() {
  TY_ASSIGN_OR_RETURN(const std::string text,
                      Run({"squeue", "--noheader", "--array", "--states=all", "--me",
                           absl::StrCat("--format=", kQueueFormat)}));
  return ParseQueue(text, CommentOf(yard_id_));
}

absl::Status SlurmEngine::Release(const std::vector<std::string>& ids) {
  for (size_t begin = 0; begin < ids.size(); begin += kMostIdsAtOnce) {
    std::vector<std::string> arguments = {"scancel", "--quiet"};
    const size_t end = std::min(ids.size(), begin + kMostIdsAtOnce);
    arguments.insert(arguments.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
                     ids.begin() + static_cast<std::ptrdiff_t>(end));
    TY_RETURN_IF_ERROR(Run(arguments).status());
  }
  return absl::OkStatus();
}

}  // namespace trainyard
