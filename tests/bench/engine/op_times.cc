// Where a training step goes, op by op, and how near each comes to what the device can do:
//   op_times JOB.yaml [THREADS | cuda:I] [STEPS]
// With 0 STEPS: how long the first one takes from the start of the process, and nothing else. A GPU
// keeps what it measures in $TRAINYARD_CACHE; unset, it is measured anew in each process.

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/session.h"
#include "executor/engine/trainer.h"
#include "executor/plan/build.h"
#include "executor/plan/cost/cost.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/spec/spec.h"
#include "proto/text/job_file.h"
#include "storage/base/file.h"
#include "storage/base/status.h"
#include "tests/reference/element.h"

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

// Milliseconds since the start of the process, to 10 of them: field 22 of proc(5)'s stat, whose
// second field may hold anything and ends with the last parenthesis.
double MillisecondsOld() {
  std::ifstream file("/proc/self/stat");
  const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(std::min(stat.size(), stat.rfind(')'))), ' ');
  double ticks = 0;
  if (fields.size() <= 20 || !absl::SimpleAtod(fields[20], &ticks)) return 0;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec) -
         1e3 * ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Milliseconds from the start of the process until …
struct Start {
  double opened_ms = 0;       // the device was there
  double prepared_ms = 0;     // kernels were prepared, and measured
  double initialized_ms = 0;  // the weights were drawn
  double first_step_ms = 0;   // the first step was done
};

struct Report {
  double best_ms = 0, median_ms = 0;
  int64_t peak_bytes = 0, planned_bytes = 0;  // resident after the steps; what the plan says
};

struct Cost {
  double best_us = 0, flops = 0, bytes = 0;
  int count = 0;
};

// What the device was measured to do at most.
struct Rates {
  double flops = 0, bytes = 0;  // per second: of a large product, of a sum of two long vectors

  // Seconds that work of so many takes at least.
  double Least(const Cost& cost) const { return std::max(cost.flops / flops, cost.bytes / bytes); }
};

// Of its operands, each once. More than is touched of tables, of which an op reads some rows.
double BytesOf(const plan::Plan& plan, const plan::Op& op) {
  double bytes = 0;
  const auto count = [&](plan::TensorId id, plan::Access access) {
    const auto size = static_cast<double>(plan.tensors[id].bytes());
    bytes += access == plan::Access::kUpdate ? 2 * size : size;
  };
  plan::VisitOperands(op, count);
  return bytes;
}

// Launches of a kernel between two looks at the clock, by what one took: on a GPU a short one alone
// would be less than the way there and back.
int LaunchesAtOnce(bool asynchronous, double us) {
  constexpr double kLongEnoughUs = 200;
  return asynchronous ? static_cast<int>(std::clamp(kLongEnoughUs / us, 1.0, 20.0)) : 1;
}

// Microseconds of a launch.
template <typename Launch>
absl::StatusOr<double> TimeOf(int launches, const Launch& launch,
                              const std::function<absl::Status()>& wait) {
  TY_RETURN_IF_ERROR(wait());
  const absl::Time start = absl::Now();
  for (int i = 0; i < launches; ++i) launch();
  TY_RETURN_IF_ERROR(wait());
  return absl::ToDoubleMicroseconds(absl::Now() - start) / launches;
}

// Best of some tries on memory of its own, whose content `fill` writes.
template <typename Op>
absl::StatusOr<double> BestTime(kernels::Device& device, const Op& op,
                                const std::function<absl::Status(kernels::Stream&)>& fill) {
  constexpr int kTries = 10;
  TY_ASSIGN_OR_RETURN(const kernels::Kernel kernel, device.Prepare(op));
  const std::unique_ptr<kernels::Stream> stream = device.MakeStream();
  TY_ASSIGN_OR_RETURN(stream->scratch, device.Allocate(kernel.scratch_bytes));
  stream->scratch_bytes = kernel.scratch_bytes;
  if (kernel.tune) kernel.tune(*stream);
  TY_RETURN_IF_ERROR(fill(*stream));
  double best = 1e30;
  for (int i = 0; i < kTries; ++i) {
    const int launches = i == 0 ? 1 : LaunchesAtOnce(device.Asynchronous(), best);
    TY_ASSIGN_OR_RETURN(const double us, TimeOf(
                                             launches, [&] { kernel.launch(*stream); },
                                             [&] { return device.Synchronize(*stream); }));
    best = std::min(best, us);
  }
  device.Free(stream->scratch);
  return best;
}

