#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "clients/cli/terminal.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard::cli {

// Jobs, newest first as given, one per line; `wide` adds columns.
std::string RenderJobs(const Terminal& terminal, const std::vector<v1::Job>& jobs, bool wide,
                       absl::Time now);

// One job, a field per line.
std::string RenderJob(const Terminal& terminal, const v1::Job& job, absl::Time now);

// What a step costs: parameters, FLOPs, bytes per slot by kind.
std::string RenderPlan(const Terminal& terminal, const v1::PlanSummary& plan);

}  // namespace trainyard::cli
