// Runs on archives of JPEG files: the position is exact, the number of threads does not matter, and
// what cannot be read is counted and named.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/fault.h"
#include "executor/engine/session.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/reference/image.h"
#include "tests/unit/data/images/encoders.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/late_device.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ImageRunTest : public ::testing::Test {
 protected:
  // 30 samples, the last six held out; every record of `damaged` is no JPEG any more.
  std::string Archive(int damaged) const {
    std::string archive = data::SampleArchive(30);
    for (size_t at = 0; damaged > 0; --damaged, ++at) {
      at = archive.find("\xff\xd8\xff", at);
      archive.replace(at, 3, "bad");
    }
    const std::string path = folder_.path() + "/images.tar";
    std::ofstream(path, std::ios::binary) << archive;
    return path;
  }

  v1::JobSpec Spec(const std::string& archive) const {
    v1::JobSpec spec;
    spec.mutable_model()->mutable_convnet()->add_stages()->set_channels(4);
    v1::WebDatasetData& data = *spec.mutable_data()->mutable_webdataset();
    data.add_train(archive);
    data.set_validation_fraction(0.2);
    data.mutable_transform()->set_size(16);
    spec.mutable_training()->set_steps(9);  // three epochs
    spec.mutable_training()->set_batch_size(8);
    spec.mutable_training()->set_micro_batch_size(4);
    spec.mutable_optimizer()->mutable_adamw();
    return spec;
  }

  // 30 samples, of which the held-out ones are no JPEG.
  std::string ArchiveWithoutHeldOut() const {
    std::string archive = data::SampleArchive(30);
    size_t at = 0;
    for (int i = 0; i < 30; ++i, ++at) {
      at = archive.find("\xff\xd8\xff", at);
      if (i >= 24) archive.replace(at, 3, "bad");
    }
    const std::string path = folder_.path() + "/images.tar";
    std::ofstream(path, std::ios::binary) << archive;
    return path;
  }

  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }

  TempFolder folder_;
};

TEST_F(ImageRunTest, ResumesAtTheExactSample) {
  const v1::JobSpec spec = Spec(Archive(0));
  RecordingObserver straight;
  const auto whole = RunOnCpu(spec, Root("straight"), straight);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(straight.warnings, IsEmpty());
  RecordingObserver first, second;
  first.stop_at = 4;
  ASSERT_TRUE(RunOnCpu(spec, Root("cut"), first).ok());
  ASSERT_TRUE(
      RunOnCpu(spec, Root("cut"), second, RestorePoint{.uri = Root("cut/step-00000004")}).ok());
  std::vector<double> losses = first.TrainLosses();
  for (const double loss : second.TrainLosses()) losses.push_back(loss);
  EXPECT_EQ(losses, straight.TrainLosses());
  EXPECT_EQ(second.checkpoints.back().weights_sha256, straight.checkpoints.back().weights_sha256);
  EXPECT_EQ(second.metrics.back().values, straight.metrics.back().values);  // held out
}

TEST_F(ImageRunTest, HasTheSameBitsWithAnyNumberOfThreads) {
  v1::JobSpec spec = Spec(Archive(1));
  RecordingObserver one, many;
  spec.mutable_data()->set_threads(1);
  ASSERT_TRUE(RunOnCpu(spec, Root("one"), one).ok());
  spec.mutable_data()->set_threads(5);
  ASSERT_TRUE(RunOnCpu(spec, Root("many"), many).ok());
  EXPECT_EQ(one.TrainLosses(), many.TrainLosses());
  EXPECT_EQ(one.metrics.back().values, many.metrics.back().values);
}

// Bytes are copied to it while the threads of the loader fill others.
TEST_F(ImageRunTest, HasTheSameBitsOnADeviceThatComputesLate) {
  const v1::JobSpec spec = Spec(Archive(1));
  RecordingObserver at_once, late;
  ASSERT_TRUE(RunOnCpu(spec, Root("at once"), at_once).ok());
  LateDevice device(1);
  ASSERT_TRUE(RunOn(device, spec, Root("late"), late).ok());
  EXPECT_GT(device.most_left(), 0);
  EXPECT_EQ(at_once.TrainLosses(), late.TrainLosses());
  EXPECT_EQ(at_once.checkpoints.back().weights_sha256, late.checkpoints.back().weights_sha256);
}

