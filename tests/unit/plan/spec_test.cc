#include "executor/plan/spec/spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "google/protobuf/util/message_differencer.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct BadSpec {
  const char* name;
  v1::JobSpec (*from)();
  std::function<void(v1::JobSpec&)> spoil;
  absl::StatusCode code;
  const char* message;
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnbuilt = absl::StatusCode::kUnimplemented;

v1::Gpt& GptOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_gpt(); }
v1::Llama& LlamaOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_llama(); }
v1::Mlp& MlpOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_mlp(); }
v1::Convnet& ConvnetOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_convnet(); }
v1::Resnet& ResnetOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_resnet(); }
v1::IdxData& IdxOf(v1::JobSpec& s) { return *s.mutable_data()->mutable_idx(); }
v1::TextData& TextOf(v1::JobSpec& s) { return *s.mutable_data()->mutable_text(); }

v1::Dlrm& DlrmOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_dlrm(); }
v1::CsvData& CsvOf(v1::JobSpec& s) { return *s.mutable_data()->mutable_csv(); }
v1::ClicksData& ClicksOf(v1::JobSpec& s) { return *s.mutable_data()->mutable_clicks(); }

v1::JobSpec CsvSpec() {
  v1::JobSpec spec = DlrmSpec();
  v1::CsvData& csv = CsvOf(spec);
  csv.set_train("/data/clicks.csv");
  csv.set_label("click");
  csv.add_dense("price");
  csv.add_categorical("city");
  csv.set_hash_buckets(100);
  return spec;
}

v1::JobSpec TokenSpec() {
  v1::JobSpec spec = GptSpec();
  v1::TokenData& tokens = *spec.mutable_data()->mutable_tokens();
  tokens.add_train("/data/train.bin");
  tokens.set_vocab_size(100);
  return spec;
}

