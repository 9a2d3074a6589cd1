#pragma once

// Small jobs on a small text, a folder for their checkpoints, and an observer that remembers.

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/data/order.h"
#include "executor/engine/run.h"
#include "storage/base/ids.h"

namespace trainyard::engine {

// A folder of its own that goes with it.
class TempFolder {
 public:
  TempFolder() { std::filesystem::create_directories(path_); }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ = "/tmp/trainyard-engine-test-" + RandomHex(6);
};

// 4,000 characters, the same every time, of which a model can learn something.
inline std::string WriteText(const std::string& folder) {
  const std::string path = folder + "/text.txt";
  std::ofstream out(path);
  for (int i = 0; i < 200; ++i) out << "line " << i * 7919 % 1000 << " of a text\n";
  return path;
}

// The same in documents of 3 to 30 characters, empty lines between them.
inline std::string WriteDocuments(const std::string& folder) {
  const std::string path = folder + "/documents.txt";
  std::ofstream out(path);
  for (int i = 0; i < 200; ++i) {
    out << std::string("a document of some characters").substr(0, 3 + i * 7919 % 27) << "\n\n";
  }
  return path;
}

// Bytes below `limit`.
inline void WriteIdx(const std::string& path, const std::vector<uint32_t>& dims, uint8_t limit) {
  std::ofstream out(path, std::ios::binary);
  uint32_t n = 1;
  const auto put = [&](uint32_t v) {
    for (int shift = 24; shift >= 0; shift -= 8) out.put(static_cast<char>(v >> shift));
  };
  put(0x800 + static_cast<uint32_t>(dims.size()));
  for (const uint32_t dim : dims) put(dim), n *= dim;
  for (uint32_t i = 0; i < n; ++i) out.put(static_cast<char>(i * 2654435761u >> 24) % limit);
}

// 60 images of 12x8 in 3 classes.
inline v1::Data SmallImages(const std::string& folder) {
  WriteIdx(folder + "/images", {60, 12, 8}, 127);
  WriteIdx(folder + "/labels", {60}, 3);
  v1::Data data;
  data.mutable_idx()->set_train_images(folder + "/images");
  data.mutable_idx()->set_train_labels(folder + "/labels");
  return data;
}

inline v1::JobSpec SmallGpt(const std::string& text, int64_t steps) {
  v1::JobSpec spec;
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(2);
  gpt.set_heads(2);
  gpt.set_width(16);
  gpt.set_context(8);
  gpt.set_dropout(0.1);
  spec.mutable_data()->mutable_text()->set_path(text);
  spec.mutable_training()->set_steps(steps);
  spec.mutable_training()->set_batch_size(8);
  spec.mutable_training()->set_micro_batch_size(4);
  spec.mutable_optimizer()->mutable_adamw();
  spec.mutable_optimizer()->set_clip_norm(1.0);
  spec.mutable_schedule()->set_learning_rate(1e-2);
  spec.mutable_schedule()->set_shape(v1::Schedule::COSINE);
  spec.mutable_schedule()->set_warmup_steps(2);
  return spec;
}

// A small recommender on 432 clicks and 48 held out, in batches of 8. One click, met first in step
// `step` (from 1), holds the largest numbers there are: they overflow in the first product.
inline v1::JobSpec PoisonedClicks(const std::string& folder, int64_t step) {
  constexpr int64_t kRows = 480, kColumns = 24, kBatch = 8;
  constexpr uint64_t kSeed = 5;
  const data::Order order(kSeed, kRows * 9 / 10, /*with_replacement=*/false);
  const int64_t bad = order.Sample((step - 1) * kBatch + 3);
  v1::JobSpec spec;
  v1::CsvData& csv = *spec.mutable_data()->mutable_csv();
  csv.set_train(folder + "/clicks.csv");
  csv.set_label("click");
  csv.add_categorical("city");
  csv.set_hash_buckets(16);
  std::ofstream out(csv.train());
  out << "click,city";
  for (int64_t j = 0; j < kColumns; ++j) {
    csv.add_dense(absl::StrCat("n", j));
    out << ",n" << j;
  }
  for (int64_t i = 0; i < kRows; ++i) {
    out << "\n" << i % 3 % 2 << ",c" << i % 7;
    for (int64_t j = 0; j < kColumns; ++j) {
      out << "," << (i == bad ? "3e38" : std::to_string((i * 37 + j) % 11 * 0.1));
    }
  }
  v1::Dlrm& dlrm = *spec.mutable_model()->mutable_dlrm();
  dlrm.set_embedding_width(4);
  dlrm.add_bottom(64);  // wide enough that some of its sums overflow
  dlrm.add_top(6);
  spec.mutable_training()->set_seed(kSeed);
  spec.mutable_training()->set_steps(24);
  spec.mutable_training()->set_batch_size(kBatch);
  spec.mutable_optimizer()->mutable_adamw();
  return spec;
}

// Keeps what it is told. `stop_at`: sets `stop` when that step was reported. Reports settle at once
// unless `settle` is false. Checkpoints arrive on another thread; they are read when the run is
// over.
class RecordingObserver : public RunObserver {
 public:
  struct Metrics {
    int64_t step = 0;
    Split split = Split::kTrain;
    std::map<std::string, double> values;
  };