TEST_F(ImageRunTest, CountsAndNamesWhatItCannotRead) {
  RecordingObserver observer;
  ASSERT_TRUE(RunOnCpu(Spec(Archive(2)), Root("run"), observer).ok());
  EXPECT_THAT(observer.warnings,
              testing::UnorderedElementsAre(HasSubstr("images.tar: 0000.jpg: begins with 'bad"),
                                            HasSubstr("images.tar: 0001.jpg: begins with 'bad"),
                                            "this attempt skipped 2 different images"));
  for (const auto& m : observer.metrics) {
    if (m.split == RunObserver::Split::kTrain) {
      EXPECT_GE(m.values.at("data_wait_ms"), 0);
      EXPECT_LE(m.values.at("data_wait_ms"), m.values.at("step_ms"));
    }
  }
}

TEST_F(ImageRunTest, RefusesWhatItCannotReadWhenAsked) {
  v1::JobSpec spec = Spec(Archive(1));
  spec.mutable_data()->mutable_webdataset()->set_bad_records(v1::REFUSE_BAD_RECORDS);
  RecordingObserver observer;
  const absl::Status status = RunOnCpu(spec, Root("run"), observer).status();
  EXPECT_EQ(FaultOf(status), Fault::kData);
  EXPECT_THAT(std::string(status.message()), HasSubstr("images.tar: 0000.jpg: begins with 'bad"));
}

// Removes a file once a step was reported.
class Removing : public RecordingObserver {
 public:
  Removing(std::string file, int64_t step) : file_(std::move(file)), step_(step) {}
  absl::Status OnMetrics(int64_t step, Split split,
                         const std::map<std::string, double>& values) override {
    if (step == step_) std::filesystem::remove(file_);
    return RecordingObserver::OnMetrics(step, split, values);
  }

 private:
  const std::string file_;
  const int64_t step_;
};

// What the model reads of a micro-batch of IDX images: crops by their places, and of each byte the
// fp32 that the formula gives.
TEST_F(ImageRunTest, OfIdxReachTheModelCroppedByTheirPlaces) {
  v1::JobSpec given = Spec("");
  *given.mutable_data() = SmallImages(folder_.path());
  v1::IdxData& idx = *given.mutable_data()->mutable_idx();
  idx.set_mean(0.286);
  idx.set_std(0.353);
  idx.set_crop_padding(3);
  idx.set_flip(true);
  const v1::JobSpec spec = plan::ResolveSpec(given).value();
  const auto dataset = data::OpenDataset(spec.data(), 0).value();
  const plan::Plan plan = plan::BuildPlan(spec, dataset->facts()).value();
  const auto device = kernels::OpenCpu(1).value();
  const auto session = Session::Open(*device, plan).value();
  const std::vector<plan::Op> first(plan.micro.begin(), plan.micro.begin() + 1);
  const kernels::Kernels normalize = session->Prepare(first).value();
  data::Loader loader(*dataset, {.seed = 3, .batch_size = 8, .samples = 8, .micro_batch = 4});
  const plan::TensorId images = std::get<plan::NormalizeImages>(first[0]).y;
  std::vector<float> found(plan.tensors[images].elements());
  int black = 0;
  for (int i = 0; i < 6; ++i) {
    const data::Loader::Batch batch = loader.Next().value();
    session->Upload({.input = plan.input, .ids = plan.ids, .inputs = batch.inputs});
    session->Launch(normalize);
    session->Read(images, found.data(), found.size() * sizeof(float));
    ASSERT_TRUE(session->Synchronize().ok());
    const auto* const bytes = static_cast<const uint8_t*>(batch.inputs);
    std::vector<int32_t> places(plan.tensors[plan.ids].elements());
    memcpy(places.data(), bytes + found.size(), places.size() * sizeof(int32_t));
    const plan::DataFacts& facts = dataset->facts();
    const reference::Vec crops =
        reference::CropImages(reference::Vec(bytes, bytes + found.size()), places, facts.height,
                              facts.width, facts.channels);
    for (size_t j = 0; j < found.size(); ++j) {
      ASSERT_EQ(found[j], static_cast<float>((crops[j] / 255.0 - idx.mean()) / idx.std()));
      black += crops[j] == 0;
    }
  }
  EXPECT_GT(black, 24 * 12);  // what pads them
}

