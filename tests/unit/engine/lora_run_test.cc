// Whole runs of low-rank adaptation: what is trained, what a checkpoint holds, and what goes on
// from it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/checkpoint/adapter.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/tensor_view.h"
#include "executor/engine/evaluator.h"
#include "executor/engine/read_tensor.h"
#include "executor/engine/sampler.h"
#include "executor/engine/trainer.h"
#include "executor/plan/assembly.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Floats = std::vector<float>;

TEST(TensorView, AddsItsTermPieceByPieceInDoublePrecision) {
  constexpr int64_t kRank = 3;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{700, 900}, {1, 5}, {300'000, 2}}) {
    for (const bool in_out : {false, true}) {
      const auto fill = [](int64_t n, int64_t step) {
        Floats x(n);
        for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * step % 1009) / 97 - 5;
        return x;
      };
      const int64_t in = in_out ? rows : cols, out = in_out ? cols : rows;
      const Floats w = fill(rows * cols, 7), a = fill(kRank * in, 11), b = fill(out * kRank, 13);
      const TensorView view{
          .dims = {rows, cols},
          .bytes = {reinterpret_cast<const char*>(w.data()), w.size() * 4},
          .term = LowRankTerm{
              .a = a.data(), .b = b.data(), .rank = kRank, .in_out = in_out, .scale = 0.3}};
      std::string merged;
      int pieces = 0;
      ASSERT_TRUE(ForEachPiece(view, [&](absl::string_view bytes) {
                    merged.append(bytes.data(), bytes.size());
                    ++pieces;
                    return absl::OkStatus();
                  }).ok());
      ASSERT_EQ(merged.size(), w.size() * 4);
      EXPECT_EQ(pieces > 1, rows * cols > (1 << 18));
      const auto* const found = reinterpret_cast<const float*>(merged.data());
      for (int64_t i = 0; i < rows * cols; ++i) {
        const int64_t o = in_out ? i % cols : i / cols, from = in_out ? i / cols : i % cols;
        double sum = 0;
        for (int64_t r = 0; r < kRank; ++r) sum += double{b[o * kRank + r]} * a[r * in + from];
        ASSERT_EQ(found[i], static_cast<float>(w[i] + 0.3 * sum)) << i;
      }
    }
  }
}

TEST(TensorView, EndsWithTheFirstPieceThatIsNotTaken) {
  const TensorView view{.dims = {1}, .bytes = "four"};
  EXPECT_EQ(ForEachPiece(view, [](absl::string_view) { return absl::AbortedError("x"); }),
            absl::AbortedError("x"));
}

class LoraRunTest : public ::testing::Test {
 protected:
  std::string Root(const std::string& name) { return folder_.path() + "/" + name; }

  // Adapters of all linear layers of the blocks, with norms trained beside them.
  v1::JobSpec Gpt(int64_t steps) const {
    v1::JobSpec spec = SmallGpt(text_, steps);
    v1::Lora& lora = *spec.mutable_fine_tune()->mutable_lora();
    lora.set_rank(3);
    lora.set_alpha(5);
    lora.set_dropout(0.1);
    lora.add_also_train("transformer.ln_f.*");
    return spec;
  }

  // Of q and v alone, parts of one product.
  v1::JobSpec Llama(int64_t steps) const {
    v1::JobSpec spec = Gpt(steps);
    v1::Llama& llama = *spec.mutable_model()->mutable_llama();
    llama.set_layers(2);
    llama.set_heads(4);
    llama.set_kv_heads(2);
    llama.set_width(16);
    llama.set_context(8);
    v1::Lora& lora = *spec.mutable_fine_tune()->mutable_lora();
    lora.clear_also_train();
    lora.add_targets("*.q_proj.weight");
    lora.add_targets("*.v_proj.weight");
    return spec;
  }

  absl::StatusOr<Checkpoint> Open(const WrittenCheckpoint& written) {
    return Checkpoint::Open(*store_, written.uri, written.manifest_sha256);
  }