const std::vector<BadSpec>& ModelTable() {
  static const auto& table = *new std::vector<BadSpec>{
      {"no model", MlpSpec, [](auto& s) { s.clear_model(); }, kInvalid,
       "spec.model: there is none; set mlp, gpt, resnet or another family, or layers"},
      {"llama without layers", LlamaSpec, [](auto& s) { LlamaOf(s).set_layers(0); }, kInvalid,
       "spec.model.llama.layers: 0 is not in [1, 512]"},
      {"llama heads", LlamaSpec, [](auto& s) { LlamaOf(s).set_heads(3); }, kInvalid,
       "spec.model.llama.width: 8 is not a multiple of heads 3; try 6 or 9"},
      {"llama odd heads", LlamaSpec, [](auto& s) { LlamaOf(s).set_heads(8); }, kInvalid,
       "spec.model.llama.width: 8 makes heads of 1, which rotary positions cannot pair; try 16"},
      {"llama kv_heads", LlamaSpec, [](auto& s) { LlamaOf(s).set_kv_heads(3); }, kInvalid,
       "spec.model.llama.heads: 4 is not a multiple of kv_heads 3; try 3 or 6"},
      {"llama many kv_heads", LlamaSpec, [](auto& s) { LlamaOf(s).set_kv_heads(5); }, kInvalid,
       "spec.model.llama.kv_heads: 5 is not in [1, 4]"},
      {"llama theta", LlamaSpec, [](auto& s) { LlamaOf(s).set_rope_theta(0.5); }, kInvalid,
       "spec.model.llama.rope_theta: 0.5 is less than 1"},
      {"llama epsilon", LlamaSpec, [](auto& s) { LlamaOf(s).set_epsilon(0); }, kInvalid,
       "spec.model.llama.epsilon: 0 is not a finite number above 0"},
      {"llama on pictures", MlpSpec, [](auto& s) { *s.mutable_model() = LlamaSpec().model(); },
       kInvalid,
       "spec.data: llama trains on text or tokens; set spec.data.text or spec.data.tokens"},
      {"llama vocabulary", TokenSpec,
       [](auto& s) {
         *s.mutable_model() = LlamaSpec().model();
         LlamaOf(s).set_vocab_size(99);
       },
       kInvalid, "spec.model.llama.vocab_size: 99 is less than the 100 tokens of the data"},
      {"resnet without a depth", MlpSpec, [](auto& s) { s.mutable_model()->mutable_resnet(); },
       kInvalid, "spec.model.resnet.depth: 0 is no depth of a resnet; use 18, 34, 50, 101 or 152"},
      {"resnet without a stem", ResnetSpec, [](auto& s) { ResnetOf(s).clear_stem(); }, kInvalid,
       "spec.model.resnet.stem: 0 is no stem; use CIFAR for images up to about 64x64, else "
       "IMAGENET"},
      {"unknown stem", ResnetSpec,
       [](auto& s) { ResnetOf(s).set_stem(static_cast<v1::Resnet::Stem>(7)); }, kInvalid,
       "spec.model.resnet.stem: 7 is no stem; use CIFAR for images up to about 64x64, else "
       "IMAGENET"},
      {"narrow resnet", ResnetSpec, [](auto& s) { ResnetOf(s).set_width(0); }, kInvalid,
       "spec.model.resnet.width: 0 is not in [1, 4096]"},
      {"resnet on text", ResnetSpec, [](auto& s) { *s.mutable_data() = GptSpec().data(); },
       kInvalid,
       "spec.data: resnet trains on images; set spec.data.idx, image_folder or webdataset"},
      {"no table", DlrmSpec, [](auto& s) { DlrmOf(s).add_table_rows(0); }, kInvalid,
       "spec.model.dlrm.table_rows[0]: 0 is not in [1, 2147483647]"},
      {"many tables", DlrmSpec, [](auto& s) { DlrmOf(s).mutable_table_rows()->Resize(129, 5); },
       kInvalid, "spec.model.dlrm.table_rows: 129 tables are more than 128"},
      {"no embedding", DlrmSpec, [](auto& s) { DlrmOf(s).clear_embedding_width(); }, kInvalid,
       "spec.model.dlrm.embedding_width: 0 is not in [1, 4096]"},
      {"bottom", DlrmSpec, [](auto& s) { DlrmOf(s).add_bottom(-1); }, kInvalid,
       "spec.model.dlrm.bottom[1]: -1 is not in [1, 65536]"},
      {"top", DlrmSpec, [](auto& s) { DlrmOf(s).set_top(0, 65537); }, kInvalid,
       "spec.model.dlrm.top[0]: 65537 is not in [1, 65536]"},
      {"zero width", MlpSpec, [](auto& s) { MlpOf(s).add_hidden(0); }, kInvalid,
       "spec.model.mlp.hidden[1]: 0 is not in [1, 65536]"},
      {"wide", MlpSpec, [](auto& s) { MlpOf(s).set_hidden(0, 65537); }, kInvalid,
       "spec.model.mlp.hidden[0]: 65537 is not in [1, 65536]"},
      {"dropout 1", MlpSpec, [](auto& s) { MlpOf(s).set_dropout(1); }, kInvalid,
       "spec.model.mlp.dropout: 1 is not in [0, 1)"},
      {"dropout nan", GptSpec, [](auto& s) { GptOf(s).set_dropout(kNan); }, kInvalid,
       "spec.model.gpt.dropout: nan is not in [0, 1)"},
      {"unknown activation", MlpSpec,
       [](auto& s) { MlpOf(s).set_activation(static_cast<v1::Activation>(9)); }, kInvalid,
       "spec.model.mlp.activation: 9 is no activation; use RELU, GELU, GELU_TANH or RELU6"},
      {"no stages", ConvnetSpec, [](auto& s) { ConvnetOf(s).clear_stages(); }, kInvalid,
       "spec.model.convnet.stages: there is none; add one, or use spec.model.mlp"},
      {"no channels", ConvnetSpec, [](auto& s) { ConvnetOf(s).mutable_stages(0)->set_channels(0); },
       kInvalid, "spec.model.convnet.stages[0].channels: 0 is not in [1, 4096]"},
      {"even kernel", ConvnetSpec, [](auto& s) { ConvnetOf(s).mutable_stages(0)->set_kernel(4); },
       kInvalid,
       "spec.model.convnet.stages[0].kernel: 4 is even and cannot keep height and width; try 3 or "
       "5"},
      {"kernel 13", ConvnetSpec, [](auto& s) { ConvnetOf(s).mutable_stages(0)->set_kernel(13); },
       kInvalid, "spec.model.convnet.stages[0].kernel: 13 is not in [1, 11]"},
      {"pool 0", ConvnetSpec, [](auto& s) { ConvnetOf(s).mutable_stages(0)->set_pool(0); },
       kInvalid, "spec.model.convnet.stages[0].pool: 0 is not in [1, 15]"},
      {"no convolution", ConvnetSpec,
       [](auto& s) { ConvnetOf(s).mutable_stages(0)->set_convolutions(0); }, kInvalid,
       "spec.model.convnet.stages[0].convolutions: 0 is not in [1, 64]"},
      {"no layers", GptSpec, [](auto& s) { GptOf(s).set_layers(0); }, kInvalid,
       "spec.model.gpt.layers: 0 is not in [1, 512]"},
      {"no heads", GptSpec, [](auto& s) { GptOf(s).set_heads(0); }, kInvalid,
       "spec.model.gpt.heads: 0 is not in [1, 65536]"},
      {"heads", GptSpec, [](auto& s) { GptOf(s).set_heads(3); }, kInvalid,
       "spec.model.gpt.width: 8 is not a multiple of heads 3; try 6 or 9"},
      {"negative width", GptSpec, [](auto& s) { GptOf(s).set_width(-8); }, kInvalid,
       "spec.model.gpt.width: -8 is not in [1, 65536]"},
      {"no context", GptSpec, [](auto& s) { GptOf(s).clear_context(); }, kInvalid,
       "spec.model.gpt.context: 0 is not in [1, 1048576]"},
      {"vocab 0", GptSpec, [](auto& s) { GptOf(s).set_vocab_size(0); }, kInvalid,
       "spec.model.gpt.vocab_size: 0 is not in [1, 16777216]"},
      {"mlp width", GptSpec, [](auto& s) { GptOf(s).set_mlp_width(0); }, kInvalid,
       "spec.model.gpt.mlp_width: 0 is not in [1, 262144]"},
  };
  return table;
}

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

