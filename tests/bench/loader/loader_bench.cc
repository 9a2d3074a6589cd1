// What `run` measures of ours; prints one JSON object.
//
//   loader_bench rate SOURCE THREADS SECONDS   images per second that the loader delivers, in
//   micro-batches
//                                              of 32 as training sees them
//   loader_bench train SOURCE THREADS STEPS    the share of its time that a ResNet-18 on the CPU
//   waits
//
// SOURCE is a folder of classes or a .tar. Samples are 224x224, with everything at its default.

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/run.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int64_t kMicroBatch = 32;

v1::JobSpec SpecOf(const std::string& source, int64_t steps) {
  v1::JobSpec spec;
  v1::Data& data = *spec.mutable_data();
  if (absl::EndsWith(source, ".tar")) {
    data.mutable_webdataset()->add_train(source);
    data.mutable_webdataset()->mutable_transform()->set_size(224);
  } else {
    data.mutable_image_folder()->set_train(source);
    data.mutable_image_folder()->mutable_transform()->set_size(224);
  }
  spec.mutable_model()->mutable_resnet()->set_depth(18);
  spec.mutable_model()->mutable_resnet()->set_stem(v1::Resnet::IMAGENET);
  spec.mutable_training()->set_steps(steps);
  spec.mutable_training()->set_batch_size(16);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_evaluation()->set_at_end(false);
  return spec;
}

absl::Status Rate(const std::string& source, int threads, int64_t seconds) {
  TY_ASSIGN_OR_RETURN(const v1::JobSpec spec, plan::ResolveSpec(SpecOf(source, 1)));
  TY_ASSIGN_OR_RETURN(const auto dataset, data::OpenDataset(spec.data(), 0));
  data::Loader loader(*dataset, {.seed = 1,
                                 .batch_size = kMicroBatch,
                                 .samples = kMicroBatch,
                                 .micro_batch = kMicroBatch,
                                 .threads = threads});
  int64_t images = 0;
  absl::Time start = absl::Now();
  absl::Time end = absl::InfiniteFuture();
  for (int64_t batch = 0; absl::Now() < end; ++batch) {
    TY_RETURN_IF_ERROR(loader.Next().status());
    images += kMicroBatch;
    if (batch == 8) {  // the ring is under way, memory is taken
      start = absl::Now();
      end = start + absl::Seconds(seconds);
      images = 0;
    }
  }
  std::cout << absl::StrFormat(
      "{\"images_per_second\": %.1f}\n",
      static_cast<double>(images) / absl::ToDoubleSeconds(absl::Now() - start));
  return absl::OkStatus();
}

// Adds up what the steps after the first report.
class Waits : public engine::RunObserver {
 public:
  absl::Status OnStarted(const v1::JobSpec&, const plan::Plan&) override {
    return absl::OkStatus();
  }
  absl::Status OnRestored(int64_t, const std::string&, const Arithmetic&) override {
    return absl::OkStatus();
  }
  absl::Status OnMetrics(int64_t step, Split,
                         const std::map<std::string, double>& values) override {
    if (step == 1) return absl::OkStatus();
    step_ms += values.at("step_ms");
    wait_ms += values.at("data_wait_ms");
    return absl::OkStatus();
  }
  absl::Status OnNotice(const std::string&) override { return absl::OkStatus(); }
  absl::Status OnWarning(const std::string& message) override {
    std::cerr << message << std::endl;
    return absl::OkStatus();
  }
  absl::Status OnFinished(const engine::RunResult&) override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> OnCheckpoint(const engine::WrittenCheckpoint&, bool,
                                       const std::vector<std::string>&) override {
    return 0;
  }
  int64_t SettledReport() override { return 0; }
  void OnCheckpointFailed(int64_t, const absl::Status& status) override {
    std::cerr << status << std::endl;
  }

  double step_ms = 0, wait_ms = 0;
};

absl::Status Train(const std::string& source, int threads, int64_t steps) {
  TY_ASSIGN_OR_RETURN(const auto device, kernels::OpenCpu(threads));
  engine::RunRequest request;
  request.spec = SpecOf(source, steps);
  request.checkpoint_root = source + "-checkpoints";
  request.threads = threads;
  Waits waits;
  const std::atomic<bool> stop{false};
  TY_RETURN_IF_ERROR(engine::Run(*device, request, waits, stop).status());
  std::cout << absl::StrFormat("{\"data_wait_share\": %.5f, \"step_ms\": %.1f}\n",
                               waits.wait_ms / waits.step_ms,
                               waits.step_ms / static_cast<double>(steps - 1));
  return absl::OkStatus();
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  int threads = 0;
  int64_t amount = 0;
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc != 5 || (mode != "rate" && mode != "train") || !absl::SimpleAtoi(argv[3], &threads) ||
      !absl::SimpleAtoi(argv[4], &amount) || threads < 1 || amount < 2) {
    std::cerr << "usage: loader_bench rate|train SOURCE THREADS SECONDS|STEPS (at least 2)\n";
    return 2;
  }
  const absl::Status status = mode == "rate" ? trainyard::Rate(argv[2], threads, amount)
                                             : trainyard::Train(argv[2], threads, amount);
  if (status.ok()) return 0;
  std::cerr << status << std::endl;
  return 1;
}