  static Floats ValuesOf(const weights::SafetensorsFile& file, const std::string& name) {
    const auto found = file.header().tensors.find(name);
    if (found == file.header().tensors.end()) {
      ADD_FAILURE() << name << " is missing";
      return {};
    }
    Floats values(found->second.bytes() / 4);
    EXPECT_TRUE(file.Read(found->second, 0, values.size() * 4, values.data()).ok());
    return values;
  }

  static std::vector<std::string> NamesOf(const weights::SafetensorsFile& file) {
    std::vector<std::string> names;
    for (const auto& [name, entry] : file.header().tensors) names.push_back(name);
    return names;
  }

  // W + scale B A of the weight `name` by hand; `a` and `b` are read from `file` after `prefix`.
  static Floats Merged(const Checkpoint& checkpoint, const std::string& name, bool in_out,
                       const weights::SafetensorsFile& file, const std::string& prefix) {
    const v1::Lora& lora = checkpoint.config.spec.fine_tune().lora();
    const std::string module = prefix + ModuleOf(name);
    Floats w = ValuesOf(*checkpoint.base, name);
    const Floats a = ValuesOf(file, module + ".lora_A.weight"),
                 b = ValuesOf(file, module + ".lora_B.weight");
    const int64_t rank = lora.rank();
    const auto in = static_cast<int64_t>(a.size()) / rank,
               out = static_cast<int64_t>(b.size()) / rank;
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        double sum = 0;
        for (int64_t r = 0; r < rank; ++r) sum += double{b[o * rank + r]} * a[r * in + i];
        float& at = w[in_out ? i * out + o : o * in + i];
        at = static_cast<float>(at + lora.alpha() / static_cast<double>(rank) * sum);
      }
    }
    return w;
  }

  TempFolder folder_;
  const std::string text_ = WriteText(folder_.path());
  const std::unique_ptr<ObjectStore> store_ = MakeFileStore();
};

// All but A, B and what is named keeps its bits, and B is no longer zero.
TEST_F(LoraRunTest, TrainsTheAdaptersAndWhatIsNamedAlone) {
  for (v1::JobSpec spec : {Gpt(6), Llama(6)}) {
    SCOPED_TRACE(spec.model().has_gpt() ? "gpt" : "llama");
    spec.mutable_checkpoint()->set_every_steps(1);
    spec.mutable_checkpoint()->set_keep(6);
    RecordingObserver seen;
    const auto done = RunOnCpu(spec, Root(spec.model().has_gpt() ? "gpt" : "llama"), seen);
    ASSERT_TRUE(done.ok()) << done.status();
    const auto first = Open(seen.checkpoints.front()), last = Open(seen.checkpoints.back());
    ASSERT_TRUE(first.ok() && last.ok()) << first.status() << last.status();
    const std::vector<std::string> adapted = NamesOf(*last->base);
    EXPECT_THAT(adapted, SizeIs(spec.model().has_gpt() ? 2 * 4 : 2 * 2));
    for (const std::string& name : NamesOf(first->model)) {
      const bool moves = absl::StartsWith(name, "transformer.ln_f.") ||
                         std::find(adapted.begin(), adapted.end(), name) != adapted.end();
      EXPECT_EQ(ValuesOf(first->model, name) != ValuesOf(last->model, name), moves) << name;
      EXPECT_FALSE(absl::StrContains(name, "lora")) << name;
    }
    for (const std::string& name : adapted) {
      EXPECT_EQ(ValuesOf(*first->base, name), ValuesOf(*last->base, name)) << name;
    }
    for (const std::string& name : NamesOf(*first->adapter)) {
      EXPECT_NE(ValuesOf(*first->adapter, name), ValuesOf(*last->adapter, name)) << name;
    }
    for (const std::string& name : NamesOf(last->optimizer)) {
      EXPECT_TRUE(absl::StrContains(name, ".lora_") || absl::StrContains(name, ".ln_f.")) << name;
    }
  }
}