const std::vector<BadSpec>& TrainingTable() {
  static const auto& table = *new std::vector<BadSpec>{
      {"no length", MlpSpec, [](auto& s) { s.mutable_training()->clear_steps(); }, kInvalid,
       "spec.training.steps: is missing; give steps or epochs"},
      {"both", MlpSpec, [](auto& s) { s.mutable_training()->set_epochs(1); }, kInvalid,
       "spec.training.epochs: steps is given as well; give one of the two"},
      {"negative steps", MlpSpec, [](auto& s) { s.mutable_training()->set_steps(-1); }, kInvalid,
       "spec.training.steps: -1 is not in [1, 4294967295]"},
      {"negative epochs", MlpSpec,
       [](auto& s) {
         s.mutable_training()->clear_steps();
         s.mutable_training()->set_epochs(-1);
       },
       kInvalid, "spec.training.epochs: -1 is not a finite number above 0"},
      {"nan epochs", MlpSpec,
       [](auto& s) {
         s.mutable_training()->clear_steps();
         s.mutable_training()->set_epochs(kNan);
       },
       kInvalid, "spec.training.epochs: nan is not a finite number above 0"},
      {"no batch", MlpSpec, [](auto& s) { s.mutable_training()->clear_batch_size(); }, kInvalid,
       "spec.training.batch_size: 0 is not in [1, 16777216]"},
      {"does not divide", MlpSpec,
       [](auto& s) {
         s.mutable_training()->set_batch_size(100);
         s.mutable_training()->set_micro_batch_size(32);
       },
       kInvalid,
       "spec.training.batch_size: 100 is not a multiple of micro_batch_size 32; try 96 or 128"},
      {"micro larger", MlpSpec, [](auto& s) { s.mutable_training()->set_micro_batch_size(32); },
       kInvalid, "spec.training.batch_size: 6 is not a multiple of micro_batch_size 32; try 32"},
      {"ranks", MlpSpec, [](auto& s) { s.mutable_resources()->set_min_slots(4); }, kInvalid,
       "spec.training.batch_size: 6 is not a multiple of the 4 logical ranks; try 4 or 8"},
      {"ranks and micro", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_min_slots(3);
         s.mutable_training()->set_batch_size(30);
         s.mutable_training()->set_micro_batch_size(4);
       },
       kInvalid,
       "spec.training.batch_size: 30 is not a multiple of micro_batch_size 4 times the 3 logical "
       "ranks; "
       "try 24 or 36"},
      {"micro 0", MlpSpec, [](auto& s) { s.mutable_training()->set_micro_batch_size(0); }, kInvalid,
       "spec.training.micro_batch_size: 0 is not in [1, 16777216]"},
      {"log never", MlpSpec, [](auto& s) { s.mutable_training()->set_log_every(0); }, kInvalid,
       "spec.training.log_every: 0 is less than 1"},
  };
  return table;
}

