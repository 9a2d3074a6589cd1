#include "executor/engine/parameter_shares.h"

#include <algorithm>

#include "executor/plan/passes/shard_gradients.h"
#include "executor/plan/passes/shard_parameters.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSize = sizeof(float);

plan::ElementRange After(const plan::ElementRange& range, int64_t begin) {
  return {range.first - begin, range.end - begin};
}

}  // namespace

int64_t FirstElementOf(const plan::Plan& plan, plan::TensorId table) {
  const plan::OwnedRun* const rows = plan.RowsOf(table);
  TY_CHECK(rows != nullptr, plan.tensors[table].name, " is not shared out");
  return plan.tables[rows - plan.owned_rows.data()].elements.first;
}

ParameterShares::ParameterShares(Session& session) : session_(session) {
  const plan::Plan& plan = session.plan();
  if (!plan.parameters_sharded) return;
  elements_ = plan::ElementsOfGradients(plan, plan.gradients.size());
  for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    gathered_.push_back(plan::GatheredRegionOf(plan, bucket));
    plan::Bucket slices = plan.buckets[bucket];
    const int64_t begin = slices.elements.first;
    slices.elements = After(slices.elements, begin);
    for (plan::ElementRange& slice : slices.slices) slice = After(slice, begin);
    slices_.push_back(std::move(slices));
  }
}

void ParameterShares::Keep(plan::TensorId id, int64_t first, int64_t n) {
  const plan::Plan& plan = session_.plan();
  const auto found = std::find(plan.parameters.begin(), plan.parameters.end(), id);
  const auto position = static_cast<size_t>(found - plan.parameters.begin());
  if (position >= elements_.size()) return;
  const int64_t begin = elements_[position].first;
  for (const plan::OwnedRun& run : plan.owned) {
    const plan::ElementRange kept = plan::Common(run.elements, {begin + first, begin + first + n});
    if (kept.size() == 0) continue;
    session_.Copy(plan.offsets[id] + (kept.first - begin) * kSize,
                  plan.offsets[run.weights] + (kept.first - run.elements.first) * kSize,
                  kept.size() * kSize);
  }
}

void ParameterShares::Keep(plan::TensorId id) {
  Keep(id, 0, session_.plan().tensors[id].elements());
}

void ParameterShares::WriteRows(plan::TensorId table, int64_t first,
                                absl::Span<const float> values) {
  const plan::Plan& plan = session_.plan();
  const plan::OwnedRun& rows = *plan.RowsOf(table);
  const int64_t begin = FirstElementOf(plan, table) + first;
  const plan::ElementRange kept =
      plan::Common(rows.elements, {begin, begin + static_cast<int64_t>(values.size())});
  if (kept.size() == 0) return;
  session_.Write(rows.weights, values.data() + (kept.first - begin), kept.size() * kSize,
                 (kept.first - rows.elements.first) * kSize);
}

absl::Span<float> ParameterShares::Gathered(size_t bucket) const {
  const absl::Span<char> memory = session_.InMemory(gathered_[bucket]);
  return {reinterpret_cast<float*>(memory.data()), memory.size() / kSize};
}

void ParameterShares::Place(size_t bucket) const {
  const plan::Plan& plan = session_.plan();
  const plan::ElementRange& elements = plan.buckets[bucket].elements;
  for (const plan::OwnedRun& run : plan.owned) {
    if (plan::Common(run.elements, elements).size() == 0) continue;
    const plan::Region kept = {.offset = plan.offsets[run.weights],
                               .bytes = run.elements.size() * kSize};
    const absl::Span<char> from = session_.InMemory(kept);
    std::copy_n(reinterpret_cast<const float*>(from.data()), run.elements.size(),
                Gathered(bucket).data() + (run.elements.first - elements.first));
  }
}

}  // namespace trainyard::engine
