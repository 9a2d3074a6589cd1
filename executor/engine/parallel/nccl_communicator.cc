#include "executor/engine/parallel/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// A rank that waits looks again after this long: small beside a step, and 1 % of a core.
constexpr absl::Duration kPoll = absl::Microseconds(50);
// How much later than this one another rank may have begun to link its GPU.
constexpr absl::Duration kLinkingSkew = absl::Seconds(5);

// What rank 0 tells the others.
struct Named {
  int32_t code = 0;  // absl::StatusCode
  kernels::LinksId name = {};
  char words[512] = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Make(
    kernels::Device& device, Communicator& host, absl::Duration timeout,
    std::optional<absl::Duration> progress_timeout) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(device, host));
  made->partners_.resize(host.size());
  made->progress_timeout_ = progress_timeout;
  host.SetPatience(timeout);
  absl::Status met = made->Meet(timeout);
  host.SetPatience(absl::InfiniteDuration());
  if (!met.ok()) return made->Fail(std::move(met));
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  if (!failure_.ok() || links_ == nullptr) return;
  if (const absl::Status closed = links_->Close(); !closed.ok()) host_.Abort(closed);
}

// Every rank learns why rank 0 could not make the name, if it could not.
absl::Status NcclCommunicator::TellName(kernels::LinksId& name) {
  Named named;
  if (rank() == 0) {
    const absl::StatusOr<kernels::LinksId> made = device_.NameLinks();
    if (made.ok()) {
      named.name = *made;
    } else {
      named.code = static_cast<int32_t>(made.status().code());
      const std::string words(made.status().message());
      words.copy(named.words, sizeof(named.words) - 1);
    }
  }
  TY_RETURN_IF_ERROR(
      host_.Broadcast(0, absl::MakeSpan(reinterpret_cast<char*>(&named), sizeof(named))));
  name = named.name;
  if (named.code == 0) return absl::OkStatus();
  named.words[sizeof(named.words) - 1] = '\0';
  return absl::Status(static_cast<absl::StatusCode>(named.code),
                      absl::StrCat(host_.name(0), ": ", named.words));
}

absl::Status NcclCommunicator::Meet(absl::Duration timeout) {
  kernels::LinksId name;
  TY_RETURN_IF_ERROR(TellName(name));
  TY_RETURN_IF_ERROR(host_.Barrier());  // names who is missing
  auto links = device_.Link(name, rank(), size());
  if (!links.ok()) {
    return OfThisRank(links.status());
  }
  links_ = *std::move(links);
  const absl::Time until = absl::Now() + timeout;
  absl::Status linked = AwaitReady(until);
  if (!linked.ok() && !absl::IsDeadlineExceeded(linked)) return linked;
  // A rank that hangs in its library, or in its driver, does not answer here.
  host_.SetPatience(std::max(until - absl::Now(), absl::ZeroDuration()) + kLinkingSkew);
  std::vector<std::string> verdicts(size(), linked.ok() ? "1" : "0");
  std::vector<absl::Span<char>> parts;
  for (std::string& verdict : verdicts) parts.push_back(absl::MakeSpan(verdict));
  TY_RETURN_IF_ERROR(host_.AllGather(parts));
  std::vector<std::string> missing;
  for (int r = 0; r < size(); ++r) {
    if (verdicts[r] != "1") missing.push_back(host_.name(r));
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      links_->Description(), " has not linked the GPU of ", absl::StrJoin(missing, ", "),
      " with the others within ", absl::FormatDuration(timeout)));
}

absl::Status NcclCommunicator::AwaitReady(absl::Time until) {
  for (;;) {
    TY_RETURN_IF_ERROR(failure_);
    TY_RETURN_IF_ERROR(host_.Failure());
    const absl::StatusOr<bool> ready = links_->Ready();
    if (!ready.ok()) {
      return OfThisRank(ready.status());
    }
    if (*ready) return absl::OkStatus();
    if (absl::Now() > until) {
      return absl::DeadlineExceededError(absl::StrCat("the GPU of ", host_.name(rank()),
                                                      " could not be linked with that of ",
                                                      Others(), " in time"));
    }
    absl::SleepFor(kPoll);
  }
}

template <typename Call>
absl::Status NcclCommunicator::Enqueue(Call call) {
  absl::Status status = Health();
  if (!status.ok()) return status;
  status = call();
  if (status.ok()) status = AwaitReady(absl::Now() + patience_);
  return status.ok() ? status : Fail(std::move(status));
}

