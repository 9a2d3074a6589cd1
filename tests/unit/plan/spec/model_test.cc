#include <gtest/gtest.h>

#include "tests/unit/plan/spec/bad_specs.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

v1::Mlp& MlpOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_mlp(); }
v1::Convnet& ConvnetOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_convnet(); }
v1::Resnet& ResnetOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_resnet(); }
v1::Dlrm& DlrmOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_dlrm(); }

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

TEST(ResolveSpec, RefusesBadModels) { ExpectRefused(ModelTable()); }

}  // namespace
}  // namespace trainyard::plan