// `n` numbers of [-1, 1). Zeros would do: arithmetic on them takes less power, and a GPU that is
// held back by its power does it faster.
absl::Status FillRandom(kernels::Device& device, kernels::Stream& stream, const kernels::Buffer& x,
                        int64_t n) {
  constexpr int64_t kDrawn = 4194301;  // a prime, so that rows of a matrix differ
  const size_t size = kernels::SizeOf(x.dtype);
  std::vector<char> drawn(kDrawn * size);
  std::minstd_rand engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < kDrawn; ++i) {
    const float value = uniform(engine);
    const uint16_t bits = x.dtype == kernels::DType::kF32 ? 0 : reference::ToBits(x.dtype, value);
    memcpy(&drawn[i * size], size == sizeof(value) ? static_cast<const void*>(&value) : &bits,
           size);
  }
  for (int64_t i = 0; i < n; i += kDrawn) {
    device.CopyIn(stream, static_cast<char*>(x.data) + i * size, drawn.data(),
                  std::min(kDrawn, n - i) * size);
  }
  return device.Synchronize(stream);
}

absl::StatusOr<Rates> MeasureRates(kernels::Device& device, kernels::DType type) {
  const int64_t side = device.Asynchronous() ? 8192 : 1536;
  const int64_t n = int64_t{device.Asynchronous() ? 64 : 16} << 20;
  const int64_t square = side * side;
  const size_t bytes = 3 * std::max(square, n) * sizeof(float);
  TY_ASSIGN_OR_RETURN(void* const memory, device.Allocate(bytes));
  // Operands a and b, and the result, each `n` numbers apart.
  const auto at = [&](int64_t place, kernels::DType of) {
    return kernels::Buffer{static_cast<char*>(memory) + place * sizeof(float), of};
  };
  const auto operands = [&](int64_t count, kernels::DType of) {
    return [&device, a = at(0, of), b = at(count, of), count](kernels::Stream& stream) {
      TY_RETURN_IF_ERROR(FillRandom(device, stream, a, count));
      return FillRandom(device, stream, b, count);
    };
  };
  TY_ASSIGN_OR_RETURN(const double product, BestTime(device,
                                                     kernels::Matmul{.a = at(0, type),
                                                                     .b = at(square, type),
                                                                     .c = at(2 * square, type),
                                                                     .m = side,
                                                                     .n = side,
                                                                     .k = side},
                                                     operands(square, type)));
  const kernels::DType f32 = kernels::DType::kF32;
  TY_ASSIGN_OR_RETURN(
      const double sum,
      BestTime(device, kernels::Add{.a = at(0, f32), .b = at(n, f32), .y = at(2 * n, f32), .n = n},
               operands(n, f32)));
  device.Free(memory);
  return Rates{.flops = 2e6 * static_cast<double>(side) * static_cast<double>(square) / product,
               .bytes = 12e6 * static_cast<double>(n) / sum};
}

// Runs each op many times over; the best time of each is what it costs on a quiet machine.
// `batch` is written anew before each round: later ops use its memory.
absl::Status TimeOps(Session& session, const data::Loader::Batch& batch,
                     const std::vector<plan::Op>& ops, int rounds,
                     std::map<std::string, Cost>& costs) {
  const plan::Plan& plan = session.plan();
  TY_ASSIGN_OR_RETURN(const kernels::Kernels program, session.Prepare(ops));
  std::vector<double> best(ops.size(), 1e30);
  for (int round = 0; round < rounds; ++round) {
    session.Upload({.input = plan.input,
                    .ids = plan.ids,
                    .target = plan.target,
                    .inputs = batch.inputs,
                    .targets = batch.targets});
    for (size_t i = 0; i < ops.size(); ++i) {
      const int launches = round == 0 ? 1 : LaunchesAtOnce(session.Asynchronous(), best[i]);
      TY_ASSIGN_OR_RETURN(const double us, TimeOf(
                                               launches, [&] { session.Launch(program[i]); },
                                               [&] { return session.Synchronize(); }));
      best[i] = std::min(best[i], us);
    }
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    Cost& cost = costs[KeyOf(ops[i])];
    cost.best_us += best[i];
    cost.flops += plan::Flops(ops[i]);
    cost.bytes += BytesOf(plan, ops[i]);
    ++cost.count;
  }
  return absl::OkStatus();
}

