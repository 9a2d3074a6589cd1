#include "executor/plan/spec/checks.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr char kAt[] = "spec.schedule.";
constexpr int kMostMilestones = 1024;

bool Falls(v1::Schedule::Shape shape) {
  return shape != v1::Schedule::CONSTANT && shape != v1::Schedule::STEP;
}

absl::Status CheckShape(const std::string& field, v1::Schedule::Shape shape) {
  return CheckChoice(field, shape,
                     "shape; use CONSTANT, LINEAR, COSINE, STEP, POLYNOMIAL, "
                     "WARMUP_STABLE_DECAY or ONE_MINUS_SQRT");
}

// Fields that the shape does not read are refused: whoever sets them expects them to act.
absl::Status CheckNothingUnused(const v1::Schedule& s) {
  const struct {
    const char* field;
    bool given, used;
    const char* by;
  } fields[] = {
      {"min_learning_rate", s.min_learning_rate() != 0, Falls(s.shape()), "LINEAR or COSINE"},
      {"decay_steps", s.decay_steps() != 0, Falls(s.shape()), "LINEAR or COSINE"},
      {"milestones", s.milestones_size() > 0, s.shape() == v1::Schedule::STEP, "STEP"},
      {"gamma", s.has_gamma(), s.shape() == v1::Schedule::STEP, "STEP"},
      {"power", s.has_power(), s.shape() == v1::Schedule::POLYNOMIAL, "POLYNOMIAL"},
      {"decay_start", s.decay_start() != 0, s.shape() == v1::Schedule::WARMUP_STABLE_DECAY,
       "WARMUP_STABLE_DECAY"},
      {"decay", s.decay() != v1::Schedule::SHAPE_UNSPECIFIED,
       s.shape() == v1::Schedule::WARMUP_STABLE_DECAY, "WARMUP_STABLE_DECAY"},
  };
  for (const auto& f : fields) {
    if (f.used || !f.given) continue;
    return Invalid(absl::StrCat(kAt, f.field), "has no use with the shape ",
                   v1::Schedule::Shape_Name(s.shape()), "; use ", f.by, ", or leave it out");
  }
  return absl::OkStatus();
}

absl::Status ResolveStep(v1::Schedule& schedule) {
  if (schedule.milestones_size() == 0) {
    return Invalid(absl::StrCat(kAt, "milestones"), "there is none; STEP needs at least one");
  }
  if (schedule.milestones_size() > kMostMilestones) {
    return Invalid(absl::StrCat(kAt, "milestones"), schedule.milestones_size(), " are more than ",
                   kMostMilestones);
  }
  int64_t before = 0;
  for (int i = 0; i < schedule.milestones_size(); ++i) {
    const std::string field = absl::StrCat(kAt, "milestones[", i, "]");
    TY_RETURN_IF_ERROR(CheckAtLeast(field, schedule.milestones(i), 1));
    if (schedule.milestones(i) <= before) {
      return Invalid(field, schedule.milestones(i), " does not come after ", before);
    }
    before = schedule.milestones(i);
  }
  if (!schedule.has_gamma()) schedule.set_gamma(0.1);
  if (schedule.gamma() > 0 && schedule.gamma() <= 1) return absl::OkStatus();
  return Invalid(absl::StrCat(kAt, "gamma"), schedule.gamma(), " is not in (0, 1]");
}

absl::Status ResolveStableDecay(v1::Schedule& schedule) {
  if (schedule.decay_start() == 0) {
    return Invalid(absl::StrCat(kAt, "decay_start"),
                   "is missing; give the step from which the learning rate falls");
  }
  if (schedule.decay_start() < schedule.warmup_steps()) {
    return Invalid(absl::StrCat(kAt, "decay_start"), schedule.decay_start(), " lies within the ",
                   schedule.warmup_steps(), " steps of the warm-up");
  }
  switch (schedule.decay()) {
    case v1::Schedule::SHAPE_UNSPECIFIED:
      schedule.set_decay(v1::Schedule::LINEAR);
      return absl::OkStatus();
    case v1::Schedule::LINEAR:
    case v1::Schedule::COSINE:
    case v1::Schedule::ONE_MINUS_SQRT:
      return absl::OkStatus();
    default:
      return Invalid(absl::StrCat(kAt, "decay"), v1::Schedule::Shape_Name(schedule.decay()),
                     " is not how it can fall; use LINEAR, COSINE or ONE_MINUS_SQRT");
  }
}

}  // namespace

absl::Status ResolveSchedule(v1::Schedule& schedule, int64_t steps) {
  const std::string at = kAt;
  if (!schedule.has_learning_rate()) schedule.set_learning_rate(1e-3);
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "learning_rate", schedule.learning_rate()));
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "warmup_steps", schedule.warmup_steps(), 0));
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "decay_steps", schedule.decay_steps(), 0));
  TY_RETURN_IF_ERROR(CheckAtLeast(at + "decay_start", schedule.decay_start(), 0));
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "min_learning_rate", schedule.min_learning_rate()));
  TY_RETURN_IF_ERROR(CheckShape(at + "shape", schedule.shape()));
  TY_RETURN_IF_ERROR(CheckShape(at + "decay", schedule.decay()));
  if (schedule.shape() == v1::Schedule::SHAPE_UNSPECIFIED) {
    schedule.set_shape(v1::Schedule::CONSTANT);
  }
  TY_RETURN_IF_ERROR(CheckNothingUnused(schedule));
  if (schedule.shape() == v1::Schedule::STEP) return ResolveStep(schedule);
  if (schedule.shape() == v1::Schedule::WARMUP_STABLE_DECAY) {
    TY_RETURN_IF_ERROR(ResolveStableDecay(schedule));
  }
  if (schedule.shape() == v1::Schedule::POLYNOMIAL) {
    if (!schedule.has_power()) schedule.set_power(1);
    TY_RETURN_IF_ERROR(CheckPositive(at + "power", schedule.power()));
  }
  if (schedule.min_learning_rate() > schedule.learning_rate()) {
    return Invalid(at + "min_learning_rate", schedule.min_learning_rate(),
                   " is above learning_rate ", schedule.learning_rate());
  }
  return steps > 0 ? CheckScheduleFits(schedule, steps) : absl::OkStatus();
}

absl::Status CheckScheduleFits(const v1::Schedule& schedule, int64_t steps) {
  if (!Falls(schedule.shape())) return absl::OkStatus();
  const bool stable = schedule.shape() == v1::Schedule::WARMUP_STABLE_DECAY;
  const int64_t begin = stable ? schedule.decay_start() : schedule.warmup_steps();
  const int64_t end = schedule.decay_steps() > 0 ? schedule.decay_steps() : steps;
  if (begin < end) return absl::OkStatus();
  return Invalid(absl::StrCat(kAt, stable ? "decay_start" : "warmup_steps"), begin,
                 " leaves nothing of the ", end, " steps to decay over; make it smaller");
}

}  // namespace trainyard::plan
