#include "tests/unit/plan/memory/small_models.h"

#include <algorithm>
#include <string>

namespace trainyard::plan {

std::vector<ModelCase> SmallModels() {
  std::vector<ModelCase> cases = {{"mlp", MlpSpec(), ImageFacts(28, 28, 1, 10)},
                                  {"convnet", ConvnetSpec(), ImageFacts(28, 28, 1, 10)},
                                  {"gpt", GptSpec(), TokenFacts(11)},
                                  {"char", CharGptSpec(), TokenFacts(65)}};
  ModelCase dropped = {"gpt with dropout and micro-batches", GptSpec(), TokenFacts(11)};
  dropped.spec.mutable_model()->mutable_gpt()->set_dropout(0.1);
  dropped.spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
  dropped.spec.mutable_training()->set_micro_batch_size(2);
  dropped.spec.mutable_evaluation()->set_batch_size(7);
  dropped.spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  dropped.spec.mutable_optimizer()->set_clip_norm(1);
  cases.push_back(dropped);
  ModelCase deep = {"deep convnet", ConvnetSpec(), ImageFacts(32, 32, 3, 10)};
  deep.spec.mutable_model()->mutable_convnet()->mutable_stages(0)->set_convolutions(3);
  deep.spec.mutable_model()->mutable_convnet()->add_stages()->set_channels(8);
  deep.spec.mutable_model()->mutable_convnet()->set_dropout(0.5);
  deep.spec.mutable_evaluation()->set_batch_size(64);
  cases.push_back(deep);
  ModelCase resnet = {"resnet", ResnetSpec(), ImageFacts(32, 32, 3, 10)};
  resnet.spec.mutable_training()->set_micro_batch_size(3);
  cases.push_back(resnet);
  ModelCase rows = {"dlrm by row of logical ranks", DlrmSpec(), ClickFacts(3, 4, 10)};
  rows.spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(true);
  for (ModelCase shared :
       {ModelCase{"gpt of logical ranks", GptSpec(), TokenFacts(11)},
        ModelCase{"resnet of logical ranks", ResnetSpec(), ImageFacts(32, 32, 3, 10)},
        ModelCase{"dlrm of logical ranks", DlrmSpec(), ClickFacts(3, 4, 10)}, rows}) {
    shared.spec.mutable_parallel()->set_logical_ranks(5);
    shared.spec.mutable_training()->set_batch_size(20);
    shared.spec.mutable_training()->set_micro_batch_size(2);
    cases.push_back(shared);
    shared.name = "three ranks";
    shared.spec.mutable_resources()->set_min_slots(3);
    shared.spec.mutable_resources()->set_max_slots(3);
    shared.spec.mutable_resources()->set_device(v1::Resources::CPU);
    cases.push_back(shared);
    shared.name = "three ranks that shard gradients";
    shared.spec.mutable_training()->set_batch_size(10);
    shared.spec.mutable_parallel()->set_shard(v1::Parallel::GRADIENTS);
    cases.push_back(shared);
    shared.name = "three ranks that shard gradients in one round";
    shared.spec.mutable_training()->set_batch_size(6);
    shared.spec.mutable_parallel()->set_logical_ranks(3);
    cases.push_back(shared);
    shared.name = "three ranks that shard parameters";
    if (shared.spec.model().has_gpt()) shared.spec.mutable_model()->mutable_gpt()->set_dropout(0.1);
    shared.spec.mutable_parallel()->set_shard(v1::Parallel::PARAMETERS);
    cases.push_back(shared);
    shared.spec.mutable_training()->set_batch_size(10);
    shared.spec.mutable_parallel()->set_logical_ranks(5);
    cases.push_back(shared);
  }
  ModelCase bottlenecks = {"resnet of bottlenecks", ResnetSpec(), ImageFacts(64, 64, 3, 10)};
  bottlenecks.spec.mutable_model()->mutable_resnet()->set_depth(50);
  bottlenecks.spec.mutable_model()->mutable_resnet()->set_stem(v1::Resnet::IMAGENET);
  cases.push_back(bottlenecks);
  ModelCase muon = {"llama with muon, frozen norms and averages", LlamaSpec(), TokenFacts(11)};
  muon.spec.mutable_optimizer()->mutable_muon();
  muon.spec.mutable_training()->set_ema_decay(0.99);
  muon.spec.mutable_optimizer()->add_groups()->set_pattern("*norm.weight");
  muon.spec.mutable_optimizer()->mutable_groups(0)->set_frozen(true);
  cases.push_back(muon);
  muon.name = "llama with muon on two ranks";
  muon.spec.mutable_resources()->set_min_slots(2);
  muon.spec.mutable_resources()->set_max_slots(2);
  muon.spec.mutable_resources()->set_device(v1::Resources::CPU);
  cases.push_back(muon);
  ModelCase scratch = {"mlp whose optimizer needs most", MlpSpec(), ImageFacts(2, 2, 1, 10)};
  scratch.spec.mutable_model()->mutable_mlp()->add_hidden(64);
  scratch.spec.mutable_model()->mutable_mlp()->add_hidden(64);
  scratch.spec.mutable_training()->set_batch_size(1);
  scratch.spec.mutable_optimizer()->mutable_muon();
  cases.push_back(scratch);
  ModelCase lamb = {"mlp with lamb", MlpSpec(), ImageFacts(28, 28, 1, 10)};
  lamb.spec.mutable_optimizer()->mutable_lamb();
  cases.push_back(lamb);
  ModelCase adapted = {"llama with adapters", LlamaSpec(), TokenFacts(11)};
  adapted.spec.mutable_fine_tune()->mutable_lora()->set_rank(2);
  adapted.spec.mutable_fine_tune()->mutable_lora()->set_dropout(0.1);
  adapted.spec.mutable_training()->set_micro_batch_size(2);
  cases.push_back(adapted);
  cases.push_back({"dlrm", DlrmSpec(), ClickFacts(5, 3, 7)});
  for (const std::string name :
       {"char", "gpt with dropout and micro-batches", "resnet", "resnet of bottlenecks",
        "llama with adapters", "three ranks that shard parameters"}) {
    const auto first = std::find_if(cases.begin(), cases.end(),
                                    [&](const ModelCase& one) { return one.name == name; });
    ModelCase recomputed = *first;
    Recomputing(recomputed.facts, recomputed.spec);  // as little memory as can be
    cases.push_back(recomputed);
  }
  // Here it is even, for bf16: gradients in 16 bits that are an odd number of lines.
  cases.push_back({"llama", LlamaSpec(), TokenFacts(11)});
  for (v1::JobSpec spec : {GptSpec(), BertSpec()}) {  // logits whose rows lie apart
    spec.mutable_resources()->set_device(v1::Resources::CUDA);
    const bool documents = spec.model().has_bert();
    cases.push_back({"aligned", spec, documents ? DocumentFacts(61) : TokenFacts(62)});
  }
  for (size_t i = 0, n = cases.size(); i < n; ++i) {
    cases.push_back(cases[i]);
    cases.back().spec.mutable_precision()->set_compute(i % 2 == 0 ? v1::Precision::BF16
                                                                  : v1::Precision::FP16);
  }
  return cases;
}

}  // namespace trainyard::plan