TEST_F(LoraRunTest, MergedWeightsAreThoseOfBaseAndAdapterToTheLastBit) {
  for (v1::JobSpec spec : {Gpt(5), Llama(5)}) {
    const bool gpt = spec.model().has_gpt();
    spec.mutable_training()->set_ema_decay(0.7);
    RecordingObserver seen;
    ASSERT_TRUE(RunOnCpu(spec, Root(gpt ? "gpt" : "llama"), seen).ok());
    const auto checkpoint = Open(seen.checkpoints.back());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ASSERT_TRUE(checkpoint->ema.has_value());
    EXPECT_EQ(NamesOf(*checkpoint->ema), NamesOf(checkpoint->model));
    int adapted = 0;
    for (const std::string& name : NamesOf(*checkpoint->base)) {
      if (absl::StartsWith(name, "ema.")) continue;
      ++adapted;
      EXPECT_EQ(ValuesOf(checkpoint->model, name),
                Merged(*checkpoint, name, gpt, *checkpoint->adapter, kPeftPrefix))
          << name;
      EXPECT_EQ(ValuesOf(*checkpoint->ema, name),
                Merged(*checkpoint, name, gpt, *checkpoint->base, "ema."))
          << name;
      EXPECT_NE(ValuesOf(*checkpoint->ema, name), ValuesOf(checkpoint->model, name)) << name;
    }
    EXPECT_EQ(adapted, gpt ? 8 : 4);
  }
}

TEST_F(LoraRunTest, ResumesWithTheSameBitsInEveryPrecisionUnderEveryOptimizer) {
  using Optimizer = v1::Optimizer;
  const std::vector<std::pair<v1::Precision::Compute, std::function<void(Optimizer&)>>> cases = {
      {v1::Precision::FP32, [](Optimizer& o) { o.mutable_adamw(); }},
      {v1::Precision::FP32, [](Optimizer& o) { o.mutable_muon(); }},
      {v1::Precision::FP32, [](Optimizer& o) { o.mutable_lamb(); }},
      {v1::Precision::BF16, [](Optimizer& o) { o.mutable_sgd()->set_momentum(0.9); }},
      {v1::Precision::FP16, [](Optimizer& o) { o.mutable_adamw(); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    for (v1::JobSpec spec : {Gpt(9), Llama(9)}) {
      const std::string name = absl::StrCat("case-", i, spec.model().has_gpt() ? "-gpt" : "-llama");
      SCOPED_TRACE(name);
      spec.mutable_precision()->set_compute(cases[i].first);
      cases[i].second(*spec.mutable_optimizer());
      spec.mutable_training()->set_ema_decay(0.9);
      RecordingObserver straight, first, second;
      const auto done = RunOnCpu(spec, Root(name), straight);
      ASSERT_TRUE(done.ok()) << done.status();
      first.stop_at = 4;
      ASSERT_TRUE(RunOnCpu(spec, Root(name + "-cut"), first).ok());
      const auto resumed =
          RunOnCpu(spec, Root(name + "-cut"), second,
                   RestorePoint{first.checkpoints[0].uri, first.checkpoints[0].manifest_sha256},
                   /*threads=*/2);
      ASSERT_TRUE(resumed.ok()) << resumed.status();
      EXPECT_EQ(second.restored_step, 4);
      EXPECT_EQ(second.checkpoints.back().manifest_sha256,
                straight.checkpoints.back().manifest_sha256);
      std::vector<double> losses = first.TrainLosses();
      for (double loss : second.TrainLosses()) losses.push_back(loss);
      EXPECT_EQ(losses, straight.TrainLosses());
    }
  }
}

TEST_F(LoraRunTest, LearnsInEveryPrecisionAndRecomputingChangesNoBit) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
    v1::JobSpec spec = Llama(60);
    spec.mutable_fine_tune()->mutable_lora()->clear_targets();
    spec.mutable_fine_tune()->mutable_lora()->set_rank(8);
    spec.mutable_fine_tune()->mutable_lora()->set_alpha(64);
    spec.mutable_precision()->set_compute(compute);
    const std::string name = v1::Precision::Compute_Name(compute);
    RecordingObserver kept, again;
    ASSERT_TRUE(RunOnCpu(spec, Root(name), kept).ok());
    EXPECT_LT(kept.TrainLosses().back(), 0.97 * kept.TrainLosses().front());
    const v1::JobSpec resolved = *plan::ResolveSpec(spec);
    const auto dataset = data::OpenDataset(resolved.data(), plan::WindowingOf(resolved.model()));
    const auto least = plan::Assemble(resolved, (*dataset)->facts(), 1);
    ASSERT_TRUE(least.ok()) << least.status();
    spec.mutable_training()->mutable_recompute()->set_activation_bytes(
        least->summary.activation_bytes());
    const auto done = RunOnCpu(spec, Root(name + "-again"), again);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(again.TrainLosses(), kept.TrainLosses());
    EXPECT_EQ(again.checkpoints.back().weights_sha256, kept.checkpoints.back().weights_sha256);
  }
}

