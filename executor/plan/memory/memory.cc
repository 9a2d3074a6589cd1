#include "executor/plan/memory/memory.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/ops/op.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

bool Shared(TensorKind kind) {
  return kind == TensorKind::kActivation || kind == TensorKind::kInput ||
         kind == TensorKind::kReceived;
}

// Tensors that share one place, one after the other: the output of an in-place op continues the
// live range of its input. Or tensors that lie side by side.
struct Group {
  std::vector<TensorId> members;
  bool side_by_side = false;
  int64_t bytes = 0;
  OpRange live;
  OpRange again = {};
  int64_t offset = 0;

  int64_t last() const { return again.empty() ? live.last : again.last; }
};

bool Meet(const OpRange& a, const OpRange& b) {
  return a.first <= b.last && b.first <= a.last && !a.empty() && !b.empty();
}

// Whether both are needed at the same time.
bool Meet(const Group& a, const Group& b) {
  return Meet(a.live, b.live) || Meet(a.live, b.again) || Meet(a.again, b.live) ||
         Meet(a.again, b.again);
}

std::vector<Group> GroupInPlace(const std::vector<Tensor>& tensors, const std::vector<Op>& ops,
                                const std::vector<LiveRange>& ranges) {
  std::vector<Group> groups;
  absl::flat_hash_map<TensorId, size_t> group_of;
  absl::flat_hash_map<TensorId, LiveRange> range_of;
  for (const LiveRange& range : ranges) range_of[range.tensor] = range;

  // Ops in order, so that a chain of in-place ops grows from its front.
  for (const LiveRange& range : ranges) {
    const Tensor& tensor = tensors[range.tensor];
    bool joined = false;
    if (range.first >= 0) {
      for (const auto& [in, out] : InPlacePairs(ops[range.first])) {
        if (out != range.tensor || !range_of.contains(in)) continue;
        if (tensors[in].kind != TensorKind::kActivation || range_of[in].last != range.first ||
            tensors[in].bytes() != tensor.bytes()) {
          continue;
        }
        const size_t g = group_of[in];
        if (groups[g].members.back() != in) continue;  // another output of the op took it
        groups[g].members.push_back(range.tensor);
        groups[g].live.last = range.last;
        group_of[range.tensor] = g;
        joined = true;
        break;
      }
    }
    if (joined) continue;
    group_of[range.tensor] = groups.size();
    groups.push_back({.members = {range.tensor},
                      .bytes = Align(tensor.bytes()),
                      .live = {range.first, range.last}});
  }
  return groups;
}

Group GroupOf(const TensorRun& run, const std::vector<Tensor>& tensors) {
  Group group{.members = run.tensors, .side_by_side = true, .live = run.live, .again = run.again};
  for (const TensorId id : run.tensors) group.bytes += BytesInRun(tensors[id]);
  return group;
}

std::vector<Group> GroupsOf(const std::vector<ReservedRange>& reserved) {
  std::vector<Group> groups;
  groups.reserve(reserved.size());
  for (const ReservedRange& r : reserved) {
    const int64_t offset = r.offset / kAlignment * kAlignment;
    groups.push_back(
        {.bytes = Align(r.offset + r.bytes) - offset, .live = {r.first, r.last}, .offset = offset});
  }
  return groups;
}

// The lowest offset where `group` meets none of `placed` (ordered by offset) that lives at the same
// time.
int64_t LowestGap(const Group& group, const std::vector<const Group*>& placed) {
  int64_t offset = 0;
  for (const Group* other : placed) {
    if (!Meet(*other, group)) continue;
    if (other->offset - offset >= group.bytes) break;
    offset = std::max(offset, other->offset + other->bytes);
  }
  return offset;
}

// Places `groups` one after the other; returns the end of the last.
int64_t Pack(const std::vector<ReservedRange>& reserved, std::vector<Group>& groups) {
  const auto lower = [](const Group* a, const Group* b) { return a->offset < b->offset; };
  const std::vector<Group> fixed = GroupsOf(reserved);
  std::vector<const Group*> placed;  // by offset
  for (const Group& group : fixed) placed.push_back(&group);
  std::stable_sort(placed.begin(), placed.end(), lower);
  int64_t end = 0;
  for (Group& group : groups) {
    group.offset = LowestGap(group, placed);
    end = std::max(end, group.offset + group.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &group, lower), &group);
  }
  return end;
}

}  // namespace

int64_t BytesInRun(const Tensor& tensor) {
  const int64_t wide = SizeOf(ElementType::kF32);
  return Align(tensor.elements() * wide) / wide * SizeOf(tensor.type);
}

std::vector<LiveRange> LiveRanges(const std::vector<Tensor>& tensors, const std::vector<Op>& ops,
                                  const std::vector<TensorId>& results) {
  std::vector<LiveRange> ranges;
  absl::flat_hash_map<TensorId, size_t> at;
  for (size_t i = 0; i < ops.size(); ++i) {
    Op op = ops[i];  // Visit hands out references
    const auto touch = [&](TensorId id, Access access) {
      if (!Shared(tensors[id].kind)) return;
      const bool input = tensors[id].kind == TensorKind::kInput;
      const bool received = tensors[id].kind == TensorKind::kReceived;
      const auto [found, is_new] = at.try_emplace(id, ranges.size());
      if (is_new) {
        TY_CHECK(input || received || access == Access::kWrite, tensors[id].name,
                 " is read before it is written");
        ranges.push_back({.tensor = id, .first = input ? -1 : static_cast<int64_t>(i)});
      }
      ranges[found->second].last = static_cast<int64_t>(i);
    };
    VisitOperands(op, touch);
  }
  for (const TensorId id : results) {
    const auto found = at.find(id);
    TY_CHECK(found != at.end(), tensors[id].name, " is a result that no op writes");
    ranges[found->second].last = static_cast<int64_t>(ops.size());
  }
  return ranges;
}

int64_t PackActivations(const std::vector<Tensor>& tensors, const std::vector<Op>& ops,
                        const std::vector<TensorId>& results, std::vector<int64_t>& offsets,
                        const std::vector<ReservedRange>& reserved,
                        const std::vector<TensorRun>& runs) {
  std::vector<Group> groups = GroupInPlace(tensors, ops, LiveRanges(tensors, ops, results));
  for (const TensorRun& run : runs) groups.push_back(GroupOf(run, tensors));
  const auto larger = [](const Group& a, const Group& b) { return a.bytes > b.bytes; };
  std::stable_sort(groups.begin(), groups.end(), larger);
  int64_t end = Pack(reserved, groups);

  std::vector<Group> others = groups;
  std::stable_sort(others.begin(), others.end(),
                   [](const Group& a, const Group& b) { return a.last() > b.last(); });
  if (const int64_t other = Pack(reserved, others); other < end) {
    end = other;
    groups = std::move(others);
  }
  for (const Group& group : groups) {
    int64_t offset = group.offset;
    for (const TensorId id : group.members) {
      offsets[id] = offset;
      if (group.side_by_side) offset += BytesInRun(tensors[id]);
    }
  }
  return end;
}

int64_t PlaceInOrder(const std::vector<Tensor>& tensors, const std::vector<TensorId>& ids,
                     int64_t offset, std::vector<int64_t>& offsets) {
  for (const TensorId id : ids) {
    offsets[id] = offset;
    offset += Align(tensors[id].bytes());
  }
  return offset;
}

}  // namespace trainyard::plan
