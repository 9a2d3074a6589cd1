#include "executor/engine/sharded_state.h"

#include <algorithm>
#include <string>

#include "executor/engine/fault.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// What rank 0 asks an owner for. As the ranks of a gang are programs of one build, it travels as it
// lies in memory.
struct Request {
  int64_t kind = kEnd;
  int64_t first = 0;  // element
  int64_t n = 0;

  static constexpr int64_t kEnd = -1;
};

// Who serves answers at once, but may get there later than rank 0.
constexpr absl::Duration kPatience = absl::Minutes(10);

constexpr int64_t kMostInAnswer = int64_t{1} << 18;  // elements of an answer

}  // namespace

ShardedState::ShardedState(Session& session, const Gang& gang)
    : session_(session), gang_(gang), slices_(plan::SlicesInOrder(session.plan().buckets)) {}

absl::Status ShardedState::ReadOwn(size_t kind, int64_t first, absl::Span<float> to) {
  const plan::ElementRange wanted = {first, first + static_cast<int64_t>(to.size())};
  for (const plan::OwnedRun& run : session_.plan().owned) {
    if (plan::Common(run.elements, wanted) != wanted) continue;
    const plan::TensorId state = run.state[kind];
    if (state == plan::kNone) break;
    return session_.ReadNow(state, to.data(), to.size() * sizeof(float),
                            (first - run.elements.first) * sizeof(float));
  }
  return WithFault(Fault::kInternal, absl::InternalError(absl::StrCat(
                                         "rank ", gang_.rank(), " has no state ", kind,
                                         " of elements ", wanted.first, " to ", wanted.end)));
}

absl::Status ShardedState::Read(size_t kind, int64_t first, absl::Span<float> to) {
  const plan::ElementRange wanted = {first, first + static_cast<int64_t>(to.size())};
  auto slice =
      std::upper_bound(slices_.begin(), slices_.end(), first,
                       [](int64_t at, const plan::RankSlice& s) { return at < s.elements.end; });
  for (int64_t at = first; at < wanted.end;) {
    TY_CHECK(slice != slices_.end(), "element ", at, " is in no slice");
    const int64_t n = std::min({slice->elements.end, wanted.end, at + kMostInAnswer}) - at;
    const absl::Span<float> part = to.subspan(at - first, n);
    if (slice->rank == gang_.rank()) {
      TY_RETURN_IF_ERROR(ReadOwn(kind, at, part));
    } else {
      const Request request{.kind = static_cast<int64_t>(kind), .first = at, .n = n};
      const auto owner = static_cast<int>(slice->rank);
      const Transfer ask{.peer = owner, .send = Sent(absl::MakeSpan(&request, 1))};
      const Transfer answer{.peer = owner, .receive = Received(part)};
      TY_RETURN_IF_ERROR(ExchangeSoon({&ask, 1}));
      TY_RETURN_IF_ERROR(ExchangeSoon({&answer, 1}));
    }
    at += n;
    if (at == slice->elements.end) ++slice;
  }
  return absl::OkStatus();
}

absl::Status ShardedState::End() {
  const Request end;
  std::vector<Transfer> to_all;
  for (int rank = 1; rank < gang_.size(); ++rank) {
    to_all.push_back({.peer = rank, .send = Sent(absl::MakeSpan(&end, 1))});
  }
  return ExchangeSoon(to_all);
}

absl::Status ShardedState::ExchangeSoon(absl::Span<const Transfer> transfers) {
  gang_.communicator().SetPatience(kPatience);
  const absl::Status exchanged = gang_.communicator().Exchange(transfers);
  gang_.communicator().SetPatience(absl::InfiniteDuration());
  return WithFault(Fault::kGang, exchanged);
}

absl::Status ShardedState::Serve() {
  std::vector<float> answer;
  for (;;) {
    Request request;
    const Transfer asked{.peer = 0, .receive = Received(absl::MakeSpan(&request, 1))};
    TY_RETURN_IF_ERROR(WithFault(Fault::kGang, gang_.communicator().Exchange({&asked, 1})));
    if (request.kind == Request::kEnd) return absl::OkStatus();
    const auto kinds = static_cast<int64_t>(session_.plan().optimizer_state_names.size());
    if (request.kind < 0 || request.kind >= kinds || request.n < 1 || request.n > kMostInAnswer) {
      return WithFault(Fault::kGang,
                       absl::InternalError(absl::StrCat("rank 0 asks for ", request.n,
                                                        " elements of state ", request.kind)));
    }
    answer.resize(request.n);
    TY_RETURN_IF_ERROR(ReadOwn(request.kind, request.first, absl::MakeSpan(answer)));
    const Transfer sent{.peer = 0, .send = Sent(absl::MakeSpan(answer))};
    TY_RETURN_IF_ERROR(WithFault(Fault::kGang, gang_.communicator().Exchange({&sent, 1})));
  }
}

namespace {

// The part of `elements` that is of `placed`, as bytes from the start of what a checkpoint stores.
struct StoredBytes {
  int64_t offset = 0, bytes = 0;
};

StoredBytes PartOf(const plan::PlacedTensor& placed, const plan::ElementRange& elements) {
  const plan::ElementRange stored = {placed.elements.first,
                                     placed.elements.first + placed.stored.elements()};
  const plan::ElementRange common = plan::Common(stored, elements);
  constexpr int64_t kSize = sizeof(float);
  return {.offset = (common.first - stored.first) * kSize, .bytes = common.size() * kSize};
}

}  // namespace

Snapshot::ReadState StateOf(const Checkpoint& checkpoint, const plan::Plan& plan) {
  return [&checkpoint, &plan, placed = plan::PlacedTensors(plan, plan.gradients.size())](
             size_t kind, int64_t first, absl::Span<float> to) -> absl::Status {
    const plan::ElementRange wanted = {first, first + static_cast<int64_t>(to.size())};
    for (const plan::PlacedTensor& p : placed) {
      const StoredBytes part = PartOf(p, wanted);
      if (part.bytes == 0) continue;
      TY_ASSIGN_OR_RETURN(
          const weights::TensorEntry entry,
          checkpoint.optimizer.Find(OptimizerPrefix(plan, kind) + p.stored.name, p.stored.dims));
      const int64_t at = std::max<int64_t>(0, p.elements.first - first);
      TY_RETURN_IF_ERROR(checkpoint.optimizer.Read(entry, part.offset, part.bytes, to.data() + at));
    }
    return absl::OkStatus();
  };
}

absl::Status RestoreShare(const Checkpoint& checkpoint, Session& session) {
  const plan::Plan& plan = session.plan();
  const std::vector<plan::PlacedTensor> placed = plan::PlacedTensors(plan, plan.gradients.size());
  const Snapshot::ReadState read = StateOf(checkpoint, plan);
  std::vector<float> values;
  for (const plan::OwnedRun& run : plan.owned) {
    for (size_t kind = 0; kind < run.state.size(); ++kind) {
      if (run.state[kind] == plan::kNone) continue;
      for (int64_t at = run.elements.first; at < run.elements.end; at += kMostInAnswer) {
        // What pads a tensor is no part of a checkpoint, and zero.
        values.assign(std::min(kMostInAnswer, run.elements.end - at), 0);
        TY_RETURN_IF_ERROR(read(kind, at, absl::MakeSpan(values)));
        session.Write(run.state[kind], values.data(), values.size() * sizeof(float),
                      (at - run.elements.first) * sizeof(float));
        TY_RETURN_IF_ERROR(session.Synchronize());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