// What was evaluated unmerged is what the merged model gives, and the merged averages.
TEST_F(LoraRunTest, TheMergedModelHasTheLossThatWasReported) {
  for (v1::JobSpec spec : {Gpt(30), Llama(30)}) {
    for (const bool averaged : {false, true}) {
      if (averaged) spec.mutable_training()->set_ema_decay(0.8);
      const std::string name =
          absl::StrCat(spec.model().has_gpt() ? "gpt" : "llama", averaged ? "-ema" : "");
      SCOPED_TRACE(name);
      RecordingObserver seen;
      ASSERT_TRUE(RunOnCpu(spec, Root(name), seen).ok());
      const auto checkpoint = Open(seen.checkpoints.back());
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();

      v1::JobSpec plain = *plan::ResolveSpec(spec);
      plain.clear_fine_tune();
      plain.mutable_training()->clear_ema_decay();
      const auto dataset = data::OpenDataset(plain.data(), plan::WindowingOf(plain.model()));
      ASSERT_TRUE(dataset.ok()) << dataset.status();
      const auto plan = plan::BuildPlan(plain, (*dataset)->facts());
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto device = kernels::OpenCpu(1);
      const auto session = Session::Open(**device, *plan);
      ASSERT_TRUE(session.ok() && Trainer::Create(**session, plain).ok());
      for (const plan::TensorId id : plan->parameters) {
        const absl::Status read = ReadTensor(averaged ? *checkpoint->ema : checkpoint->model, "",
                                             plan->tensors[id], **session, id);
        ASSERT_TRUE(read.ok()) << read;
      }
      const auto merged = Evaluator(**session, **dataset, 1).Run(0);
      ASSERT_TRUE(merged.ok()) << merged.status();
      const double reported = checkpoint->metrics.at("loss");
      EXPECT_NEAR(merged->at("loss"), reported, 1e-5 * reported);
      EXPECT_LT(reported, seen.TrainLosses().front());
    }
  }
}

TEST_F(LoraRunTest, ACheckpointIsSampledFromItsMergedWeights) {
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(Gpt(5), Root("r"), seen).ok());
  const auto checkpoint = Open(seen.checkpoints.back());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto device = kernels::OpenCpu(1);
  const auto sampler = Sampler::Load(**device, *checkpoint);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  std::vector<int32_t> tokens;
  SampleOptions options;
  options.tokens = 12;
  ASSERT_TRUE((*sampler)->Run({1, 2}, 0, options, [&](int32_t t) { tokens.push_back(t); }).ok());
  EXPECT_THAT(tokens, SizeIs(12));
}

