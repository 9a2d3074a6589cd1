// Parameters that ranks step by shares travel while the next step reads others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "executor/data/dataset/dataset.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/steps.h"
#include "executor/plan/build.h"
#include "executor/plan/passes/bucket_order.h"
#include "executor/plan/passes/optimizer_step.h"
#include "executor/plan/spec/spec.h"
#include "google/protobuf/text_format.h"
#include "storage/base/status.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/in_threads.h"
#include "tests/unit/engine/parallel/gang.h"
#include "tests/unit/engine/wrapped_communicator.h"
#include "tests/unit/engine/wrapped_cpu.h"

namespace trainyard::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 4;
constexpr absl::Duration kBound = absl::Seconds(20);
// So long a kernel that waits for nobody has the time to read what has not arrived.
constexpr absl::Duration kTemptation = absl::Milliseconds(10);

// What one rank's kernels and its communicator know of a gather in progress.
class Arrivals {
 public:
  void Watch(const plan::Plan& plan, const char* arena) {
    plan_ = &plan;
    parameters_ = arena + plan.parameter_region.offset;
    order_ = plan::AwaitedOrder(plan);
    there_.assign(plan.buckets.size(), true);
    read_.assign(plan.buckets.size(), false);
  }

  // All of it is on its way again.
  void Expect() {
    absl::MutexLock lock(&mu_);
    there_.assign(there_.size(), false);
    read_.assign(read_.size(), false);
  }

  // The buckets of the parameter that begins at `data`.
  std::vector<size_t> BucketsOf(const void* data) const {
    std::vector<size_t> buckets;
    if (plan_ == nullptr) return buckets;
    const int64_t at = static_cast<const char*>(data) - parameters_;
    if (at < 0 || at >= plan_->parameter_region.bytes) return buckets;
    for (size_t i = 0; i < plan_->gradients.size(); ++i) {
      const int64_t begin = plan_->offsets[plan_->parameters[i]] - plan_->parameter_region.offset;
      const plan::ElementRange all = {begin / 4, begin / 4 + plan::RunLength(*plan_, i, i + 1)};
      if (at / 4 < all.first || at / 4 >= all.end) continue;
      for (size_t b = 0; b < plan_->buckets.size(); ++b) {
        if (plan::Common(plan_->buckets[b].elements, all).size() > 0) buckets.push_back(b);
      }
    }
    return buckets;
  }

  // A kernel reads them.
  void Read(const std::vector<size_t>& buckets) {
    absl::MutexLock lock(&mu_);
    for (const size_t b : buckets) {
      too_early_ += !there_[b];
      read_[b] = true;
    }
  }

  // Holds the bucket of which `parts` are exchanged back until a kernel has read the one before it.
  // Returns its number in order_, or -1: it is no bucket of parameters.
  int64_t Hold(absl::Span<const Transfer> parts) {
    const int64_t number = NumberOf(parts);
    if (number < 1 || order_[number].before_op == order_[number - 1].before_op) return number;
    absl::MutexLock lock(&mu_);
    if (there_[order_[number].bucket]) return number;  // nothing was expected
    const auto before_read = [this, number]() -> bool { return read_[order_[number - 1].bucket]; };
    if (mu_.AwaitWithTimeout(absl::Condition(&before_read), kBound)) {
      ++hidden_;
    } else {
      ADD_FAILURE() << "bucket " << order_[number].bucket << " was awaited too early";
    }
    const auto read = [this, number]() -> bool { return read_[order_[number].bucket]; };
    mu_.AwaitWithTimeout(absl::Condition(&read), kTemptation);
    return number;
  }

  void Arrived(int64_t number) {
    if (number < 0) return;
    absl::MutexLock lock(&mu_);
    there_[order_[number].bucket] = true;
  }

  int64_t hidden() const { return hidden_; }        // buckets that arrived after a kernel had run
  int64_t too_early() const { return too_early_; }  // reads of what was not there

 private:
  int64_t NumberOf(absl::Span<const Transfer> parts) const {
    if (plan_ == nullptr) return -1;
    for (const Transfer& part : parts) {
      const int64_t at = part.receive.data() - parameters_;
      if (part.receive.empty() || at < 0 || at >= plan_->parameter_region.bytes) continue;
      for (size_t i = 0; i < order_.size(); ++i) {
        const plan::ElementRange& elements = plan_->buckets[order_[i].bucket].elements;
        if (at / 4 >= elements.first && at / 4 < elements.end) return static_cast<int64_t>(i);
      }
    }
    return -1;
  }

