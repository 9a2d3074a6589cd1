#include "executor/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/engine/fault.h"
#include "executor/engine/read_tensor.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "kernels/random.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr uint32_t kSampleStream =
    0x40000000;  // apart from the streams of a step and of the weights

// In [0, 1), 53 bits.
double Uniform(uint64_t seed, int64_t index) {
  const kernels::Random4 r = kernels::StepRandom(seed, kSampleStream, index, 0, 0);
  return static_cast<double>((uint64_t{r.v[0]} << 32 | r.v[1]) >> 11) * 0x1p-53;
}

}  // namespace

int32_t PickToken(const std::vector<float>& logits, const SampleOptions& options, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options.temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);
  size_t n = order.size();
  if (options.top_k > 0) n = std::min(n, static_cast<size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + n, order.end(), likelier);
  std::vector<double> up_to(n);  // running sums of the weights
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    sum +=
        std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / options.temperature);
    up_to[i] = sum;
  }
  if (options.top_p < 1) {
    const auto last = std::lower_bound(up_to.begin(), up_to.end(), options.top_p * sum);
    sum = *last;
    up_to.resize(last - up_to.begin() + 1);
  }
  const size_t i = std::upper_bound(up_to.begin(), up_to.end(), uniform * sum) - up_to.begin();
  return order[std::min(i, up_to.size() - 1)];
}

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Load(kernels::Device& device,
                                                       const Checkpoint& checkpoint) {
  const plan::Windowing windowing = plan::WindowingOf(checkpoint.config.spec.model());
  if (windowing.context == 0 || windowing.masked()) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.uri,
        ": only a model that predicts next tokens (gpt, llama, layers of tokens) can be sampled"));
  }
  TY_ASSIGN_OR_RETURN(plan::Plan plan,
                      plan::BuildInferencePlan(PlannedFor(device, checkpoint.config.spec),
                                               checkpoint.config.facts, 1));
  std::unique_ptr<Sampler> sampler(new Sampler(std::move(plan)));
  TY_ASSIGN_OR_RETURN(sampler->session_, Session::Open(device, sampler->plan_));
  TY_ASSIGN_OR_RETURN(kernels::Kernels program,
                      sampler->session_->Prepare(sampler->plan_.evaluate));
  sampler->session_->Tune(program);
  sampler->program_ = Program(std::move(program));
  for (const auto* ids : {&sampler->plan_.parameters, &sampler->plan_.buffers}) {
    for (const plan::TensorId id : *ids) {
      TY_RETURN_IF_ERROR(
          ReadTensor(checkpoint.model, "", sampler->plan_.tensors[id], *sampler->session_, id));
    }
  }
  TY_ASSIGN_OR_RETURN(const auto copy, sampler->session_->Prepare(sampler->plan_.copy));
  sampler->session_->Launch(copy);
  return sampler;
}

absl::StatusOr<std::vector<float>> Sampler::NextLogits(const std::vector<int32_t>& ids) {
  const int64_t context = plan_.rows_per_sample;
  const int64_t used = std::min<int64_t>(context, static_cast<int64_t>(ids.size()));
  // Attention is causal: what follows the last known token does not reach it. (In a list of layers
  // the user may have said otherwise; zeros are then what it sees there.)
  std::vector<int32_t> window(context, 0);
  std::copy(ids.end() - used, ids.end(), window.begin());
  const std::vector<int32_t> targets(context, -1);
  session_->Write(plan_.eval_input, window.data(), window.size() * sizeof(int32_t));
  session_->Write(plan_.eval_target, targets.data(), targets.size() * sizeof(int32_t));
  TY_RETURN_IF_ERROR(session_->Run(program_));
  const plan::Tensor& all = plan_.tensors[plan_.eval_logits];
  std::vector<float> logits(all.elements() / context);
  session_->Read(plan_.eval_logits, logits.data(), logits.size() * sizeof(float),
                 (used - 1) * all.stride_of_rows() * sizeof(float));
  TY_RETURN_IF_ERROR(session_->Synchronize());
  return logits;
}

absl::Status Sampler::Run(const std::vector<int32_t>& prompt, int64_t vocabulary,
                          const SampleOptions& options, const std::function<void(int32_t)>& token) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  std::vector<int32_t> ids = prompt;
  for (int64_t i = 0; i < options.tokens; ++i) {
    TY_ASSIGN_OR_RETURN(std::vector<float> logits, NextLogits(ids));
    if (vocabulary > 0 && vocabulary < static_cast<int64_t>(logits.size())) {
      logits.resize(vocabulary);
    }
    if (std::any_of(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); })) {
      return WithFault(Fault::kNumeric,
                       absl::FailedPreconditionError("the model's logits are not finite"));
    }
    ids.push_back(PickToken(logits, options, Uniform(options.seed, i)));
    token(ids.back());
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
