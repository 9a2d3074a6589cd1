#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "clients/cli/terminal.h"
#include "trainyard/v1/job_service.pb.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard::cli {

// Jobs, newest first as given, one per line; `wide` adds columns.
std::string RenderJobs(const Terminal& terminal, const std::vector<v1::Job>& jobs, bool wide,
                       absl::Time now);

// One job, a field per line.
std::string RenderJob(const Terminal& terminal, const v1::Job& job, absl::Time now);

// "2, each with 4 of the 8 logical ranks"; "" for a job of one logical rank.
std::string RanksText(const v1::JobSpec& spec);

// What a step of `job` costs, by its plan: parameters, FLOPs, bytes per slot by kind.
std::string RenderPlan(const Terminal& terminal, const v1::Job& job);

// The job on other numbers of slots, one per line, and what the server advises.
std::string RenderLayouts(const Terminal& terminal, const v1::PlanLayoutsResponse& plan);

}  // namespace trainyard::cli