// What every JSON object ends with.
std::string Json(const Start& start) {
  return absl::StrFormat(
      R"("opened_ms": %.0f, "prepared_ms": %.0f, "initialized_ms": %.0f, "first_step_ms": %.0f})",
      start.opened_ms, start.prepared_ms, start.initialized_ms, start.first_step_ms);
}

// The table, then one JSON object on the last line.
void Print(const Report& report, const Start& start, const Rates& rates,
           const std::vector<std::pair<std::string, Cost>>& costs) {
  double sum = 0, products = 0, flops = 0, least = 0;
  for (const auto& [name, cost] : costs) {
    sum += cost.best_us;
    least += rates.Least(cost) * 1e6;
    if (!absl::StartsWith(name, "matmul") && !absl::StartsWith(name, "convolution")) continue;
    products += cost.best_us;
    flops += cost.flops;
  }
  std::cout << absl::StrFormat(
      "step: best %.2f ms, median %.2f ms; ops' best times sum to %.2f ms, %.2f ms at the measured "
      "rates of %.0f GFLOP/s and %.0f GB/s\n",
      report.best_ms, report.median_ms, sum / 1e3, least / 1e3, rates.flops / 1e9,
      rates.bytes / 1e9);
  for (const auto& [name, cost] : costs) {
    std::cout << absl::StrFormat(
        "%8.3f ms %5.1f %% %6.0f GFLOP/s %5.0f GB/s %4.0f %% of what can be %4d x  %s\n",
        cost.best_us / 1e3, 100 * cost.best_us / sum, cost.flops / cost.best_us / 1e3,
        cost.bytes / cost.best_us / 1e3, 1e8 * rates.Least(cost) / cost.best_us, cost.count, name);
  }
  std::cout << absl::StrFormat(
      R"({"step_ms": %.3f, "best_ms": %.3f, "ops_ms": %.3f, "product_ms": %.3f, )"
      R"("product_gflops": %.1f, "roofline": %.3f, "gflops_at_most": %.0f, "gb_at_most": %.0f, )"
      R"("peak_bytes": %d, "planned_bytes": %d, %s)"
      "\n",
      report.median_ms, report.best_ms, sum / 1e3, products / 1e3, flops / products / 1e3,
      least / sum, rates.flops / 1e9, rates.bytes / 1e9, report.peak_bytes, report.planned_bytes,
      Json(start));
}

absl::StatusOr<std::unique_ptr<kernels::Device>> Open(const std::string& name, int threads) {
  int index = 0;
  if (!absl::StartsWith(name, "cuda:")) return kernels::OpenCpu(threads);
  if (!absl::SimpleAtoi(name.substr(5), &index)) {
    return absl::InvalidArgumentError(
        absl::StrCat("device '", name, "': expected cuda:0, cuda:1, …"));
  }
  const char* const cache = getenv("TRAINYARD_CACHE");
  return kernels::OpenCuda(index, cache == nullptr ? "" : cache);
}

kernels::DType ComputeTypeOf(const v1::JobSpec& spec) {
  const auto compute = spec.precision().compute();
  return compute == v1::Precision::BF16   ? kernels::DType::kBF16
         : compute == v1::Precision::FP16 ? kernels::DType::kF16
                                          : kernels::DType::kF32;
}