v1::EarlyStopping& StoppingOf(v1::JobSpec& s) {
  s.mutable_evaluation()->set_every_steps(2);
  return *s.mutable_evaluation()->mutable_early_stopping();
}
v1::BestCheckpoints& BestOf(v1::JobSpec& s) {
  s.mutable_evaluation()->set_every_steps(2);
  return *s.mutable_checkpoint()->mutable_best();
}

const std::vector<BadSpec>& PolicyTable() {
  static const auto& table = *new std::vector<BadSpec>{
      {"smoothing", MlpSpec, [](auto& s) { s.mutable_training()->set_label_smoothing(1); },
       kInvalid, "spec.training.label_smoothing: 1 is not in [0, 1)"},
      {"nan smoothing", MlpSpec, [](auto& s) { s.mutable_training()->set_label_smoothing(kNan); },
       kInvalid, "spec.training.label_smoothing: nan is not in [0, 1)"},
      {"z-loss", MlpSpec, [](auto& s) { s.mutable_training()->set_z_loss(-1); }, kInvalid,
       "spec.training.z_loss: -1 is not in [0, 1]; PaLM took 1e-4"},
      {"smoothed clicks", DlrmSpec, [](auto& s) { s.mutable_training()->set_label_smoothing(0.1); },
       kInvalid,
       "spec.training.label_smoothing: has no meaning for dlrm, whose loss is binary; leave it "
       "out"},
      {"z-loss of clicks", DlrmSpec, [](auto& s) { s.mutable_training()->set_z_loss(1e-4); },
       kInvalid,
       "spec.training.z_loss: has no meaning for dlrm, whose loss is binary; leave it out"},
      {"unknown policy", MlpSpec,
       [](auto& s) {
         s.mutable_training()->set_on_non_finite(static_cast<v1::Training::OnNonFinite>(7));
       },
       kInvalid, "spec.training.on_non_finite: 7 is no policy; use HALT or ROLL_BACK"},
      {"rollbacks of none", MlpSpec, [](auto& s) { s.mutable_training()->set_max_rollbacks(3); },
       kInvalid, "spec.training.max_rollbacks: has no use with on_non_finite HALT; use ROLL_BACK"},
      {"no rollbacks", MlpSpec,
       [](auto& s) {
         s.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
         s.mutable_training()->set_max_rollbacks(0);
       },
       kInvalid, "spec.training.max_rollbacks: 0 is not in [1, 1000]"},
      {"stopping without evaluations", MlpSpec,
       [](auto& s) { s.mutable_evaluation()->mutable_early_stopping(); }, kInvalid,
       "spec.evaluation.early_stopping: goes by evaluations, of which there are none before the "
       "end; set spec.evaluation.every_steps"},
      {"unknown metric", MlpSpec, [](auto& s) { StoppingOf(s).set_metric("accuracies"); }, kInvalid,
       "spec.evaluation.early_stopping.metric: evaluation of this job reports no 'accuracies' (did "
       "you mean 'accuracy'?); it reports loss, accuracy"},
      {"metric of other data", GptSpec, [](auto& s) { BestOf(s).set_metric("auc"); }, kInvalid,
       "spec.checkpoint.best.metric: evaluation of this job reports no 'auc'; it reports loss, "
       "accuracy, perplexity, bits_per_byte"},
      {"unknown mode", MlpSpec,
       [](auto& s) { StoppingOf(s).set_mode(static_cast<v1::Evaluation::Mode>(5)); }, kInvalid,
       "spec.evaluation.early_stopping.mode: 5 is no mode; use MIN or MAX"},
      {"impatient", MlpSpec, [](auto& s) { StoppingOf(s).set_patience(0); }, kInvalid,
       "spec.evaluation.early_stopping.patience: 0 is less than 1"},
      {"negative delta", MlpSpec, [](auto& s) { StoppingOf(s).set_min_delta(-1); }, kInvalid,
       "spec.evaluation.early_stopping.min_delta: -1 is not a finite number of at least 0"},
      {"best of nothing", MlpSpec, [](auto& s) { s.mutable_checkpoint()->mutable_best(); },
       kInvalid,
       "spec.checkpoint.best: goes by evaluations, of which there are none before the end; set "
       "spec.evaluation.every_steps"},
      {"best none", MlpSpec, [](auto& s) { BestOf(s).set_keep(0); }, kInvalid,
       "spec.checkpoint.best.keep: 0 is not in [1, 100]"},
  };
  return table;
}

