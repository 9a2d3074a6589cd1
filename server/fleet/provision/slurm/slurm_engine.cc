#include "server/fleet/provision/slurm/slurm_engine.h"

#include <set>

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

constexpr size_t kLongestComplaint = 400;
constexpr size_t kMostIdsAtOnce = 1000;  // in one command line

// What a command complained of, in one line.
std::string ComplaintIn(const CommandResult& result) {
  const std::vector<absl::string_view> lines =
      absl::StrSplit(result.err, '\n', absl::SkipWhitespace());
  if (lines.empty()) return absl::StrCat("exit code ", result.exit_code);
  return Printable(absl::string_view(absl::StrJoin(lines, "; ")).substr(0, kLongestComplaint));
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
           // RunCommand leaves nothing secret in it. Any other value has Slurm log the user in
           // first (--get-user-env), which takes a second.
           "--export=ALL",
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
  if (result.out.size() >= kMostOutput) {
    return absl::ResourceExhaustedError(absl::StrCat(arguments[0], " says too much"));
  }
  if (result.exit_code == 0) return std::move(result.out);
  return absl::UnavailableError(ComplaintIn(result));
}

absl::StatusOr<std::vector<std::string>> SlurmEngine::Ensure(const Pool& pool,
                                                             const std::string& ask,
                                                             const std::vector<int>& indices) {
  TY_ASSIGN_OR_RETURN(const std::string said, Run(BatchArguments(pool, ask, indices, yard_id_)));
  // "12", or "12;cluster".
  const std::vector<std::string> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(said), absl::MaxSplits(';', 1));
  std::vector<std::string> ids;
  for (const int index : indices) ids.push_back(absl::StrCat(parts[0], "_", index));
  return ids;
}

absl::StatusOr<std::vector<Allocation>> SlurmEngine::List() {
  TY_ASSIGN_OR_RETURN(const std::string text,
                      // --all: of hidden partitions, too.
                      Run({"squeue", "--noheader", "--all", "--array", "--states=all", "--me",
                           absl::StrCat("--format=", kQueueFormat)}));
  std::vector<Allocation> allocations = ParseQueue(text, CommentOf(yard_id_));
  TY_RETURN_IF_ERROR(DoubtEnds(allocations));
  return allocations;
}

// A machine that is lost while an allocation ends does not change what squeue says of it, and a
// process that Slurm cannot kill only drains its machine.
absl::Status SlurmEngine::DoubtEnds(std::vector<Allocation>& allocations) {
  std::set<std::string> machines;
  for (const Allocation& one : allocations) {
    if (one.proven_gone && !one.machine.empty()) machines.insert(one.machine);
  }
  if (machines.empty()) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(const std::string text,
                      Run({"sinfo", "--noheader", "--all", "--Node", "--format=%N|%T",
                           absl::StrCat("--nodes=", absl::StrJoin(machines, ","))}));
  const std::set<std::string> sound = ParseSoundMachines(text);
  for (Allocation& one : allocations) {
    if (!one.machine.empty() && sound.count(one.machine) == 0) one.proven_gone = false;
  }
  return absl::OkStatus();
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