  const plan::Plan* plan_ = nullptr;
  const char* parameters_ = nullptr;
  std::vector<plan::AwaitedBucket> order_;
  absl::Mutex mu_;
  std::vector<bool> there_, read_;  // by bucket, in this step
  int64_t hidden_ = 0, too_early_ = 0;
};

class WatchedCpu : public WrappedCpu {
 public:
  explicit WatchedCpu(Arrivals& arrivals) : arrivals_(arrivals) {}

 private:
  Launch Wrap(const std::vector<const void*>& operands, Launch launch) override {
    std::vector<size_t> buckets;
    for (const void* operand : operands) {
      for (const size_t b : arrivals_.BucketsOf(operand)) buckets.push_back(b);
    }
    if (buckets.empty()) return launch;
    return [this, buckets, launch = std::move(launch)](kernels::Stream& stream) {
      arrivals_.Read(buckets);
      launch(stream);
    };
  }

  Arrivals& arrivals_;
};

class HoldingCommunicator : public WrappedCommunicator {
 public:
  // Calls `at_bucket`, unless it is null, with the number of each bucket of parameters before that
  // is exchanged.
  HoldingCommunicator(Communicator& real, Arrivals& arrivals,
                      std::function<void(int64_t)> at_bucket = nullptr)
      : WrappedCommunicator(real), arrivals_(arrivals), at_bucket_(std::move(at_bucket)) {}

  absl::Status Exchange(absl::Span<const Transfer> transfers) override {
    const int64_t number = arrivals_.Hold(transfers);
    if (number >= 0 && at_bucket_) at_bucket_(number);
    const absl::Status exchanged = WrappedCommunicator::Exchange(transfers);
    if (exchanged.ok()) arrivals_.Arrived(number);
    return exchanged;
  }

 private:
  Arrivals& arrivals_;
  const std::function<void(int64_t)> at_bucket_;
};

// A GPT with some buckets, of two logical ranks; `more` is merged into it.
v1::JobSpec TwoRanks(const std::string& folder, int ranks, const std::string& more = "") {
  v1::JobSpec spec = SmallGpt(WriteText(folder), kSteps), other;
  spec.mutable_model()->mutable_gpt()->set_layers(3);
  spec.mutable_model()->mutable_gpt()->set_width(64);
  spec.mutable_parallel()->set_logical_ranks(2);
  spec.mutable_resources()->set_min_slots(ranks);
  spec.mutable_resources()->set_max_slots(ranks);
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(more, &other));
  spec.MergeFrom(other);
  return plan::ResolveSpec(spec).value();
}

// A rank of TwoRanks.
class Rank {
 public:
  Rank(kernels::Device& device, const v1::JobSpec& spec, const Gang& gang, Arrivals* arrivals)
      : spec_(spec),
        dataset_(data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value()),
        plan_(plan::BuildPlan(spec, dataset_->facts(), gang.rank()).value()),
        session_(Session::Open(device, plan_).value()) {
    if (arrivals != nullptr) arrivals->Watch(plan_, session_->InMemory({}).data());
    trainer_ = Trainer::Create(*session_, spec, gang).value();
    loader_ = std::make_unique<data::Loader>(*dataset_,
                                             LoaderOptions(device, spec, plan_, gang, 1, 0, {}));
    EXPECT_TRUE(trainer_->Initialize().ok());
  }

  const plan::Plan& plan() const { return plan_; }
  Trainer& trainer() { return *trainer_; }
  absl::StatusOr<StepResult> Step() {
    return trainer_->Step([this] { return loader_->Next(); });
  }
  std::string State() {
    const absl::Status awaited = trainer_->AwaitParameters();
    EXPECT_TRUE(awaited.ok()) << awaited;
    std::string state;
    for (const plan::Region& region : {plan_.parameter_region, plan_.ema_region}) {
      const absl::Span<char> bytes = session_->InMemory(region);
      state.append(bytes.data(), bytes.size());
    }
    return state;
  }

 private:
  const v1::JobSpec spec_;
  const std::unique_ptr<data::Dataset> dataset_;
  const plan::Plan plan_;
  const std::unique_ptr<Session> session_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<data::Loader> loader_;
};

std::string StateOfOneRank(const v1::JobSpec& spec) {
  const auto device = kernels::OpenCpu(1).value();
  Rank alone(*device, spec, Gang(), nullptr);
  for (int64_t step = 0; step < kSteps; ++step) EXPECT_TRUE(alone.Step()->finite);
  return alone.State();
}