const std::vector<BadSpec>& RunningTable() {
  static const auto& table = *new std::vector<BadSpec>{
      {"zero slots", MlpSpec, [](auto& s) { s.mutable_resources()->set_min_slots(0); }, kInvalid,
       "spec.resources.min_slots: 0 is not in [1, 65536]"},
      {"max below min", MlpSpec,
       [](auto& s) {
         s.mutable_resources()->set_min_slots(2);
         s.mutable_resources()->set_max_slots(1);
       },
       kInvalid, "spec.resources.max_slots: 1 is less than min_slots 2"},
      {"elastic", MlpSpec, [](auto& s) { s.mutable_resources()->set_max_slots(2); }, kUnbuilt,
       "spec.resources.max_slots: growing beyond min_slots is not built yet; set both to 1"},
      {"unknown precision", MlpSpec,
       [](auto& s) { s.mutable_precision()->set_compute(static_cast<v1::Precision::Compute>(9)); },
       kInvalid, "spec.precision.compute: 9 is no precision; use FP32, BF16 or FP16"},
      {"scale of a bf16 loss", MlpSpec,
       [](auto& s) {
         s.mutable_precision()->set_compute(v1::Precision::BF16);
         s.mutable_precision()->mutable_loss_scale()->set_initial(2);
       },
       kInvalid, "spec.precision.loss_scale: has no use with BF16; use FP16 or leave it out"},
      {"scale of nothing", MlpSpec,
       [](auto& s) {
         s.mutable_precision()->set_compute(v1::Precision::FP16);
         s.mutable_precision()->mutable_loss_scale()->set_initial(0);
       },
       kInvalid, "spec.precision.loss_scale.initial: 0 is not in [2^-16, 2^64]; try 65536"},
      {"scale that is no number", MlpSpec,
       [](auto& s) {
         s.mutable_precision()->set_compute(v1::Precision::FP16);
         s.mutable_precision()->mutable_loss_scale()->set_initial(std::nan(""));
       },
       kInvalid, "spec.precision.loss_scale.initial: nan is not in [2^-16, 2^64]; try 65536"},
      {"scale that grows at once", MlpSpec,
       [](auto& s) {
         s.mutable_precision()->set_compute(v1::Precision::FP16);
         s.mutable_precision()->mutable_loss_scale()->set_growth_interval(0);
       },
       kInvalid, "spec.precision.loss_scale.growth_interval: 0 is less than 1"},
      {"unknown device", MlpSpec,
       [](auto& s) { s.mutable_resources()->set_device(static_cast<v1::Resources::Device>(7)); },
       kInvalid, "spec.resources.device: 7 is no device; use CPU or CUDA, or leave it out"},
      {"logical ranks", MlpSpec, [](auto& s) { s.mutable_parallel()->set_logical_ranks(2); },
       kUnbuilt,
       "spec.parallel.logical_ranks: 2 logical ranks on 1 slots is not built yet; use 1 or leave "
       "it out"},
      {"no logical rank", MlpSpec, [](auto& s) { s.mutable_parallel()->set_logical_ranks(0); },
       kInvalid, "spec.parallel.logical_ranks: 0 is not in [1, 65536]"},
      {"tensor", MlpSpec, [](auto& s) { s.mutable_parallel()->set_tensor(2); }, kUnbuilt,
       "spec.parallel.tensor: 2 tensor-parallel ranks is not built yet; use 1"},
      {"pipeline", MlpSpec, [](auto& s) { s.mutable_parallel()->set_pipeline(4); }, kUnbuilt,
       "spec.parallel.pipeline: 4 pipeline-parallel ranks is not built yet; use 1"},
      {"sequence", MlpSpec, [](auto& s) { s.mutable_parallel()->set_sequence(0); }, kInvalid,
       "spec.parallel.sequence: 0 is less than 1"},
      {"evaluation", MlpSpec, [](auto& s) { s.mutable_evaluation()->set_every_steps(-5); },
       kInvalid, "spec.evaluation.every_steps: -5 is less than 0"},
      {"evaluation samples", MlpSpec, [](auto& s) { s.mutable_evaluation()->set_max_samples(-5); },
       kInvalid, "spec.evaluation.max_samples: -5 is less than 0"},
      {"evaluation batch", MlpSpec, [](auto& s) { s.mutable_evaluation()->set_batch_size(0); },
       kInvalid, "spec.evaluation.batch_size: 0 is not in [1, 16777216]"},
      {"nothing held out", TokenSpec, [](auto& s) { s.mutable_evaluation()->set_every_steps(5); },
       kInvalid,
       "spec.evaluation.every_steps: the data has no held-out split to evaluate on; set one in "
       "spec.data"},
      {"nothing at the end", TokenSpec, [](auto& s) { s.mutable_evaluation()->set_at_end(true); },
       kInvalid,
       "spec.evaluation.at_end: the data has no held-out split to evaluate on; set one in "
       "spec.data"},
      {"keep 1", MlpSpec, [](auto& s) { s.mutable_checkpoint()->set_keep(1); }, kInvalid,
       "spec.checkpoint.keep: 1 is not in [2, 1000000]"},
      {"checkpoint", MlpSpec, [](auto& s) { s.mutable_checkpoint()->set_every_steps(-1); },
       kInvalid, "spec.checkpoint.every_steps: -1 is less than 0"},
      {"from", MlpSpec, [](auto& s) { s.mutable_fine_tune()->set_from("models/gpt2"); }, kInvalid,
       "spec.fine_tune.from: 'models/gpt2' is not an absolute path nor a file:// URI"},
      {"from a bucket", MlpSpec, [](auto& s) { s.mutable_fine_tune()->set_from("s3://b/m"); },
       kUnbuilt,
       "spec.fine_tune.from: the scheme s3:// is not built yet; use an absolute path or file://"},
      {"fine_tune", MlpSpec, [](auto& s) { s.mutable_fine_tune(); }, kInvalid,
       "spec.fine_tune: says nothing; set from or lora, or leave it out"},
      {"reinitialize", MlpSpec, [](auto& s) { s.mutable_fine_tune()->add_reinitialize("*"); },
       kInvalid, "spec.fine_tune.reinitialize: all weights are drawn without from; leave it out"},
      {"ignore", MlpSpec, [](auto& s) { s.mutable_fine_tune()->add_ignore("*"); }, kInvalid,
       "spec.fine_tune.ignore: there is nothing to ignore without from; leave it out"},
      {"empty pattern", MlpSpec,
       [](auto& s) {
         s.mutable_fine_tune()->set_from("/m");
         s.mutable_fine_tune()->add_ignore("");
       },
       kInvalid, "spec.fine_tune.ignore[0]: is empty; name tensors, or leave it out"},
      {"long pattern", MlpSpec,
       [](auto& s) {
         s.mutable_fine_tune()->set_from("/m");
         s.mutable_fine_tune()->add_reinitialize(std::string(513, '*'));
       },
       kInvalid, "spec.fine_tune.reinitialize[0]: 513 bytes are more than 512"},
      {"tokenizer of nothing", GptSpec,
       [](auto& s) {
         s.mutable_data()->mutable_text()->set_path("/t");
         s.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::FROM_CHECKPOINT);
       },
       kInvalid,
       "spec.data.text.tokenizer: FROM_CHECKPOINT takes that of spec.fine_tune.from, which is not "
       "set"},
      {"tokenizer of two", GptSpec,
       [](auto& s) {
         s.mutable_data()->mutable_text()->set_path("/t");
         s.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::FROM_CHECKPOINT);
         s.mutable_data()->mutable_text()->set_tokenizer_file("/t.json");
         s.mutable_fine_tune()->set_from("/m");
       },
       kInvalid,
       "spec.data.text.tokenizer_file: FROM_CHECKPOINT reads that of spec.fine_tune.from; leave it "
       "out, or set tokenizer: BPE"},
      {"restarts", MlpSpec, [](auto& s) { s.mutable_retry()->set_max_restarts(1001); }, kInvalid,
       "spec.retry.max_restarts: 1001 is not in [0, 1000]"},
      {"backoff", MlpSpec, [](auto& s) { s.mutable_retry()->set_backoff_seconds(kNan); }, kInvalid,
       "spec.retry.backoff_seconds: nan is not a finite number of at least 0"},
      {"long backoff", MlpSpec, [](auto& s) { s.mutable_retry()->set_backoff_seconds(301); },
       kInvalid, "spec.retry.backoff_seconds: 301 is more than 300"},
  };
  return table;
}

