#pragma once

// What a user could change of a job, for advice: only what a submission would accept. Pure.

#include <functional>
#include <string>

#include "storage/records/job.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {

// Whether a job of this spec would be accepted, as far as that depends on neither data nor nodes:
// what SubmitJob asks first. Empty: everything is.
using AcceptsSpec = std::function<bool(const v1::JobSpec&)>;

class SpecChanges {
 public:
  // Of a job whose spec cannot be read nothing is known, and everything is accepted.
  SpecChanges(const JobRecord& job, AcceptsSpec accepts);

  // The most slots up to `most` that it may have, with the logical ranks that it has; 0: none.
  int MostSlots(int most) const;
  // Whether it may have so many slots only if max_slots is set with min_slots.
  bool NeedsMaxSlots(int slots) const;
  int logical_ranks() const;  // of a server of before that did not say, its slots

  bool MayHaveSmallerMicroBatch() const;
  bool MayRecompute() const;  // more than it does
  bool MayRollBack() const;   // and does not
  bool MayHaveAnyDevice() const;

  // "a smaller training.micro_batch_size or training.recompute needs less memory"; "" if it may
  // have neither.
  std::string WhatNeedsLessMemory() const;

 private:
  bool MayHaveSlots(int min_slots, int max_slots) const;
  // Whether the spec is accepted once `change` has changed it.
  template <typename Change>
  bool Accepts(const Change& change) const;

  AcceptsSpec accepts_;
  v1::JobSpec spec_;
  bool known_ = false;
  int min_slots_ = 1;
  int max_slots_ = 1;
  int slot_step_ = 1;
};

}  // namespace trainyard
