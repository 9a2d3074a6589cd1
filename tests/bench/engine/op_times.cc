// Where a training step goes, op by op: op_times JOB.yaml [THREADS] [STEPS]

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "executor/data/dataset.h"
#include "executor/data/loader.h"
#include "executor/engine/session.h"
#include "executor/engine/trainer.h"
#include "executor/plan/cost.h"
#include "executor/plan/spec.h"
#include "proto/text/job_file.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

std::string KeyOf(const plan::Op& op) {
  const auto convolution = [&](const plan::ConvolutionShape& s) {
    return absl::StrFormat("%s %dx%d %d->%d on %dx%dx%d%s", plan::OpName(op), s.kernel_height,
                           s.kernel_width, s.in, s.out, s.batch, s.height, s.width,
                           s.stride > 1 ? absl::StrFormat(" by %d", s.stride) : "");
  };
  if (const auto* o = std::get_if<plan::ConvolutionForward>(&op)) return convolution(o->shape);
  if (const auto* o = std::get_if<plan::ConvolutionBackwardData>(&op)) return convolution(o->shape);
  if (const auto* o = std::get_if<plan::ConvolutionBackwardWeights>(&op)) {
    return convolution(o->shape);
  }
  const auto* matmul = std::get_if<plan::Matmul>(&op);
  if (matmul == nullptr) return plan::OpName(op);
  return absl::StrFormat("matmul %dx%dx%d%s%s%s", matmul->m, matmul->n, matmul->k,
                         matmul->transpose_a ? " ta" : "", matmul->transpose_b ? " tb" : "",
                         matmul->accumulate ? " +=" : "");
}

constexpr int kWarmUp = 3;  // steps that touch memory for the first time

struct Report {
  double best_ms = 0, median_ms = 0;
  int64_t peak_bytes = 0, planned_bytes = 0;  // resident after the steps; what the plan says
};

struct Cost {
  double best_us = 0, flops = 0;
  int count = 0;
};

// Runs each op many times over; the best time of each is what it costs on a quiet machine.
// `batch` is written anew before each round: later ops use its memory.
absl::Status TimeOps(Session& session, const data::Loader::Batch& batch,
                     const std::vector<plan::Op>& ops, int rounds,
                     std::map<std::string, Cost>& costs) {
  const plan::Plan& plan = session.plan();
  TY_ASSIGN_OR_RETURN(const kernels::Kernels program, session.Prepare(ops));
  std::vector<double> best(ops.size(), 1e30);
  for (int round = 0; round < rounds; ++round) {
    session.WriteInputs(plan.input, plan.ids, batch.inputs);
    session.Write(plan.target, batch.targets, plan.tensors[plan.target].bytes());
    for (size_t i = 0; i < ops.size(); ++i) {
      const absl::Time start = absl::Now();
      session.Launch({program[i]});
      TY_RETURN_IF_ERROR(session.Synchronize());
      best[i] = std::min(best[i], absl::ToDoubleMicroseconds(absl::Now() - start));
    }
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    Cost& cost = costs[KeyOf(ops[i])];
    cost.best_us += best[i];
    cost.flops += plan::Flops(plan.tensors, ops[i]);
    ++cost.count;
  }
  return absl::OkStatus();
}

// The table, then one JSON object on the last line.
void Print(const Report& report, const std::vector<std::pair<std::string, Cost>>& costs) {
  double sum = 0, products = 0, flops = 0;
  for (const auto& [name, cost] : costs) {
    sum += cost.best_us;
    if (!absl::StartsWith(name, "matmul") && !absl::StartsWith(name, "convolution")) continue;
    products += cost.best_us;
    flops += cost.flops;
  }
  std::cout << absl::StrFormat(
      "step: best %.2f ms, median %.2f ms; ops' best times sum to %.2f ms\n", report.best_ms,
      report.median_ms, sum / 1e3);
  for (const auto& [name, cost] : costs) {
    std::cout << absl::StrFormat("%8.3f ms %5.1f %% %6.0f GFLOP/s %4d x  %s\n", cost.best_us / 1e3,
                                 100 * cost.best_us / sum, cost.flops / cost.best_us / 1e3,
                                 cost.count, name);
  }
  std::cout << absl::StrFormat(
      R"({"step_ms": %.3f, "best_ms": %.3f, "ops_ms": %.3f, "product_ms": %.3f, )"
      R"("product_gflops": %.1f, "peak_bytes": %d, "planned_bytes": %d})"
      "\n",
      report.median_ms, report.best_ms, sum / 1e3, products / 1e3, flops / products / 1e3,
      report.peak_bytes, report.planned_bytes);
}

absl::Status Run(const std::string& job, int threads, int rounds) {
  TY_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(job));
  TY_ASSIGN_OR_RETURN(const v1::Job parsed, ParseJobFile(yaml, job));
  TY_ASSIGN_OR_RETURN(const v1::JobSpec spec, plan::ResolveSpec(parsed.spec()));
  TY_ASSIGN_OR_RETURN(const auto dataset,
                      data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())));
  TY_ASSIGN_OR_RETURN(const plan::Plan plan, plan::BuildPlan(spec, dataset->facts()));
  TY_ASSIGN_OR_RETURN(const auto device, kernels::OpenCpu(threads));
  TY_ASSIGN_OR_RETURN(const auto session, Session::Open(*device, plan));
  TY_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(*session, spec));
  TY_RETURN_IF_ERROR(trainer->Initialize(threads));
  data::Loader loader(*dataset, {.seed = 1,
                                 .batch_size = spec.training().batch_size(),
                                 .samples = spec.training().batch_size(),
                                 .micro_batch = plan.micro_batch});
  std::vector<double> steps_ms;
  for (int i = 0; i < rounds + kWarmUp; ++i) {
    const absl::Time start = absl::Now();
    TY_RETURN_IF_ERROR(trainer->Step([&] { return loader.Next(); }).status());
    if (i >= kWarmUp) steps_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  std::sort(steps_ms.begin(), steps_ms.end());
  Report report{.best_ms = steps_ms.front(), .median_ms = steps_ms[steps_ms.size() / 2]};
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  report.peak_bytes = usage.ru_maxrss * 1024;
  report.planned_bytes = plan.summary.bytes_per_slot();

  std::map<std::string, Cost> costs;
  TY_ASSIGN_OR_RETURN(const data::Loader::Batch batch, loader.Next());
  TY_RETURN_IF_ERROR(TimeOps(*session, batch, plan.begin, rounds, costs));
  TY_RETURN_IF_ERROR(TimeOps(*session, batch, plan.micro, rounds, costs));
  TY_RETURN_IF_ERROR(TimeOps(*session, batch, plan.norm, rounds, costs));
  TY_RETURN_IF_ERROR(TimeOps(*session, batch, plan.end, rounds, costs));
  std::vector<std::pair<std::string, Cost>> sorted(costs.begin(), costs.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.best_us > b.second.best_us; });
  Print(report, sorted);
  return absl::OkStatus();
}

}  // namespace
}  // namespace trainyard::engine

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: op_times JOB.yaml [THREADS] [STEPS]\n";
    return 64;
  }
  const absl::Status status =
      trainyard::engine::Run(argv[1], argc > 2 ? atoi(argv[2]) : 2, argc > 3 ? atoi(argv[3]) : 50);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