void ExpectRefused(const std::vector<BadSpec>& table) {
  for (const BadSpec& bad : table) {
    v1::JobSpec spec = bad.from();
    bad.spoil(spec);
    const absl::Status status = ResolveSpec(spec).status();
    EXPECT_EQ(status.code(), bad.code) << bad.name;
    EXPECT_EQ(status.message(), bad.message) << bad.name;
  }
}

TEST(ResolveSpec, RefusesBadModels) { ExpectRefused(ModelTable()); }
TEST(ResolveSpec, RefusesBadData) { ExpectRefused(DataTable()); }
TEST(ResolveSpec, RefusesBadTraining) { ExpectRefused(TrainingTable()); }
TEST(ResolveSpec, RefusesBadPolicies) { ExpectRefused(PolicyTable()); }
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
TEST(ResolveSpec, RefusesBadRunning) { ExpectRefused(RunningTable()); }

TEST(ResolveSpec, AcceptsWhatTheTestsStartFrom) {
  for (const v1::JobSpec& spec :
       {MlpSpec(), ConvnetSpec(), GptSpec(), CharGptSpec(), Gpt2Spec(), ResnetSpec(), LlamaSpec(),
        TokenSpec(), DlrmSpec(), CsvSpec(), BertSpec(), VitSpec(), MobilenetSpec(),
        ImageLayersSpec(), TokenLayersSpec()}) {
    EXPECT_TRUE(ResolveSpec(spec).ok()) << ResolveSpec(spec).status();
  }
}

