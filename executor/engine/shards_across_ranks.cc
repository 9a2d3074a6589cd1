#include "executor/engine/shards_across_ranks.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {

ShardsAcrossRanks::ShardsAcrossRanks(Session& session, const Gang& group, InOrder in_order)
    : session_(session), group_(group), in_order_(std::move(in_order)) {
  TY_CHECK(group.size() == session.plan().host.ranks && group.rank() == session.plan().host.rank,
           "rank ", group.rank(), " of ", group.size(), ", planned ", session.plan().host.rank,
           " of ", session.plan().host.ranks);
  TY_CHECK(group.links() != nullptr || session.HostView(session.plan().parameter_region) != nullptr,
           "the host cannot reach the memory of ", session.device().Description());
}

kernels::Kernels ShardsAcrossRanks::WithExchanges(kernels::Kernels kernels,
                                                  const std::vector<plan::ShardExchange>& exchanges,
                                                  const plan::Instance& of) {
  const auto rounds_of = [&](const plan::ShardExchange& exchange) {
    return std::make_shared<const Rounds>(RoundsOf(exchange, of));
  };
  const auto end = static_cast<int64_t>(kernels.size());
  // The last first: of several before one op the first goes before the others, which it wraps.
  for (auto exchange = exchanges.rbegin(); exchange != exchanges.rend(); ++exchange) {
    if (exchange->before_op == end) continue;
    kernels::Kernel& kernel = kernels[exchange->before_op];
    kernel.launch = [this, rounds = rounds_of(*exchange),
                     launch = std::move(kernel.launch)](kernels::Stream& stream) {
      Exchange(*rounds, stream);
      launch(stream);
    };
  }
  for (const plan::ShardExchange& exchange : exchanges) {
    if (exchange.before_op != end) continue;
    kernels::Kernel& kernel = kernels.back();
    kernel.launch = [this, rounds = rounds_of(exchange),
                     launch = std::move(kernel.launch)](kernels::Stream& stream) {
      launch(stream);
      Exchange(*rounds, stream);
    };
  }
  return kernels;
}

absl::Span<char> ShardsAcrossRanks::Place(plan::TensorId id, const plan::Instance& of) const {
  const plan::Plan& plan = session_.plan();
  return session_.InMemory({.offset = plan.offset(id, of), .bytes = plan.tensors[id].bytes()});
}

void ShardsAcrossRanks::Send(int64_t rank, plan::TensorId id, const plan::Instance& of) {
  Exchange({{{.peer = static_cast<int>(rank), .send = Place(id, of)}}}, session_.stream());
}

void ShardsAcrossRanks::Receive(int64_t rank, plan::TensorId id, const plan::Instance& of) {
  Exchange({{{.peer = static_cast<int>(rank), .receive = Place(id, of)}}}, session_.stream());
}

ShardsAcrossRanks::Rounds ShardsAcrossRanks::RoundsOf(const plan::ShardExchange& exchange,
                                                      const plan::Instance& of) const {
  const plan::Plan& plan = session_.plan();
  std::vector<int64_t> ranks = exchange.ranks;
  for (int rank = 0; rank < group_.size() && exchange.ranks.empty(); ++rank) ranks.push_back(rank);
  // The rows of `all` that belong to the rank at `place` of `ranks`.
  const auto rows_at = [&](absl::Span<char> all, size_t place) {
    if (exchange.rows.empty() || all.empty()) return all;
    int64_t count = 0;
    for (const plan::Run& rows : exchange.rows) count = std::max(count, rows.end);
    const int64_t bytes = static_cast<int64_t>(all.size()) / count;
    const plan::Run& rows = exchange.rows[place];
    return all.subspan(rows.first * bytes, rows.size() * bytes);
  };
  std::vector<std::vector<absl::Span<char>>> parts(group_.size());  // by the rank that makes them
  absl::Span<char> gathered;
  if (exchange.gathered != plan::kNone) {
    gathered = Place(exchange.gathered, of);
    for (const int64_t rank : ranks) parts[rank] = {Place(exchange.tensors[0], of)};
  } else {
    for (const plan::TensorId id : exchange.tensors) {
      parts[plan.tensors[id].made_by].push_back(Place(id, of));
    }
  }
  size_t most = 0;
  for (const auto& of_rank : parts) most = std::max(most, of_rank.size());
  const auto at = [&](int64_t rank, size_t round) {
    return round < parts[rank].size() ? parts[rank][round] : absl::Span<char>();
  };
  Rounds rounds;
  for (size_t i = 0; i < most; ++i) {
    std::vector<Transfer>& round = rounds.emplace_back();
    for (size_t place = 0; place < ranks.size(); ++place) {
      const auto rank = static_cast<int>(ranks[place]);
      if (rank == group_.rank()) continue;
      const absl::Span<char> own = at(group_.rank(), i);
      const Transfer transfer{.peer = rank,
                              .send = gathered.empty() ? rows_at(own, place) : own,
                              .receive = gathered.empty() ? at(rank, i) : rows_at(gathered, place)};
      if (!transfer.send.empty() || !transfer.receive.empty()) round.push_back(transfer);
    }
  }
  return rounds;
}

void ShardsAcrossRanks::Exchange(const Rounds& rounds, kernels::Stream& stream) {
  if (!status_.ok()) return;
  if (group_.links() != nullptr) {
    status_ = ExchangeBetweenGpus(rounds, stream);
    return;
  }
  const absl::Time begun = absl::Now();
  const auto make = [&] { return ExchangeBetweenHosts(rounds); };
  status_ = in_order_ ? in_order_(make) : make();
  waited_ += absl::Now() - begun;
}

absl::Status ShardsAcrossRanks::ExchangeBetweenGpus(const Rounds& rounds, kernels::Stream& stream) {
  for (const std::vector<Transfer>& round : rounds) {
    if (!round.empty()) TY_RETURN_IF_ERROR(group_.links()->Exchange(stream, round));
  }
  return absl::OkStatus();
}

absl::Status ShardsAcrossRanks::status() const {
  return group_.links() == nullptr ? status_ : session_.OfGang(status_);
}

absl::Status ShardsAcrossRanks::ExchangeBetweenHosts(const Rounds& rounds) {
  Communicator& communicator = group_.communicator();
  communicator.SetPatience(bound_);
  absl::Status made;
  for (const std::vector<Transfer>& round : rounds) {
    if (made.ok() && !round.empty()) made = communicator.Exchange(round);
  }
  communicator.SetPatience(absl::InfiniteDuration());
  return WithFault(Fault::kGang, made);
}

void ShardsAcrossRanks::BeginStep() {
  bound_ = patience_.Next(absl::Now());
  // Until the next step: what this one enqueues is waited for behind its end.
  if (group_.links() != nullptr) group_.links()->SetPatience(bound_);
}

}  // namespace trainyard::engine
