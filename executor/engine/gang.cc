#include "executor/engine/gang.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr size_t kLongest = 1024;  // bytes of a text that is gathered

// How something went for a rank.
struct Outcome {
  int32_t code = 0;
  int32_t fault = 0;
  int32_t rolled_back = 0;
  char message[kLongest] = {};
};

Outcome OutcomeOf(const absl::Status& status) {
  Outcome outcome{.code = static_cast<int32_t>(status.code()),
                  .fault = static_cast<int32_t>(FaultOf(status)),
                  .rolled_back = RolledBack(status) ? 1 : 0};
  status.message().copy(outcome.message, kLongest - 1);
  return outcome;
}

absl::Status StatusOf(const Outcome& outcome) {
  if (outcome.code == 0) return absl::OkStatus();
  const std::string message(outcome.message, strnlen(outcome.message, kLongest));
  const absl::Status status =
      WithFault(static_cast<Fault>(outcome.fault),
                absl::Status(static_cast<absl::StatusCode>(outcome.code), message));
  return outcome.rolled_back != 0 ? MarkRolledBack(status) : status;
}

// The values of all ranks, of a fixed size.
template <typename T>
absl::StatusOr<std::vector<T>> GatherValues(const Gang& gang, const T& mine) {
  std::vector<T> values(gang.size());
  values[gang.rank()] = mine;
  std::vector<absl::Span<char>> parts;
  for (T& value : values) parts.emplace_back(reinterpret_cast<char*>(&value), sizeof(T));
  TY_RETURN_IF_ERROR(gang.AllGather(parts));
  return values;
}

}  // namespace

void SetBounds(const v1::Parallel& parallel, Rendezvous& rendezvous) {
  if (!parallel.has_progress_timeout_seconds()) return;
  rendezvous.progress_timeout = absl::Seconds(parallel.progress_timeout_seconds());
  rendezvous.silence = std::min(rendezvous.silence, *rendezvous.progress_timeout);
}

absl::Status Gang::AllGather(absl::Span<const absl::Span<char>> parts) const {
  if (alone()) return absl::OkStatus();
  return WithFault(Fault::kGang, communicator_->AllGather(parts));
}

absl::Status Gang::ToLeader(absl::Span<const char> mine, absl::Span<char> all) const {
  if (leads()) std::copy(mine.begin(), mine.end(), all.begin());
  if (alone()) return absl::OkStatus();
  std::vector<Transfer> transfers;
  if (!leads()) transfers.push_back({.peer = 0, .send = mine});
  for (int other = 1; leads() && other < size(); ++other) {
    transfers.push_back({.peer = other, .receive = all.subspan(other * mine.size(), mine.size())});
  }
  return WithFault(Fault::kGang, communicator_->Exchange(transfers));
}

absl::StatusOr<bool> Gang::Any(bool mine) const {
  TY_ASSIGN_OR_RETURN(const uint8_t any, AnyOf(mine ? 1 : 0));
  return any != 0;
}

absl::StatusOr<uint8_t> Gang::AnyOf(uint8_t mine) const {
  TY_ASSIGN_OR_RETURN(const std::vector<uint8_t> all, GatherValues<uint8_t>(*this, mine));
  uint8_t any = 0;
  for (const uint8_t one : all) any |= one;
  return any;
}

absl::StatusOr<int64_t> Gang::OfLeader(int64_t mine) const {
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> all, GatherValues<int64_t>(*this, mine));
  return all[0];
}

absl::StatusOr<std::vector<std::string>> Gang::Gather(const std::string& mine) const {
  std::array<char, kLongest> text{};
  mine.copy(text.data(), kLongest - 1);
  TY_ASSIGN_OR_RETURN(const auto all, (GatherValues<std::array<char, kLongest>>(*this, text)));
  std::vector<std::string> texts;
  for (const auto& one : all) texts.emplace_back(one.data(), strnlen(one.data(), kLongest));
  return texts;
}

absl::Status Gang::CheckSame(const std::string& what, const std::string& mine, Fault fault) const {
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> all, Gather(mine));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return MarkCommon(WithFault(fault, absl::FailedPreconditionError(absl::StrCat(
                                           what, " differs between ranks: rank 0 has ", all[0],
                                           ", rank ", rank, " has ", all[rank]))));
  }
  return absl::OkStatus();
}

absl::Status Gang::OfLeader(const absl::Status& mine) const {
  if (alone()) return mine;
  TY_ASSIGN_OR_RETURN(const auto all, GatherValues(*this, OutcomeOf(mine)));
  const absl::Status status = leads() ? mine : StatusOf(all[0]);
  return status.ok() ? status : MarkCommon(status);
}

absl::Status Gang::Agree(const absl::Status& mine) const {
  if (alone()) return mine;
  TY_ASSIGN_OR_RETURN(const auto all, GatherValues(*this, OutcomeOf(mine)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const absl::Status status = StatusOf(all[rank]);
    // By its name in the whole gang, of which these ranks may be a part (groups.h).
    if (!status.ok()) {
      return MarkCommon(Annotate(status, communicator_->name(static_cast<int>(rank))));
    }
  }
  return absl::OkStatus();
}

void Gang::Fail(const absl::Status& why) const {
  if (!alone()) communicator_->Abort(why);
}

}  // namespace trainyard::engine
