#include "server/scheduler/spec_changes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/plan/spec/layout_change.h"

namespace trainyard {
namespace {

// Numbers of slots that are tried until one is accepted.
constexpr int kMostTried = 128;

}  // namespace

SpecChanges::SpecChanges(const JobRecord& job, AcceptsSpec accepts)
    : accepts_(std::move(accepts)),
      min_slots_(std::max(1, job.min_slots)),
      max_slots_(std::max(min_slots_, job.max_slots)),
      slot_step_(std::max(1, job.slot_step)) {
  absl::StatusOr<v1::JobSpec> spec = plan::SpecInLayout(job.spec, job.layout);
  known_ = !job.spec.empty() && spec.ok();
  if (known_) spec_ = *std::move(spec);
}

template <typename Change>
bool SpecChanges::Accepts(const Change& change) const {
  if (!known_ || !accepts_) return true;
  v1::JobSpec changed = spec_;
  // A resize may have changed them since.
  changed.mutable_resources()->set_min_slots(min_slots_);
  changed.mutable_resources()->set_max_slots(max_slots_);
  change(changed);
  return accepts_(changed);
}

int SpecChanges::logical_ranks() const {
  return known_ && spec_.parallel().has_logical_ranks() ? spec_.parallel().logical_ranks()
                                                        : min_slots_;
}

bool SpecChanges::MayHaveSlots(int min_slots, int max_slots) const {
  return Accepts([&](v1::JobSpec& spec) {
    spec.mutable_resources()->set_min_slots(min_slots);
    spec.mutable_resources()->set_max_slots(max_slots);
    spec.mutable_parallel()->set_logical_ranks(logical_ranks());
  });
}

int SpecChanges::MostSlots(int most) const {
  const int first = most / slot_step_ * slot_step_;
  for (int slots = first; slots > 0 && slots > first - kMostTried * slot_step_;
       slots -= slot_step_) {
    if (MayHaveSlots(slots, max_slots_) || MayHaveSlots(slots, slots)) return slots;
  }
  return 0;
}

bool SpecChanges::NeedsMaxSlots(int slots) const { return !MayHaveSlots(slots, max_slots_); }

// One sample, if not half as many.
bool SpecChanges::MayHaveSmallerMicroBatch() const {
  const int size = spec_.training().micro_batch_size();
  if (!known_) return true;
  if (size < 2) return false;
  const auto may = [&](int smaller) {
    return Accepts(
        [&](v1::JobSpec& spec) { spec.mutable_training()->set_micro_batch_size(smaller); });
  };
  return (size % 2 == 0 && may(size / 2)) || may(1);
}

bool SpecChanges::MayRecompute() const {
  return Accepts([](v1::JobSpec& spec) {
    spec.mutable_training()->mutable_recompute()->Clear();
    spec.mutable_training()->mutable_recompute()->set_activation_bytes(1);
  });
}

bool SpecChanges::MayRollBack() const {
  if (spec_.training().on_non_finite() == v1::Training::ROLL_BACK) return false;
  return Accepts([](v1::JobSpec& spec) {
    spec.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
  });
}

bool SpecChanges::MayHaveAnyDevice() const {
  return Accepts([](v1::JobSpec& spec) { spec.mutable_resources()->clear_device(); });
}

std::string SpecChanges::WhatNeedsLessMemory() const {
  const bool smaller = MayHaveSmallerMicroBatch(), recompute = MayRecompute();
  if (!smaller && !recompute) return "";
  return absl::StrCat(smaller ? "a smaller training.micro_batch_size" : "",
                      smaller && recompute ? " or " : "", recompute ? "training.recompute" : "",
                      " needs less memory");
}

}  // namespace trainyard
