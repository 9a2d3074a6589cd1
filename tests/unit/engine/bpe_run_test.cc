// Runs on text as tokens of byte-level BPE: the tokenizer goes where the weights go.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "executor/data/tokenizer/tokenizer.h"
#include "executor/engine/run.h"
#include "executor/engine/sampler.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class BpeRunTest : public ::testing::Test {
 protected:
  v1::JobSpec Spec(int64_t steps) const {
    v1::JobSpec spec = SmallGpt(text_, steps);
    spec.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::BPE);
    spec.mutable_data()->mutable_text()->set_vocab_size(270);
    return spec;
  }
  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }
  Checkpoint Open(const RecordingObserver& seen) {
    return Checkpoint::Open(*store_, seen.checkpoints.back().uri, "").value();
  }

  TempFolder folder_;
  const std::string text_ = WriteText(folder_.path());
  const std::unique_ptr<ObjectStore> store_ = MakeFileStore();
};

TEST_F(BpeRunTest, KeepsTheTokenizerInEachCheckpoint) {
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(Spec(3), Root("r"), seen).ok());
  const Checkpoint checkpoint = Open(seen);
  EXPECT_EQ(checkpoint.tokenizer.name, "tokenizer.json");
  EXPECT_EQ(checkpoint.config.facts.vocab, 270);
  EXPECT_TRUE(std::filesystem::exists(checkpoint.uri + "/tokenizer_config.json"));
  const auto tokenizer = data::ReadTokenizer(checkpoint.tokenizer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->size(), 270);
  EXPECT_LT((*tokenizer)->Encode("line 7 of a text\n")->size(), 12u);
}

TEST_F(BpeRunTest, ResumesWithTheSameBits) {
  RecordingObserver straight, first, rest;
  ASSERT_TRUE(RunOnCpu(Spec(8), Root("straight"), straight).ok());
  first.stop_at = 5;
  ASSERT_TRUE(RunOnCpu(Spec(8), Root("cut"), first).ok());
  ASSERT_THAT(first.checkpoints, SizeIs(1));
  const auto resumed = RunOnCpu(Spec(8), Root("cut"), rest, RestorePoint{first.checkpoints[0].uri});
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(rest.checkpoints.back().weights_sha256, straight.checkpoints.back().weights_sha256);
  EXPECT_EQ(rest.checkpoints.back().manifest_sha256, straight.checkpoints.back().manifest_sha256);
}

TEST_F(BpeRunTest, DoesNotResumeWithAnotherTokenizerOfTheSameSize) {
  RecordingObserver seen, again;
  const std::string tokenizer = folder_.path() + "/tokenizer.json";
  const auto write = [&](const std::string& text) { std::ofstream(tokenizer) << text; };
  ASSERT_TRUE(RunOnCpu(Spec(3), Root("trained"), seen).ok());
  std::string json = Open(seen).tokenizer.text;

  v1::JobSpec spec = Spec(4);
  spec.mutable_data()->mutable_text()->set_tokenizer_file(tokenizer);
  write(json);
  RecordingObserver first;
  first.stop_at = 2;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), first).ok());
  write(json + "\n");
  const auto resumed = RunOnCpu(spec, Root("r"), again, RestorePoint{first.checkpoints[0].uri});
  EXPECT_THAT(std::string(resumed.status().message()),
              HasSubstr("it was in tokens of its tokenizer.json and is in those of another one"));
}

TEST_F(BpeRunTest, MeasuresBitsPerByteOfTheTextWhateverItsTokens) {
  RecordingObserver characters, bpe;
  v1::JobSpec spec = SmallGpt(text_, 3);
  ASSERT_TRUE(RunOnCpu(spec, Root("characters"), characters).ok());
  ASSERT_TRUE(RunOnCpu(Spec(3), Root("bpe"), bpe).ok());
  const auto of = [](const RecordingObserver& seen) { return seen.metrics.back().values; };
  // The text is ASCII: a character is a byte, and predicts the next.
  EXPECT_NEAR(of(characters).at("bits_per_byte"), of(characters).at("loss") / std::log(2), 1e-9);
  // 400 bytes validate; the first token is not predicted.
  const auto checkpoint = Open(bpe);
  const auto tokenizer = data::ReadTokenizer(checkpoint.tokenizer).value();
  std::ifstream in(text_);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto ids =
      tokenizer->Encode(text.substr(static_cast<size_t>(0.9 * static_cast<double>(text.size()))));
  const auto predicted = static_cast<double>(ids->size() - 1);
  const auto bytes =
      static_cast<double>(tokenizer->Decode(*ids).size() - tokenizer->BytesOf(ids->front()).size());
  EXPECT_NEAR(of(bpe).at("bits_per_byte"), of(bpe).at("loss") * predicted / bytes / std::log(2),
              1e-9);
}

TEST_F(BpeRunTest, SamplesTheSameTokensForTheSameSeed) {
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(Spec(20), Root("r"), seen).ok());
  const Checkpoint checkpoint = Open(seen);
  const auto tokenizer = data::ReadTokenizer(checkpoint.tokenizer).value();
  const auto device = kernels::OpenCpu(1);
  const auto sampler = Sampler::Load(**device, checkpoint);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  const auto sample = [&](const SampleOptions& options) {
    std::vector<int32_t> ids;
    const auto prompt = tokenizer->Encode("line 7");
    EXPECT_TRUE(
        (*sampler)
            ->Run(*prompt, tokenizer->size(), options, [&](int32_t id) { ids.push_back(id); })
            .ok());
    return ids;
  };
  const std::vector<int32_t> ids = sample({.tokens = 30, .temperature = 1, .top_p = 0.9});
  EXPECT_THAT(ids, SizeIs(30));
  EXPECT_EQ(sample({.tokens = 30, .temperature = 1, .top_p = 0.9}), ids);
  EXPECT_NE(sample({.tokens = 30, .temperature = 1, .top_p = 0.9, .seed = 2}), ids);
  EXPECT_EQ(sample({.tokens = 30, .temperature = 1, .top_p = 0}),
            sample({.tokens = 30, .temperature = 0}));
}

}  // namespace
}  // namespace trainyard::engine
