#include "executor/plan/spec/checks.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int kMostGroups = 256;

absl::Status ResolveSgd(v1::Sgd& sgd) {
  const std::string at = "spec.optimizer.sgd.";
  TY_RETURN_IF_ERROR(CheckFraction(at + "momentum", sgd.momentum()));
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "weight_decay", sgd.weight_decay()));
  if (sgd.nesterov() && sgd.momentum() == 0) {
    return Invalid(at + "nesterov", "needs momentum; try 0.9");
  }
  if (sgd.lazy_tables() && sgd.momentum() > 0) {
    return Invalid(at + "lazy_tables",
                   "leaves rows alone that a step does not look up, which momentum ",
                   sgd.momentum(), " would move; use momentum 0, or leave it out");
  }
  return absl::OkStatus();
}

// Betas, epsilon and weight decay of AdamW and LAMB; `at` ends with a dot.
template <typename Adam>
absl::Status ResolveAdam(const std::string& at, double epsilon, Adam& adam) {
  if (!adam.has_beta1()) adam.set_beta1(0.9);
  if (!adam.has_beta2()) adam.set_beta2(0.999);
  if (!adam.has_epsilon()) adam.set_epsilon(epsilon);
  if (!adam.has_weight_decay()) adam.set_weight_decay(0.01);
  TY_RETURN_IF_ERROR(CheckFraction(at + "beta1", adam.beta1()));
  TY_RETURN_IF_ERROR(CheckFraction(at + "beta2", adam.beta2()));
  TY_RETURN_IF_ERROR(CheckPositive(at + "epsilon", adam.epsilon()));
  if (static_cast<float>(adam.epsilon()) == 0) {
    return Invalid(at + "epsilon", adam.epsilon(), " is 0 in single precision; try ", epsilon);
  }
  return CheckNotNegative(at + "weight_decay", adam.weight_decay());
}

absl::Status ResolveMuon(v1::Muon& muon) {
  const std::string at = "spec.optimizer.muon.";
  if (!muon.has_momentum()) muon.set_momentum(0.95);
  if (!muon.has_weight_decay()) muon.set_weight_decay(0);
  if (!muon.has_nesterov()) muon.set_nesterov(true);
  if (!muon.has_iterations()) muon.set_iterations(5);
  TY_RETURN_IF_ERROR(CheckFraction(at + "momentum", muon.momentum()));
  TY_RETURN_IF_ERROR(CheckNotNegative(at + "weight_decay", muon.weight_decay()));
  TY_RETURN_IF_ERROR(CheckRange(at + "iterations", muon.iterations(), 1, 20));
  switch (muon.scale()) {
    case v1::Muon::SCALE_UNSPECIFIED:
      muon.set_scale(v1::Muon::ORIGINAL);
      break;
    case v1::Muon::ORIGINAL:
    case v1::Muon::MATCH_RMS_ADAMW:
      break;
    default:
      return Invalid(at + "scale", static_cast<int>(muon.scale()),
                     " is no scale; use ORIGINAL or MATCH_RMS_ADAMW");
  }
  if (!muon.has_adamw_learning_rate() && muon.scale() == v1::Muon::ORIGINAL) {
    muon.set_adamw_learning_rate(3e-4);
  }
  if (muon.has_adamw_learning_rate()) {
    TY_RETURN_IF_ERROR(CheckPositive(at + "adamw_learning_rate", muon.adamw_learning_rate()));
  }
  return ResolveAdam(at + "adamw.", 1e-8, *muon.mutable_adamw());
}

absl::Status CheckGroup(const std::string& at, const v1::ParameterGroup& group) {
  if (group.pattern().empty()) {
    return Invalid(at + ".pattern",
                   "is missing; names look like 'layers.0.weight', and * is any "
                   "run of characters");
  }
  if (group.pattern().size() > kLongestPattern) {
    return Invalid(at + ".pattern", group.pattern().size(), " bytes are more than ",
                   kLongestPattern);
  }
  if (group.frozen() && (group.has_learning_rate_scale() || group.has_weight_decay())) {
    return Invalid(at + (group.has_weight_decay() ? ".weight_decay" : ".learning_rate_scale"),
                   "has no use in a group that is frozen");
  }
  if (group.has_learning_rate_scale()) {
    const double scale = group.learning_rate_scale();
    if (scale == 0) return Invalid(at + ".learning_rate_scale", "is 0; use frozen: true");
    TY_RETURN_IF_ERROR(CheckPositive(at + ".learning_rate_scale", scale));
  }
  if (group.has_weight_decay()) {
    TY_RETURN_IF_ERROR(CheckNotNegative(at + ".weight_decay", group.weight_decay()));
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const v1::Optimizer& optimizer) {
  const std::string at = "spec.optimizer.groups";
  if (optimizer.groups_size() > kMostGroups) {
    return Invalid(at, optimizer.groups_size(), " groups are more than ", kMostGroups);
  }
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    TY_RETURN_IF_ERROR(CheckGroup(absl::StrCat(at, "[", i, "]"), optimizer.groups(i)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ResolveOptimizer(v1::Optimizer& optimizer) {
  if (optimizer.has_clip_norm()) {
    TY_RETURN_IF_ERROR(CheckPositive("spec.optimizer.clip_norm", optimizer.clip_norm()));
  }
  TY_RETURN_IF_ERROR(CheckGroups(optimizer));
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kSgd:
      return ResolveSgd(*optimizer.mutable_sgd());
    case v1::Optimizer::kAdamw:
      return ResolveAdam("spec.optimizer.adamw.", 1e-8, *optimizer.mutable_adamw());
    case v1::Optimizer::kLamb:
      return ResolveAdam("spec.optimizer.lamb.", 1e-6, *optimizer.mutable_lamb());
    case v1::Optimizer::kMuon:
      return ResolveMuon(*optimizer.mutable_muon());
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return Invalid("spec.optimizer", "there is none; set sgd, adamw, lamb or muon");
}

absl::Status CheckOptimizerFitsSchedule(const v1::Optimizer& optimizer,
                                        const v1::Schedule& schedule) {
  if (optimizer.muon().has_adamw_learning_rate() && schedule.learning_rate() == 0) {
    return Invalid("spec.schedule.learning_rate",
                   "is 0; the rest follows that of muon's matrices in proportion: try 0.02");
  }
  return absl::OkStatus();
}

}  // namespace trainyard::plan
