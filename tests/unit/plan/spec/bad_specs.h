#pragma once

// Tables of specs that are spoiled in one place, with the exact message that refuses each.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "executor/plan/spec/spec.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

struct BadSpec {
  const char* name;
  v1::JobSpec (*from)();
  std::function<void(v1::JobSpec&)> spoil;
  absl::StatusCode code;
  const char* message;
};

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kUnbuilt = absl::StatusCode::kUnimplemented;

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline v1::Gpt& GptOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_gpt(); }
inline v1::Llama& LlamaOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_llama(); }

// With evaluations for them to go by.
inline v1::EarlyStopping& StoppingOf(v1::JobSpec& s) {
  s.mutable_evaluation()->set_every_steps(2);
  return *s.mutable_evaluation()->mutable_early_stopping();
}
inline v1::BestCheckpoints& BestOf(v1::JobSpec& s) {
  s.mutable_evaluation()->set_every_steps(2);
  return *s.mutable_checkpoint()->mutable_best();
}

inline void ExpectRefused(const std::vector<BadSpec>& table) {
  for (const BadSpec& bad : table) {
    v1::JobSpec spec = bad.from();
    bad.spoil(spec);
    const absl::Status status = ResolveSpec(spec).status();
    EXPECT_EQ(status.code(), bad.code) << bad.name;
    EXPECT_EQ(status.message(), bad.message) << bad.name;
  }
}

}  // namespace trainyard::plan
