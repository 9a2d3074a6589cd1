// Clicks from a known law. With w, x, a, b of variance 1, drawn once per feature or value:
//   logit = -1 + sum_j w_j x_j / sqrt(D) + sum_t a_t(id_t) / sqrt(C)
//              + 0.7 sum_p b(id_2p) . b(id_2p+1) / sqrt(2 P)        over the P pairs of neighbours
// so that a model must learn weights, values and products of values. Everything is a counter-based
// draw: nothing is held in memory.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "executor/data/clicks/auc.h"
#include "executor/data/clicks/click_samples.h"
#include "executor/data/clicks/click_sources.h"
#include "kernels/random.h"

namespace trainyard::data {

namespace {

// Streams of the counter-based generator, keyed by the seed of the data.
constexpr uint32_t kTrainStream = 0xC11C0001;
constexpr uint32_t kValidationStream = 0xC11C0002;
constexpr uint32_t kWeightStream = 0xC11C0003;  // of the dense features
constexpr uint32_t kValueStream = 0xC11C0004;   // of the values of categorical features

// In (-sqrt 3, sqrt 3): variance 1.
double Centred(uint32_t bits) {
  return ((static_cast<double>(bits) + 0.5) * 0x1p-31 - 1) * std::numbers::sqrt3;
}

// Words of the stream of one sample.
class SampleWords {
 public:
  SampleWords(uint64_t seed, uint32_t stream, int64_t sample)
      : seed_(seed), stream_(stream), sample_(static_cast<uint64_t>(sample)) {}

  uint32_t Next() {
    if (used_ % 4 == 0) {
      words_ = kernels::Philox4x32(seed_, static_cast<uint32_t>(sample_),
                                   static_cast<uint32_t>(sample_ >> 32), used_ / 4, stream_);
    }
    return words_.v[used_++ % 4];
  }

 private:
  const uint64_t seed_;
  const uint32_t stream_;
  const uint64_t sample_;
  uint32_t used_ = 0;
  kernels::Random4 words_{};
};

class GeneratedClicks : public ClickSamples {
 public:
  explicit GeneratedClicks(const v1::ClicksData& clicks)
      : ClickSamples(ClicksFacts(clicks)), seed_(clicks.seed()) {
    for (int64_t j = 0; j < facts_.dense; ++j) {
      weights_.push_back(
          Centred(kernels::Philox4x32(seed_, static_cast<uint32_t>(j), 0, 0, kWeightStream).v[0]));
    }
  }

  int64_t bytes() const override { return static_cast<int64_t>(weights_.size() * sizeof(double)); }

  std::optional<double> BestAuc(int64_t samples) const override {
    absl::MutexLock lock(&mu_);
    if (best_of_ != samples) best_ = DrawBestAuc(samples);
    best_of_ = samples;
    return best_;
  }

 protected:
  bool Read(Split split, int64_t sample, float* dense, int32_t* ids) const override {
    return Draw(split, sample, dense, ids).second;
  }

 private:
  std::optional<double> DrawBestAuc(int64_t samples) const {
    std::vector<float> dense(facts_.dense);
    std::vector<int32_t> ids(facts_.categorical);
    std::vector<Scored> scored;
    scored.reserve(static_cast<size_t>(samples));
    for (int64_t i = 0; i < samples; ++i) {
      const auto [logit, click] = Draw(Split::kValidation, i, dense.data(), ids.data());
      scored.push_back({.score = static_cast<float>(logit), .click = click});
    }
    return Auc(scored);
  }

  // The true logit and what came of it.
  std::pair<double, bool> Draw(Split split, int64_t sample, float* dense, int32_t* ids) const {
    SampleWords draws(seed_, split == Split::kTrain ? kTrainStream : kValidationStream, sample);
    double linear = 0;
    for (int64_t j = 0; j < facts_.dense; ++j) {
      dense[j] = static_cast<float>(Centred(draws.Next()));
      linear += weights_[j] * dense[j];
    }
    double values = 0, products = 0, left[2] = {};
    for (int64_t t = 0; t < facts_.categorical; ++t) {
      // The square makes small values common and large ones rare.
      const double u = static_cast<double>(draws.Next()) * 0x1p-32;
      ids[t] = static_cast<int32_t>(u * u * static_cast<double>(facts_.buckets));
      const kernels::Random4 of_value = kernels::Philox4x32(
          seed_, static_cast<uint32_t>(ids[t]), static_cast<uint32_t>(t), 0, kValueStream);
      values += Centred(of_value.v[0]);
      const double latent[2] = {Centred(of_value.v[1]), Centred(of_value.v[2])};
      if (t % 2 == 1) products += left[0] * latent[0] + left[1] * latent[1];
      left[0] = latent[0], left[1] = latent[1];
    }
    const double pairs = std::max<double>(1, static_cast<double>(facts_.categorical / 2));
    const double logit = -1 + linear / std::sqrt(static_cast<double>(facts_.dense)) +
                         values / std::sqrt(static_cast<double>(facts_.categorical)) +
                         0.7 * products / std::sqrt(2 * pairs);
    const double u = (static_cast<double>(draws.Next()) + 0.5) * 0x1p-32;
    return {logit, u * (1 + std::exp(-logit)) < 1};
  }

  const uint64_t seed_;
  std::vector<double> weights_;
  mutable absl::Mutex mu_;
  mutable int64_t best_of_ ABSL_GUARDED_BY(mu_) = 0;  // held-out samples; drawn for once
  mutable std::optional<double> best_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

plan::DataFacts ClicksFacts(const v1::ClicksData& clicks) {
  return {.kind = plan::DataFacts::Kind::kClicks,
          .dense = clicks.dense(),
          .categorical = clicks.categorical(),
          .buckets = clicks.categories(),
          .train_size = clicks.train_samples(),
          .validation_size = clicks.validation_samples()};
}

std::unique_ptr<Dataset> OpenClicks(const v1::ClicksData& clicks) {
  return std::make_unique<GeneratedClicks>(clicks);
}

}  // namespace trainyard::data
