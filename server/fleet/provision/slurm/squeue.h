#pragma once

// What squeue prints, read. Pure.

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/fleet/provision/node_engine.h"

namespace trainyard {

// For --format: a line for each task of an array, fields between "|"; the reason comes last, since
// anything may stand in it.
inline constexpr char kQueueFormat[] = "%k|%j|%K|%i|%T|%M|%N|%r";

// By which a yard knows its jobs; what sbatch is given as --comment.
std::string CommentOf(const std::string& yard_id);

// Those with the comment, in the order of their ids; a line that cannot be read is none of ours.
std::vector<Allocation> ParseQueue(absl::string_view text, absl::string_view comment);

// Of lines "MACHINE|STATE" of sinfo, the machines that answer and are not drained for what could
// not be killed there: what Slurm says of processes on them is true.
std::set<std::string> ParseSoundMachines(absl::string_view text);

// "1-02:03:04", "03:04" and "3:04:05", as squeue tells how long a job has run; zero for others.
absl::Duration ParseElapsed(absl::string_view text);

}  // namespace trainyard
