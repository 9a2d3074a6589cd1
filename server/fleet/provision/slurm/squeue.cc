#include "server/fleet/provision/slurm/squeue.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "storage/base/printable.h"
#include "storage/records/node_request.h"

namespace trainyard {
namespace {

constexpr size_t kFields = 8;
constexpr size_t kLongestWords = 200;

// States of man squeue(1). An allocation in one of these holds nodes, or may soon.
constexpr absl::string_view kWaits[] = {"PENDING",     "CONFIGURING",  "REQUEUED",
                                        "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
                                        "SPECIAL_EXIT"};
// In these Slurm has seen the end of every process; not in NODE_FAIL and BOOT_FAIL, where nobody
// has looked.
constexpr absl::string_view kOverForSure[] = {"COMPLETED",     "CANCELLED", "FAILED",  "TIMEOUT",
                                              "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE"};
constexpr absl::string_view kOver[] = {"NODE_FAIL", "BOOT_FAIL", "REVOKED"};

// Reasons (man squeue) for which an allocation waits until an operator or the pool's file changes
// something; beside those that say "held".
constexpr absl::string_view kStuck[] = {"BadConstraints",     "InvalidAccount",     "InvalidQOS",
                                        "PartitionTimeLimit", "PartitionNodeLimit", "QOSNotAllowed",
                                        "AccountNotAllowed"};

template <size_t N>
bool IsOneOf(absl::string_view state, const absl::string_view (&states)[N]) {
  return std::find(std::begin(states), std::end(states), state) != std::end(states);
}

// 12 and 3 of "12_3".
std::pair<int64_t, int64_t> NumbersOf(const std::string& id) {
  std::pair<int64_t, int64_t> numbers;
  const std::vector<absl::string_view> parts = absl::StrSplit(id, '_');
  (void)absl::SimpleAtoi(parts[0], &numbers.first);
  if (parts.size() > 1) (void)absl::SimpleAtoi(parts[1], &numbers.second);
  return numbers;
}

}  // namespace

std::string CommentOf(const std::string& yard_id) { return absl::StrCat("trainyard:", yard_id); }

absl::Duration ParseElapsed(absl::string_view text) {
  int64_t days = 0;
  if (const size_t dash = text.find('-'); dash != absl::string_view::npos) {
    if (!absl::SimpleAtoi(text.substr(0, dash), &days)) return absl::ZeroDuration();
    text.remove_prefix(dash + 1);
  }
  int64_t seconds = 0;
  for (const absl::string_view part : absl::StrSplit(text, ':')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < 0) return absl::ZeroDuration();
    seconds = seconds * 60 + number;
  }
  return absl::Hours(24) * days + absl::Seconds(seconds);
}

std::set<std::string> ParseSoundMachines(absl::string_view text) {
  std::set<std::string> sound;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits('|', 1));
    if (fields.size() != 2) continue;
    const std::string state = absl::AsciiStrToLower(fields[1]);
    const bool doubtful = absl::EndsWith(state, "*") || absl::StrContains(state, "down") ||
                          absl::StrContains(state, "drain") || absl::StrContains(state, "fail") ||
                          absl::StrContains(state, "unknown");
    if (!doubtful) sound.insert(fields[0]);
  }
  return sound;
}

std::vector<Allocation> ParseQueue(absl::string_view text, absl::string_view comment) {
  std::vector<Allocation> allocations;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::MaxSplits('|', static_cast<int>(kFields) - 1));
    int index = 0;
    if (fields.size() != kFields || fields[0] != comment || !absl::SimpleAtoi(fields[2], &index)) {
      continue;
    }
    const std::string& state = fields[4];
    Allocation& one = allocations.emplace_back();
    one.node = AskedNodeName(fields[1], index);
    one.id = fields[3];
    const bool says_why = !fields[7].empty() && fields[7] != "None";
    one.words = absl::StrCat("Slurm ", state, says_why ? absl::StrCat(" (", fields[7], ")") : "");
    one.words = Printable(absl::string_view(one.words).substr(0, kLongestWords));
    one.stuck =
        IsOneOf(state, kWaits) &&
        (IsOneOf(fields[7], kStuck) || absl::StrContains(absl::AsciiStrToLower(fields[7]), "held"));
    one.ran = ParseElapsed(fields[5]);
    one.machine = fields[6];
    one.proven_gone = IsOneOf(state, kOverForSure);
    if (one.proven_gone || IsOneOf(state, kOver)) {
      one.state = Allocation::State::kOver;
    } else if (!IsOneOf(state, kWaits)) {
      one.state = Allocation::State::kRuns;
    }
  }
  std::sort(allocations.begin(), allocations.end(), [](const Allocation& a, const Allocation& b) {
    return NumbersOf(a.id) < NumbersOf(b.id);
  });
  return allocations;
}

}  // namespace trainyard