// After the last step only the held-out split is read.
TEST_F(ImageRunTest, ADiskThatFailsIsNotTheUsersFaultAndAnotherAttemptIsMade) {
  for (const int64_t step : {1, 9}) {
    const std::string archive = Archive(0);
    Removing observer(archive, step);
    const absl::Status status =
        RunOnCpu(Spec(archive), Root(std::to_string(step)), observer).status();
    EXPECT_EQ(FaultOf(status), Fault::kStorage) << status;
    EXPECT_TRUE(Retryable(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("images.tar: No such file"));
  }
}

// No file can be opened at all, which has nothing to do with this one.
TEST_F(ImageRunTest, ADatasetThatCannotBeOpenedForWantOfDescriptorsIsTriedAgain) {
  const v1::JobSpec spec = Spec(Archive(0));
  RecordingObserver observer;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = RunOnCpu(spec, Root("r"), observer).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(FaultOf(status), Fault::kStorage) << status;
  EXPECT_TRUE(Retryable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Too many open files"));
}

// Resumed once the data are there again, the run makes the evaluation that it owes, and no step.
TEST_F(ImageRunTest, AnEvaluationThatFailsKeepsTheWeightsAndIsMadeWhenTheRunIsResumed) {
  v1::JobSpec spec = Spec(ArchiveWithoutHeldOut());
  spec.mutable_evaluation()->set_every_steps(9);
  spec.mutable_evaluation()->mutable_early_stopping();  // which needs what cannot be had
  RecordingObserver failed, resumed, never_failed;
  const absl::Status status = RunOnCpu(spec, Root("r"), failed).status();
  EXPECT_EQ(FaultOf(status), Fault::kData) << status;
  EXPECT_FALSE(Retryable(status));
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(HasSubstr("evaluation after step 9: found no row that counts in the 6 "
                               "held-out samples"),
                     HasSubstr("the weights of step 9 are kept: once what is wrong is mended, ")));
  ASSERT_THAT(failed.checkpoints, SizeIs(1));
  EXPECT_FALSE(failed.last_is_final);

  Archive(0);
  const auto result =
      RunOnCpu(spec, Root("r"), resumed,
               RestorePoint{failed.checkpoints[0].uri, failed.checkpoints[0].manifest_sha256});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(resumed.TrainLosses(), IsEmpty());
  EXPECT_THAT(resumed.Evaluations(), SizeIs(1));
  EXPECT_TRUE(resumed.last_is_final);
  ASSERT_TRUE(RunOnCpu(spec, Root("n"), never_failed).ok());
  EXPECT_EQ(resumed.Evaluations(), never_failed.Evaluations());
  EXPECT_EQ(resumed.checkpoints.back().weights_sha256,
            never_failed.checkpoints.back().weights_sha256);
}

TEST_F(ImageRunTest, AHeldOutSplitOfWhichNothingCanBeReadIsAWarning) {
  RecordingObserver observer;
  const auto result = RunOnCpu(Spec(ArchiveWithoutHeldOut()), Root("r"), observer);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(observer.last_is_final);
  EXPECT_THAT(observer.warnings, testing::Contains(HasSubstr("not evaluated after step 9: found no "
                                                             "row that counts in the 6 held-out "
                                                             "samples")));
}

// Found after the first step, not after the last.
TEST_F(ImageRunTest, HeldOutDataAreTriedAfterTheFirstStep) {
  v1::JobSpec spec = Spec(ArchiveWithoutHeldOut());
  spec.mutable_data()->mutable_webdataset()->set_bad_records(v1::REFUSE_BAD_RECORDS);
  spec.mutable_evaluation()->set_at_end(true);
  spec.mutable_training()->set_log_every(1);
  RecordingObserver observer;
  const absl::Status status = RunOnCpu(spec, Root("r"), observer).status();
  EXPECT_EQ(FaultOf(status), Fault::kData) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("held-out data, tried after the first step: "));
  EXPECT_THAT(observer.TrainLosses(), SizeIs(1));
}

}  // namespace
}  // namespace trainyard::engine