  absl::Status OnStarted(const v1::JobSpec&, const plan::Plan& plan) override {
    order.push_back("started");
    total_steps = plan.total_steps;
    return absl::OkStatus();
  }
  absl::Status OnRestored(int64_t step, const std::string& uri,
                          const Arithmetic& computes_with) override {
    order.push_back("restored");
    restored_step = step;
    restored_uri = uri;
    arithmetic = computes_with;
    return absl::OkStatus();
  }
  absl::Status OnMetrics(int64_t step, Split split,
                         const std::map<std::string, double>& values) override {
    metrics.push_back({step, split, values});
    if (step == stop_at) stop = true;
    return absl::OkStatus();
  }
  absl::Status OnNotice(const std::string& message) override {
    notices.push_back(message);
    return absl::OkStatus();
  }
  absl::Status OnWarning(const std::string& message) override {
    warnings.push_back(message);
    return absl::OkStatus();
  }
  absl::Status OnFinished(const RunResult& result) override {
    order.push_back("finished");
    finished = result;
    return absl::OkStatus();
  }
  absl::Status OnLeftAlone(const absl::Status& why, int64_t /*told_after*/) override {
    left_alone = why;
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> OnCheckpoint(const WrittenCheckpoint& written, bool final,
                                       const std::vector<std::string>& removed_now) override {
    checkpoints.push_back(written);
    last_is_final = final;
    removed.insert(removed.end(), removed_now.begin(), removed_now.end());
    return static_cast<int64_t>(checkpoints.size());
  }
  bool MayWrite() override { return may_write; }
  void OnCheckpointWaits(int64_t step) override { waiting_step = step; }
  int64_t SettledReport() override { return settle ? std::numeric_limits<int64_t>::max() : 0; }
  void OnCheckpointFailed(int64_t step, const absl::Status& status) override {
    failed_steps.push_back(step);
    failures.push_back(std::string(status.message()));
  }

  // What each evaluation found.
  std::vector<std::map<std::string, double>> Evaluations() const {
    std::vector<std::map<std::string, double>> found;
    for (const Metrics& m : metrics) {
      if (m.split == Split::kValidation) found.push_back(m.values);
    }
    return found;
  }

  std::vector<double> TrainLosses() const {
    std::vector<double> losses;
    for (const Metrics& m : metrics) {
      if (m.split == Split::kTrain) losses.push_back(m.values.at("loss"));
    }
    return losses;
  }

  std::vector<std::string> order;
  int64_t total_steps = 0, restored_step = -1, stop_at = -1;
  std::string restored_uri;
  Arithmetic arithmetic;
  std::vector<Metrics> metrics;
  RunResult finished;       // OnFinished
  absl::Status left_alone;  // why; OK: it was not
  std::vector<std::string> notices, warnings, removed, failures;
  std::vector<WrittenCheckpoint> checkpoints;
  std::vector<int64_t> failed_steps;
  bool last_is_final = false;
  std::atomic<bool> settle{true}, may_write{true};
  std::atomic<int64_t> waiting_step{-1};  // of the checkpoint that waits for the right to write
  std::atomic<bool> stop{false};
};

inline RunRequest RequestFor(const v1::JobSpec& spec, const std::string& root,
                             std::optional<RestorePoint> restore, int threads,
                             Communicator* communicator) {
  RunRequest request;
  request.communicator = communicator;
  request.spec = spec;
  request.restore = std::move(restore);
  request.checkpoint_root = root;
  request.threads = threads;
  return request;
}

inline absl::StatusOr<RunResult> RunOn(kernels::Device& device, const v1::JobSpec& spec,
                                       const std::string& root, RecordingObserver& observer,
                                       std::optional<RestorePoint> restore = std::nullopt,
                                       int threads = 1, Communicator* communicator = nullptr) {
  const RunRequest request = RequestFor(spec, root, std::move(restore), threads, communicator);
  return Run(device, request, observer, observer.stop);
}

inline absl::StatusOr<RunResult> RunOnCpu(const v1::JobSpec& spec, const std::string& root,
                                          RecordingObserver& observer,
                                          std::optional<RestorePoint> restore = std::nullopt,
                                          int threads = 1) {
  const auto device = kernels::OpenCpu(threads);
  if (!device.ok()) return device.status();
  return RunOn(**device, spec, root, observer, std::move(restore), threads);
}

}  // namespace trainyard::engine