TEST_F(LoraRunTest, TheAdapterIsWhatPeftReads) {
  RecordingObserver gpt, llama;
  v1::JobSpec tied = Llama(3);
  tied.mutable_model()->mutable_llama()->set_tie_embeddings(true);
  tied.mutable_fine_tune()->mutable_lora()->add_also_train("model.embed_tokens.weight");
  ASSERT_TRUE(RunOnCpu(Gpt(3), Root("gpt"), gpt).ok());
  ASSERT_TRUE(RunOnCpu(tied, Root("llama"), llama).ok());
  const auto config = [&](const RecordingObserver& seen) {
    const auto text =
        store_->Get(absl::StrCat(seen.checkpoints.back().uri, "/", kAdapterConfigFile), 1 << 20);
    EXPECT_TRUE(text.ok()) << text.status();
    return nlohmann::json::parse(text.value_or("{}"));
  };
  const auto of_gpt = config(gpt), of_llama = config(llama);
  EXPECT_EQ(of_gpt["peft_type"], "LORA");
  EXPECT_EQ(of_gpt["task_type"], "CAUSAL_LM");
  EXPECT_EQ(of_gpt["r"], 3);
  EXPECT_EQ(of_gpt["lora_alpha"].dump(), "5");
  EXPECT_EQ(of_gpt["lora_dropout"], 0.1);
  EXPECT_EQ(of_gpt["fan_in_fan_out"], true);
  EXPECT_EQ(of_llama["fan_in_fan_out"], false);
  EXPECT_EQ(of_gpt["modules_to_save"], nlohmann::json({"transformer.ln_f"}));
  EXPECT_EQ(of_llama["modules_to_save"], nlohmann::json({"lm_head", "model.embed_tokens"}));
  EXPECT_THAT(of_llama["target_modules"],
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                          "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"));
  const auto adapter = Open(llama.checkpoints.back());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_THAT(
      NamesOf(*adapter->adapter),
      ElementsAre("base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight",
                  "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
                  "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
                  "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight",
                  "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight",
                  "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight",
                  "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight",
                  "base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight",
                  "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"));
  const auto norms = Open(gpt.checkpoints.back());
  ASSERT_TRUE(norms.ok()) << norms.status();
  EXPECT_EQ(ValuesOf(*norms->adapter, "base_model.model.transformer.ln_f.bias"),
            ValuesOf(norms->model, "transformer.ln_f.bias"));
}

// A damaged base is a damaged checkpoint: the run goes on from the one before, with the same end.
TEST_F(LoraRunTest, GoesOnFromAnOlderCheckpointWhenTheBaseIsDamaged) {
  v1::JobSpec spec = Gpt(9);
  spec.mutable_checkpoint()->set_every_steps(3);
  RecordingObserver straight, first, second;
  ASSERT_TRUE(RunOnCpu(spec, Root("straight"), straight).ok());
  first.stop_at = 6;
  ASSERT_TRUE(RunOnCpu(spec, Root("cut"), first).ok());
  const std::string base = Root("cut") + "/step-00000006/" + kBaseFile;
  ASSERT_TRUE(std::filesystem::exists(base));
  std::filesystem::resize_file(base, std::filesystem::file_size(base) - 1);
  const auto resumed = RunOnCpu(
      spec, Root("cut"), second,
      RestorePoint{first.checkpoints.back().uri, first.checkpoints.back().manifest_sha256});
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(second.restored_step, 3);
  EXPECT_THAT(second.warnings[0], HasSubstr(kBaseFile));
  EXPECT_EQ(second.checkpoints.back().manifest_sha256, straight.checkpoints.back().manifest_sha256);
}

TEST_F(LoraRunTest, AnotherAdaptationIsAnotherSpec) {
  v1::JobSpec spec = *plan::ResolveSpec(Gpt(6));
  const std::string digest = SpecDigest(spec);
  spec.mutable_fine_tune()->mutable_lora()->set_alpha(6);
  EXPECT_NE(SpecDigest(spec), digest);
  RecordingObserver first, second;
  first.stop_at = 2;
  ASSERT_TRUE(RunOnCpu(Gpt(6), Root("r"), first).ok());
  const auto other = RunOnCpu(spec, Root("r"), second, RestorePoint{first.checkpoints[0].uri, ""});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.status().message(), HasSubstr("fine_tune.lora.alpha: 5 -> 6"));
}

}  // namespace
}  // namespace trainyard::engine