// Trains `steps` steps as executor/engine/steps.cc does; milliseconds of each. The first ends at
// `first_ms` since the start of the process.
absl::StatusOr<std::vector<double>> TimeSteps(Trainer& trainer, data::Loader& loader, int steps,
                                              double& first_ms) {
  std::vector<double> steps_ms;
  const BatchSource next = [&] { return loader.Next(); };
  for (int i = 0; i < steps; ++i) {
    const absl::Time start = absl::Now();
    if (trainer.on_their_way() == 0) TY_RETURN_IF_ERROR(trainer.Enqueue(next));
    if (trainer.CanGoAhead()) TY_RETURN_IF_ERROR(trainer.EnqueueAhead(next));
    TY_RETURN_IF_ERROR(trainer.Finish().status());
    steps_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
    if (i == 0) first_ms = MillisecondsOld();
  }
  return steps_ms;
}

absl::Status Run(const std::string& job, const std::string& on, int steps) {
  const bool cuda = absl::StartsWith(on, "cuda:");
  const int threads =
      std::max(1, cuda ? static_cast<int>(std::thread::hardware_concurrency()) : atoi(on.c_str()));
  TY_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(job));
  TY_ASSIGN_OR_RETURN(const v1::Job parsed, ParseJobFile(yaml, job));
  TY_ASSIGN_OR_RETURN(const v1::JobSpec spec, plan::ResolveSpec(parsed.spec()));
  TY_ASSIGN_OR_RETURN(const auto dataset,
                      data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())));
  Start start;
  TY_ASSIGN_OR_RETURN(const auto device, Open(on, threads));
  start.opened_ms = MillisecondsOld();
  TY_ASSIGN_OR_RETURN(const plan::Plan plan,
                      plan::BuildPlan(PlannedFor(*device, spec), dataset->facts()));
  TY_ASSIGN_OR_RETURN(const auto session, Session::Open(*device, plan));
  TY_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(*session, spec));
  start.prepared_ms = MillisecondsOld();
  TY_RETURN_IF_ERROR(trainer->Initialize());
  start.initialized_ms = MillisecondsOld();
  data::Loader loader(*dataset,
                      {.seed = 1,
                       .batch_size = spec.training().batch_size(),
                       .samples = spec.training().batch_size(),
                       .micro_batch = plan.micro_batch,
                       .in_use = BatchesInUse(*device),
                       .allocate = [&](size_t bytes) { return device->AllocateHost(bytes); }});
  const int measured = steps == 0 ? 1 : steps + kWarmUp;
  TY_ASSIGN_OR_RETURN(std::vector<double> steps_ms,
                      TimeSteps(*trainer, loader, measured, start.first_step_ms));
  TY_RETURN_IF_ERROR(session->Synchronize());
  if (steps == 0) {
    std::cout << "{" << Json(start) << "\n";
    return absl::OkStatus();
  }
  steps_ms.erase(steps_ms.begin(), steps_ms.begin() + kWarmUp);
  std::sort(steps_ms.begin(), steps_ms.end());
  Report report{.best_ms = steps_ms.front(), .median_ms = steps_ms[steps_ms.size() / 2]};
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  report.peak_bytes = device->Asynchronous() ? device->PeakMemoryBytes() : usage.ru_maxrss * 1024;
  report.planned_bytes = plan.summary.bytes_per_slot();

  constexpr int kGpuRounds = 5;  // of some launches each
  const int rounds = device->Asynchronous() ? std::min(steps, kGpuRounds) : steps;
  std::map<std::string, Cost> costs;
  TY_ASSIGN_OR_RETURN(const data::Loader::Batch batch, loader.Next());
  for (const auto* ops : {&plan.begin, &plan.zero, &plan.micro, &plan.norm, &plan.end}) {
    TY_RETURN_IF_ERROR(TimeOps(*session, batch, *ops, rounds, costs));
  }
  std::vector<std::pair<std::string, Cost>> sorted(costs.begin(), costs.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.best_us > b.second.best_us; });
  TY_ASSIGN_OR_RETURN(const Rates rates, MeasureRates(*device, ComputeTypeOf(spec)));
  Print(report, start, rates, sorted);
  return absl::OkStatus();
}

}  // namespace
}  // namespace trainyard::engine

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: op_times JOB.yaml [THREADS | cuda:I] [STEPS]\n";
    return 64;
  }
  const int steps = argc > 3 ? std::max(0, atoi(argv[3])) : 50;
  const absl::Status status = trainyard::engine::Run(argv[1], argc > 2 ? argv[2] : "2", steps);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