absl::Status NcclCommunicator::Exchange(kernels::Stream& stream,
                                        absl::Span<const Transfer> transfers) {
  return Enqueue([&]() -> absl::Status {
    std::vector<kernels::LinkTransfer> between;
    std::vector<bool> named(size());
    for (const Transfer& transfer : transfers) {
      const int peer = transfer.peer;
      if (peer < 0 || peer >= size() || named[peer]) {
        return absl::InternalError(
            absl::StrCat(host_.name(rank()), " exchanges with rank ", peer, " of ", size(),
                         peer < 0 || peer >= size() ? "" : " twice at once"));
      }
      named[peer] = true;
      if (peer == rank()) {
        if (transfer.send.size() != transfer.receive.size()) {
          return absl::InternalError(absl::StrCat(host_.name(peer), " sends itself ",
                                                  transfer.send.size(), " bytes and expects ",
                                                  transfer.receive.size()));
        }
        if (!transfer.send.empty() && transfer.send.data() != transfer.receive.data()) {
          device_.Copy(stream, transfer.receive.data(), transfer.send.data(), transfer.send.size());
        }
        continue;
      }
      if (transfer.send.empty() && transfer.receive.empty()) continue;
      between.push_back({.peer = peer,
                         .send = transfer.send.data(),
                         .send_bytes = transfer.send.size(),
                         .receive = transfer.receive.data(),
                         .receive_bytes = transfer.receive.size()});
      bytes_sent_ += static_cast<int64_t>(transfer.send.size());
      partners_[peer] = true;
    }
    return between.empty() ? absl::OkStatus() : links_->Exchange(stream, between);
  });
}

absl::Status NcclCommunicator::AllGather(kernels::Stream& stream,
                                         absl::Span<const absl::Span<char>> parts) {
  TY_CHECK(static_cast<int>(parts.size()) == size(), parts.size(), " parts of ", size(), " ranks");
  return Enqueue([&]() -> absl::Status {
    std::vector<kernels::LinkPart> all;
    for (int r = 0; r < size(); ++r) {
      all.push_back({.data = parts[r].data(), .bytes = parts[r].size()});
      if (r == rank()) continue;
      bytes_sent_ += static_cast<int64_t>(parts[rank()].size());
      partners_[r] = true;
    }
    return size() == 1 ? absl::OkStatus() : links_->Gather(stream, all);
  });
}

absl::Status NcclCommunicator::Await(kernels::Event& event) {
  const absl::Time begin = absl::Now();
  for (;;) {
    TY_RETURN_IF_ERROR(failure_);
    const absl::StatusOr<bool> passed = device_.Passed(event);
    if (!passed.ok()) {
      return Fail(OfThisRank(passed.status()));
    }
    // An error may be what let the event pass.
    if (*passed) {
      if (absl::Status health = OfThisRank(links_->Health()); !health.ok()) {
        return Fail(std::move(health));
      }
      return absl::OkStatus();
    }
    TY_RETURN_IF_ERROR(Health());
    if (absl::Now() - begin > patience_) {
      return Fail(absl::DeadlineExceededError(
          absl::StrCat("the GPU of ", host_.name(rank()), " has not done its work within ",
                       absl::FormatDuration(patience_), ": it is that slow, or waits for that of ",
                       Others(), ", which hangs or does not make the same calls")));
    }
    absl::SleepFor(kPoll);
  }
}

absl::Status NcclCommunicator::Health() {
  TY_RETURN_IF_ERROR(failure_);
  absl::Status status = host_.Failure();
  if (status.ok()) status = OfThisRank(links_->Health());
  return status.ok() ? status : Fail(std::move(status));
}

void NcclCommunicator::Abort(absl::Status why) { host_.Abort(std::move(why)); }

absl::Status NcclCommunicator::Fail(absl::Status why) {
  if (!failure_.ok()) return failure_;
  // What the host knew first is the cause: the links fail with the rank that they lead to.
  failure_ = host_.Failure();
  if (failure_.ok()) failure_ = std::move(why);
  host_.Abort(failure_);
  if (links_ != nullptr) links_->Abort();
  return failure_;
}

absl::Status NcclCommunicator::OfThisRank(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(host_.name(rank()), ": ", status.message()));
}

// The ranks that this one may wait for.
std::string NcclCommunicator::Others() const {
  const bool none = std::find(partners_.begin(), partners_.end(), true) == partners_.end();
  std::vector<std::string> names;
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && (none || partners_[r])) names.push_back(host_.name(r));
  }
  return absl::StrJoin(names, ", ");
}

std::string NcclCommunicator::description() const {
  return absl::StrCat(size(), size() == 1 ? " rank" : " ranks", " with a GPU each, linked by ",
                      links_->Description());
}

}  // namespace trainyard::engine
