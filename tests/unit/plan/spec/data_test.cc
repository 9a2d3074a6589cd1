#include <gtest/gtest.h>

#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/spec/bad_specs.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

v1::IdxData& IdxOf(v1::JobSpec& s) { return *s.mutable_data()->mutable_idx(); }
v1::TextData& TextOf(v1::JobSpec& s) { return *s.mutable_data()->mutable_text(); }
v1::CsvData& CsvOf(v1::JobSpec& s) { return *s.mutable_data()->mutable_csv(); }
v1::ClicksData& ClicksOf(v1::JobSpec& s) { return *s.mutable_data()->mutable_clicks(); }

const std::vector<BadSpec>& DataTable() {
  static const auto& table = *new std::vector<BadSpec>{
      {"no data", MlpSpec, [](auto& s) { s.clear_data(); }, kInvalid,
       "spec.data: there is none; set idx, image_folder, webdataset, text, tokens, csv, criteo or "
       "clicks"},
      {"gpt on images", MlpSpec, [](auto& s) { *s.mutable_model() = GptSpec().model(); }, kInvalid,
       "spec.data: gpt trains on text or tokens; set spec.data.text or spec.data.tokens"},
      {"mlp on text", GptSpec, [](auto& s) { s.mutable_model()->mutable_mlp(); }, kInvalid,
       "spec.data: mlp trains on images; set spec.data.idx, image_folder or webdataset"},
      {"mlp on clicks", DlrmSpec, [](auto& s) { s.mutable_model()->mutable_mlp(); }, kInvalid,
       "spec.data: csv, criteo and clicks are for dlrm; set spec.model.dlrm"},
      {"dlrm on images", MlpSpec, [](auto& s) { *s.mutable_model() = DlrmSpec().model(); },
       kInvalid,
       "spec.data: dlrm trains on clicks; set spec.data.csv, spec.data.criteo or "
       "spec.data.clicks"},
      {"no csv", CsvSpec, [](auto& s) { CsvOf(s).clear_train(); }, kInvalid,
       "spec.data.csv.train: is missing; give an absolute path or file:// URI"},
      {"two splits", CsvSpec,
       [](auto& s) {
         CsvOf(s).set_validation("/v");
         CsvOf(s).set_validation_fraction(0.2);
       },
       kInvalid,
       "spec.data.csv.validation_fraction: validation is the held-out split already; give one of "
       "the two"},
      {"nothing validates", CsvSpec, [](auto& s) { CsvOf(s).set_validation_fraction(0); }, kInvalid,
       "spec.data.csv.validation_fraction: 0 is not in (0, 0.5]"},
      {"no label", CsvSpec, [](auto& s) { CsvOf(s).clear_label(); }, kInvalid,
       "spec.data.csv.label: is missing; name a column of the file"},
      {"no dense", CsvSpec, [](auto& s) { CsvOf(s).clear_dense(); }, kInvalid,
       "spec.data.csv.dense: the number of columns: 0 is not in [1, 4096]"},
      {"no categorical", CsvSpec, [](auto& s) { CsvOf(s).clear_categorical(); }, kInvalid,
       "spec.data.csv.categorical: the number of columns: 0 is not in [1, 128]"},
      {"column twice", CsvSpec, [](auto& s) { CsvOf(s).add_categorical("price"); }, kInvalid,
       "spec.data.csv.categorical[1]: 'price' is named twice"},
      {"bad rows", CsvSpec,
       [](auto& s) { CsvOf(s).set_bad_records(static_cast<v1::BadRecords>(9)); }, kInvalid,
       "spec.data.csv.bad_records: 9 is no choice; use REFUSE_BAD_RECORDS or SKIP_BAD_RECORDS"},
      {"no buckets", CsvSpec, [](auto& s) { CsvOf(s).clear_hash_buckets(); }, kInvalid,
       "spec.data.csv.hash_buckets: 0 is not in [1, 2147483647]"},
      {"no criteo", DlrmSpec, [](auto& s) { s.mutable_data()->mutable_criteo(); }, kInvalid,
       "spec.data.criteo.train: is missing; give an absolute path or file:// URI"},
      {"no clicks", DlrmSpec, [](auto& s) { ClicksOf(s).clear_train_samples(); }, kInvalid,
       "spec.data.clicks.train_samples: 0 is not in [1, 1099511627776]"},
      {"no held-out clicks", DlrmSpec, [](auto& s) { ClicksOf(s).clear_validation_samples(); },
       kInvalid, "spec.data.clicks.validation_samples: 0 is not in [1, 1099511627776]"},
      {"many categorical", DlrmSpec, [](auto& s) { ClicksOf(s).set_categorical(129); }, kInvalid,
       "spec.data.clicks.categorical: 129 is not in [1, 128]"},
      {"prefetch 0", MlpSpec, [](auto& s) { s.mutable_data()->set_prefetch(0); }, kInvalid,
       "spec.data.prefetch: 0 is not in [1, 64]"},
      {"no images", MlpSpec, [](auto& s) { IdxOf(s).clear_train_images(); }, kInvalid,
       "spec.data.idx.train_images: is missing; give an absolute path or file:// URI"},
      {"relative", MlpSpec, [](auto& s) { IdxOf(s).set_train_labels("labels.gz"); }, kInvalid,
       "spec.data.idx.train_labels: 'labels.gz' is not an absolute path nor a file:// URI"},
      {"s3", MlpSpec, [](auto& s) { IdxOf(s).set_train_images("s3://b/k"); }, kUnbuilt,
       "spec.data.idx.train_images: the scheme s3:// is not built yet; use an absolute path or "
       "file://"},
      {"host", MlpSpec, [](auto& s) { IdxOf(s).set_train_images("file://host/k"); }, kInvalid,
       "spec.data.idx.train_images: 'file://host/k' names a host; write file:///path"},
      {"test without labels", MlpSpec, [](auto& s) { IdxOf(s).set_test_images("/t"); }, kInvalid,
       "spec.data.idx.test_labels: is missing; give an absolute path or file:// URI"},
      {"labels without test", MlpSpec, [](auto& s) { IdxOf(s).set_test_labels("/t"); }, kInvalid,
       "spec.data.idx.test_images: is missing; give an absolute path or file:// URI"},
      {"test and fraction", MlpSpec,
       [](auto& s) {
         IdxOf(s).set_test_images("/t");
         IdxOf(s).set_test_labels("/l");
         IdxOf(s).set_validation_fraction(0.2);
       },
       kInvalid,
       "spec.data.idx.validation_fraction: test_images is the held-out split already; give one of "
       "the two"},
      {"fraction 0.6", MlpSpec, [](auto& s) { IdxOf(s).set_validation_fraction(0.6); }, kInvalid,
       "spec.data.idx.validation_fraction: 0.6 is not in (0, 0.5]"},
      {"std 0", MlpSpec, [](auto& s) { IdxOf(s).set_std(0); }, kInvalid,
       "spec.data.idx.std: 0 is not a finite number above 0"},
      {"mean inf", MlpSpec, [](auto& s) { IdxOf(s).set_mean(kInf); }, kInvalid,
       "spec.data.idx.mean: inf is not a finite number"},
      {"classes 0", MlpSpec, [](auto& s) { IdxOf(s).set_classes(0); }, kInvalid,
       "spec.data.idx.classes: 0 is not in [1, 256]"},
      {"no text", GptSpec, [](auto& s) { TextOf(s).clear_path(); }, kInvalid,
       "spec.data.text.path: is missing; give an absolute path or file:// URI"},
      {"bpe of no size", GptSpec, [](auto& s) { TextOf(s).set_tokenizer(v1::TextData::BPE); },
       kInvalid,
       "spec.data.text.vocab_size: is missing; BPE needs it to train a tokenizer, or "
       "tokenizer_file "
       "to read one"},
      {"bpe of fewer tokens than bytes", GptSpec,
       [](auto& s) {
         TextOf(s).set_tokenizer(v1::TextData::BPE);
         TextOf(s).set_vocab_size(255);
       },
       kInvalid, "spec.data.text.vocab_size: 255 is not in [256, 1048576]"},
      {"bpe of a relative file", GptSpec,
       [](auto& s) {
         TextOf(s).set_tokenizer(v1::TextData::BPE);
         TextOf(s).set_tokenizer_file("tokenizer.json");
       },
       kInvalid,
       "spec.data.text.tokenizer_file: 'tokenizer.json' is not an absolute path nor a file:// URI"},
      {"tokenizer file of characters", GptSpec,
       [](auto& s) { TextOf(s).set_tokenizer_file("/t.json"); }, kInvalid,
       "spec.data.text.tokenizer_file: only BPE reads one; set tokenizer: BPE, or leave it out"},
      {"unknown tokenizer", GptSpec,
       [](auto& s) { TextOf(s).set_tokenizer(static_cast<v1::TextData::Tokenizer>(9)); }, kInvalid,
       "spec.data.text.tokenizer: 9 is no tokenizer; use CHARACTERS, BYTES, BPE or "
       "FROM_CHECKPOINT"},
      {"text fraction", GptSpec, [](auto& s) { TextOf(s).set_validation_fraction(kNan); }, kInvalid,
       "spec.data.text.validation_fraction: nan is not in [0, 0.5]"},
      {"byte vocab", GptSpec,
       [](auto& s) {
         TextOf(s).set_tokenizer(v1::TextData::BYTES);
         TextOf(s).set_vocab_size(100);
       },
       kInvalid, "spec.data.text.vocab_size: 100 is not 256, the number of BYTES"},
      {"no token file", TokenSpec,
       [](auto& s) { s.mutable_data()->mutable_tokens()->clear_train(); }, kInvalid,
       "spec.data.tokens.train: is missing; name at least one file"},
      {"empty token file", TokenSpec,
       [](auto& s) { s.mutable_data()->mutable_tokens()->add_validation(""); }, kInvalid,
       "spec.data.tokens.validation[0]: is missing; give an absolute path or file:// URI"},
      {"no token vocab", TokenSpec,
       [](auto& s) { s.mutable_data()->mutable_tokens()->clear_vocab_size(); }, kInvalid,
       "spec.data.tokens.vocab_size: 0 is not in [1, 65536]"},
      {"token vocab", TokenSpec, [](auto& s) { GptOf(s).set_vocab_size(99); }, kInvalid,
       "spec.model.gpt.vocab_size: 99 is less than the 100 tokens of the data"},
  };
  return table;
}

TEST(ResolveSpec, RefusesBadData) { ExpectRefused(DataTable()); }

TEST(ResolveSpec, TheTokenizerFromACheckpointIsThatOfItsFolder) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_data()->mutable_text()->set_path("/t");
  spec.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::FROM_CHECKPOINT);
  spec.mutable_fine_tune()->set_from("/m");
  const auto resolved = ResolveSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->data().text().tokenizer_file(), "/m");
  EXPECT_EQ(ResolveSpec(*resolved)->SerializeAsString(), resolved->SerializeAsString());
}

}  // namespace
}  // namespace trainyard::plan