TEST(HiddenGather, KernelsRunWhileLaterBucketsTravelAndReadNoneBeforeItIsThere) {
  const TempFolder folder;
  const std::string expected = StateOfOneRank(TwoRanks(folder.path(), 1));
  const v1::JobSpec spec = TwoRanks(folder.path(), 2);
  InThreads(2, [&](Communicator& communicator) {
    Arrivals arrivals;
    WatchedCpu device(arrivals);
    HoldingCommunicator holding(communicator, arrivals);
    Rank rank(device, spec, Gang(&holding), &arrivals);
    std::set<int64_t> places;
    for (const plan::AwaitedBucket& awaited : plan::AwaitedOrder(rank.plan())) {
      places.insert(awaited.before_op);
    }
    ASSERT_GE(places.size(), 4u) << "kernels wait at several places";
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step > 0) arrivals.Expect();
      const auto result = rank.Step();
      ASSERT_TRUE(result.ok() && result->finite) << result.status();
    }
    EXPECT_EQ(arrivals.too_early(), 0);
    EXPECT_EQ(arrivals.hidden(), (kSteps - 1) * (static_cast<int64_t>(places.size()) - 1));
    EXPECT_GT(rank.trainer().waited(), (kSteps - 1) * kTemptation) << "kernels waited";
    EXPECT_EQ(rank.State(), expected);
  });
}

// Whatever comes between two steps, and what is made of all parameters at once.
TEST(HiddenGather, GivesTheBitsOfOneRank) {
  const TempFolder folder;
  for (const char* more : {
           "",
           "training { ema_decay: 0.9 ema_warmup: true }",
           "precision { compute: BF16 }",
           "precision { compute: BF16 } training { micro_batch_size: 2 ema_decay: 0.9 }",
           "precision { compute: FP16 loss_scale { initial: 1048576 } } training { ema_decay: 0.9 "
           "}",
       }) {
    const v1::JobSpec one = TwoRanks(folder.path(), 1, more);
    const v1::JobSpec spec = TwoRanks(folder.path(), 2, more);
    std::vector<std::string> expected;
    {
      const auto device = kernels::OpenCpu(1).value();
      Rank alone(*device, one, Gang(), nullptr);
      for (int64_t step = 0; step < kSteps; ++step) {
        EXPECT_TRUE(alone.Step().ok());
        expected.push_back(alone.State());
      }
    }
    for (const bool looks : {false, true}) {
      InThreads(2, [&](Communicator& communicator) {
        const auto device = kernels::OpenCpu(1).value();
        Rank rank(*device, spec, Gang(&communicator), nullptr);
        for (int64_t step = 0; step < kSteps; ++step) {
          ASSERT_TRUE(rank.Step().ok());
          if (!looks) continue;
          EXPECT_EQ(rank.State(), expected[step]) << more << ", step " << step;
        }
        EXPECT_EQ(rank.State(), expected.back()) << more;
      });
    }
  }
}

// Rank 1 ends, or hangs, once the first bucket has arrived and a kernel of rank 0 waits for the
// second.
class LostInGather : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Signals, LostInGather, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) {
                           return std::string(info.param == SIGKILL ? "Killed" : "Stopped");
                         });

TEST_P(LostInGather, IsNamed) {
  const TempFolder folder;
  const v1::JobSpec spec = TwoRanks(folder.path(), 2);
  auto meetings = testing::TestRendezvous(2, testing::LinkKind::kMemory);
  for (Rendezvous& meeting : meetings) meeting.silence = absl::Seconds(2);
  const auto run = [&](Communicator& communicator, const testing::Gang::Say&) -> absl::Status {
    Arrivals arrivals;
    WatchedCpu device(arrivals);
    int64_t steps = 0;
    HoldingCommunicator holding(communicator, arrivals, [&](int64_t number) {
      if (communicator.rank() == 1 && steps == 2 && number == 1) kill(getpid(), GetParam());
    });
    const Gang gang(&holding);
    Rank rank(device, spec, gang, &arrivals);
    for (;; ++steps) {
      if (steps > 0) arrivals.Expect();
      const absl::Status stepped = rank.Step().status();
      if (stepped.ok()) continue;
      return Annotate(
          stepped,
          absl::StrCat("step ", steps, ", fault of the gang: ", FaultOf(stepped) == Fault::kGang));
    }
  };
  testing::Gang gang(meetings, testing::Meeting(run));
  EXPECT_THAT(gang.Result(0),
              AllOf(HasSubstr("UNAVAILABLE: step 2, fault of the gang: 1: rank 1 ("),
                    HasSubstr(GetParam() == SIGKILL ? "ended" : "silent")));
}

}  // namespace
}  // namespace trainyard::engine