TEST(ResolveSpec, IsIdempotent) {
  for (const v1::JobSpec& spec :
       {MlpSpec(), ConvnetSpec(), GptSpec(), LlamaSpec(), ResnetSpec(), TokenSpec(), DlrmSpec(),
        CsvSpec(), BertSpec(), VitSpec(), MobilenetSpec(), ImageLayersSpec(), TokenLayersSpec()}) {
    const v1::JobSpec once = *ResolveSpec(spec);
    const absl::StatusOr<v1::JobSpec> twice = ResolveSpec(once);
    ASSERT_TRUE(twice.ok()) << twice.status();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(once, *twice));
  }
}

TEST(ResolveSpec, AMetricSaysWhichOfItsValuesIsTheBetterOne) {
  v1::JobSpec spec = DlrmSpec();
  for (const auto& [metric, mode] :
       {std::pair{"", v1::Evaluation::MIN}, {"auc", v1::Evaluation::MAX}}) {
    StoppingOf(spec).set_metric(metric);
    BestOf(spec).set_metric(metric);
    const v1::JobSpec resolved = *ResolveSpec(spec);
    EXPECT_EQ(resolved.evaluation().early_stopping().mode(), mode);
    EXPECT_EQ(resolved.checkpoint().best().mode(), mode);
  }
  StoppingOf(spec).set_mode(v1::Evaluation::MIN);
  EXPECT_EQ(ResolveSpec(spec)->evaluation().early_stopping().mode(), v1::Evaluation::MIN);
}

