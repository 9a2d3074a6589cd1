#include "executor/agent/reconcile.h"

#include <map>
#include <set>

#include "executor/run/run_directory.h"

namespace trainyard {
namespace {

bool Holds(const PresentRank& rank) { return rank.phase != PresentRank::kGone; }

void ActOnPresent(const PresentRank& rank, const v1::Assignment* wanted,
                  std::vector<Action>& actions) {
  if (wanted != nullptr && HasDifferentClaim(rank.claim, *wanted)) {
    if (rank.phase == PresentRank::kAlive) actions.push_back({Action::kKill, rank.name});
    if (rank.phase == PresentRank::kGone) actions.push_back({Action::kForget, rank.name});
    return;
  }
  switch (rank.phase) {
    case PresentRank::kAlive: {
      const bool suspend = wanted != nullptr && wanted->wish() == v1::Assignment::SUSPEND;
      if (wanted == nullptr || (suspend && rank.grace_over)) {
        actions.push_back({Action::kKill, rank.name});
      } else if (suspend && rank.listens && !rank.suspend_sent) {
        actions.push_back({Action::kSuspend, rank.name});
      }
      break;
    }
    case PresentRank::kStopping:
      break;
    case PresentRank::kGone:
      if (wanted == nullptr && rank.delivered && !rank.retired) {
        actions.push_back({Action::kRetire, rank.name});
      }
      break;
  }
}

}  // namespace

bool HasDifferentClaim(const std::string& claim, const v1::Assignment& assignment) {
  const std::string& wanted = assignment.key().claim();
  return !claim.empty() && !wanted.empty() && claim != wanted;
}

std::vector<Action> Reconcile(const v1::DesiredSet& desired,
                              const std::vector<PresentRank>& present, bool may_start) {
  std::map<std::string, const v1::Assignment*> wanted;
  for (const v1::Assignment& assignment : desired.assignments()) {
    wanted[run::RunDirectory::NameOf(assignment.key())] = &assignment;
  }
  std::vector<Action> actions;
  std::set<int> busy;
  std::set<std::string> known;
  for (const PresentRank& rank : present) {
    const auto want = wanted.find(rank.name);
    ActOnPresent(rank, want == wanted.end() ? nullptr : want->second, actions);
    known.insert(rank.name);
    if (Holds(rank)) busy.insert(rank.slots.begin(), rank.slots.end());
  }
  for (const v1::Assignment& assignment : desired.assignments()) {
    const std::string name = run::RunDirectory::NameOf(assignment.key());
    if (!known.insert(name).second) continue;
    if (assignment.wish() == v1::Assignment::SUSPEND) {
      actions.push_back({Action::kDecline, name});
      continue;
    }
    bool free = may_start;
    for (const int slot : assignment.slots()) free = free && !busy.contains(slot);
    if (!free) continue;
    busy.insert(assignment.slots().begin(), assignment.slots().end());
    actions.push_back({Action::kStart, name});
  }
  return actions;
}

}  // namespace trainyard
