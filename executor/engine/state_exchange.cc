#include "executor/engine/state_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// Who serves answers at once, but may get there later than rank 0.
constexpr absl::Duration kPatience = absl::Minutes(10);

}  // namespace

StateExchange::StateExchange(const Gang& gang, ReadOwn read_own)
    : gang_(gang), read_own_(std::move(read_own)) {}

absl::Status StateExchange::Read(int owner, StateRequest request, absl::Span<float> to) {
  if (owner == gang_.rank()) {
    request.n = static_cast<int64_t>(to.size());
    return read_own_(request, to);
  }
  while (!to.empty()) {
    request.n = std::min<int64_t>(kMostInAnswer, to.size());
    const absl::Span<float> part = to.first(request.n);
    const Transfer ask{.peer = owner, .send = Sent(absl::MakeSpan(&request, 1))};
    const Transfer answer{.peer = owner, .receive = Received(part)};
    TY_RETURN_IF_ERROR(ExchangeSoon({&ask, 1}));
    TY_RETURN_IF_ERROR(ExchangeSoon({&answer, 1}));
    request.first += request.n;
    to.remove_prefix(request.n);
  }
  return absl::OkStatus();
}

absl::Status StateExchange::End() {
  if (gang_.alone()) return absl::OkStatus();
  const StateRequest end;
  std::vector<Transfer> to_all;
  for (int rank = 1; rank < gang_.size(); ++rank) {
    to_all.push_back({.peer = rank, .send = Sent(absl::MakeSpan(&end, 1))});
  }
  return ExchangeSoon(to_all);
}

absl::Status StateExchange::ExchangeSoon(absl::Span<const Transfer> transfers) {
  gang_.communicator().SetPatience(kPatience);
  const absl::Status exchanged = gang_.communicator().Exchange(transfers);
  gang_.communicator().SetPatience(absl::InfiniteDuration());
  return WithFault(Fault::kGang, exchanged);
}

absl::Status StateExchange::Serve() {
  std::vector<float> answer;
  for (;;) {
    StateRequest request;
    const Transfer asked{.peer = 0, .receive = Received(absl::MakeSpan(&request, 1))};
    TY_RETURN_IF_ERROR(WithFault(Fault::kGang, gang_.communicator().Exchange({&asked, 1})));
    if (request.kind == StateRequest::kEnd) return absl::OkStatus();
    if (request.n < 1 || request.n > kMostInAnswer) {
      return WithFault(Fault::kGang,
                       absl::InternalError(absl::StrCat("rank 0 asks for ", request.n,
                                                        " elements of state ", request.kind)));
    }
    answer.resize(request.n);
    TY_RETURN_IF_ERROR(read_own_(request, absl::MakeSpan(answer)));
    const Transfer sent{.peer = 0, .send = Sent(absl::MakeSpan(answer))};
    TY_RETURN_IF_ERROR(WithFault(Fault::kGang, gang_.communicator().Exchange({&sent, 1})));
  }
}

}  // namespace trainyard::engine