TEST(ResolveSpec, FillsTheDefaultsOfTheProto) {
  v1::JobSpec bare = MlpSpec();
  bare.mutable_data()->mutable_idx()->clear_mean();
  bare.mutable_data()->mutable_idx()->clear_std();
  const v1::JobSpec mlp = *ResolveSpec(bare);
  EXPECT_EQ(mlp.model().mlp().activation(), v1::RELU);
  EXPECT_EQ(mlp.data().prefetch(), 4);
  EXPECT_DOUBLE_EQ(mlp.data().idx().validation_fraction(), 0.1);
  EXPECT_DOUBLE_EQ(mlp.data().idx().mean(), 0);
  EXPECT_DOUBLE_EQ(mlp.data().idx().std(), 1);
  EXPECT_EQ(mlp.training().micro_batch_size(), 6);
  EXPECT_EQ(mlp.training().seed(), 1337u);
  EXPECT_EQ(mlp.training().log_every(), 1);
  EXPECT_EQ(mlp.training().on_non_finite(), v1::Training::HALT);
  EXPECT_FALSE(mlp.training().has_max_rollbacks());
  EXPECT_DOUBLE_EQ(mlp.optimizer().adamw().beta2(), 0.999);
  EXPECT_DOUBLE_EQ(mlp.optimizer().adamw().weight_decay(), 0.01);
  EXPECT_DOUBLE_EQ(mlp.schedule().learning_rate(), 1e-3);
  EXPECT_EQ(mlp.schedule().shape(), v1::Schedule::CONSTANT);
  EXPECT_EQ(mlp.precision().compute(), v1::Precision::FP32);
  EXPECT_FALSE(mlp.precision().has_loss_scale());
  EXPECT_EQ(mlp.resources().min_slots(), 1);
  EXPECT_EQ(mlp.resources().max_slots(), 1);
  EXPECT_EQ(mlp.parallel().logical_ranks(), 1);
  EXPECT_TRUE(mlp.evaluation().at_end());
  EXPECT_EQ(mlp.evaluation().batch_size(), 6);
  EXPECT_EQ(mlp.checkpoint().keep(), 2);
  EXPECT_EQ(mlp.retry().max_restarts(), 5);

  v1::JobSpec policies = GptSpec();
  policies.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
  StoppingOf(policies);
  BestOf(policies);
  policies = *ResolveSpec(policies);
  EXPECT_EQ(policies.training().max_rollbacks(), 5);
  EXPECT_EQ(policies.evaluation().early_stopping().metric(), "loss");
  EXPECT_EQ(policies.evaluation().early_stopping().patience(), 3);
  EXPECT_EQ(policies.checkpoint().best().metric(), "loss");
  EXPECT_EQ(policies.checkpoint().best().keep(), 1);

  const v1::JobSpec gpt = *ResolveSpec(GptSpec());
  EXPECT_EQ(gpt.model().gpt().activation(), v1::GELU_TANH);
  EXPECT_EQ(gpt.model().gpt().mlp_width(), 32);
  EXPECT_TRUE(gpt.model().gpt().bias());
  EXPECT_TRUE(gpt.model().gpt().tie_embeddings());
  EXPECT_EQ(gpt.data().text().tokenizer(), v1::TextData::CHARACTERS);

  v1::JobSpec llama = LlamaSpec();
  LlamaOf(llama).clear_kv_heads();
  LlamaOf(llama).clear_mlp_width();
  LlamaOf(llama).clear_rope_theta();
  llama = *ResolveSpec(llama);
  EXPECT_EQ(llama.model().llama().kv_heads(), 4);
  EXPECT_EQ(llama.model().llama().mlp_width(), 64);
  EXPECT_EQ(llama.model().llama().rope_theta(), 10000);
  EXPECT_FALSE(llama.model().llama().tie_embeddings());

  const v1::JobSpec convnet = *ResolveSpec(ConvnetSpec());
  EXPECT_EQ(convnet.model().convnet().stages(0).kernel(), 3);
  EXPECT_EQ(convnet.model().convnet().stages(0).pool(), 2);
  EXPECT_EQ(convnet.model().convnet().stages(0).convolutions(), 1);

  const v1::JobSpec dlrm = *ResolveSpec(DlrmSpec());
  EXPECT_EQ(dlrm.data().clicks().dense(), 13);
  EXPECT_EQ(dlrm.data().clicks().categorical(), 26);
  EXPECT_EQ(dlrm.data().clicks().categories(), 1000);
  EXPECT_EQ(dlrm.data().clicks().seed(), 1u);
  const v1::JobSpec csv = *ResolveSpec(CsvSpec());
  EXPECT_DOUBLE_EQ(csv.data().csv().validation_fraction(), 0.1);
  EXPECT_EQ(csv.data().csv().bad_records(), v1::REFUSE_BAD_RECORDS);
  v1::JobSpec resnet = ResnetSpec();
  resnet.mutable_model()->mutable_resnet()->clear_width();
  EXPECT_EQ(ResolveSpec(resnet)->model().resnet().width(), 64);

  EXPECT_FALSE(ResolveSpec(TokenSpec())->evaluation().at_end());  // nothing is held out
}

TEST(ResolveSpec, AcceptsSeveralSlots) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_resources()->set_min_slots(3);
  const v1::JobSpec resolved = *ResolveSpec(spec);
  EXPECT_EQ(resolved.parallel().logical_ranks(), 3);
  EXPECT_EQ(resolved.training().micro_batch_size(), 2);
}

}  // namespace
}  // namespace trainyard::plan
