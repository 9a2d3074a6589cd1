#pragma once

// Small specs that the tests of this room start from. Each is valid as it is.

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

v1::JobSpec MlpSpec();
v1::JobSpec ConvnetSpec();
v1::JobSpec GptSpec();
v1::JobSpec ResnetSpec();  // depth 18, CIFAR stem, width 4

v1::JobSpec BertSpec();
v1::JobSpec MobilenetSpec();  // width 0.25, CIFAR stem, no dropout
v1::JobSpec VitSpec();        // patches of 2

// A list of layers: a convolution, a block with a branch twice, a linear layer; or on tokens an
// embedding with positions and a block of attention.
v1::JobSpec ImageLayersSpec();
v1::JobSpec TokenLayersSpec();

// A list in the text format of protobuf.
v1::LayerList LayersOf(const std::string& text);

// Tables of width 4 under dense AdamW.
v1::JobSpec DlrmSpec();

// nanoGPT's character configuration: 4 layers, 4 heads, width 128, context 64, batch 12, no biases.
v1::JobSpec LlamaSpec();
v1::JobSpec CharGptSpec();
// GPT-2 small: 124,439,808 parameters.
v1::JobSpec Gpt2Spec();

// Of other data: clicks in a CSV file, token files without a held-out split, a folder of images.
v1::JobSpec CsvSpec();
v1::JobSpec TokenSpec();
v1::JobSpec FolderSpec();
v1::ImageTransform& TransformOf(v1::JobSpec& spec);  // of a folder

DataFacts ImageFacts(int64_t height, int64_t width, int64_t channels, int64_t classes);
DataFacts TokenFacts(int64_t vocab);
DataFacts DocumentFacts(int64_t vocab);
DataFacts ClickFacts(int64_t dense, int64_t categorical, int64_t buckets);

// A model and data for it.
struct ModelCase {
  const char* name;
  v1::JobSpec spec;
  DataFacts facts;
};

// Makes `spec` recompute until activations take the least bytes that can be reached, which it
// returns.
int64_t Recomputing(const DataFacts& facts, v1::JobSpec& spec);

// ResolveSpec and BuildPlan, which must succeed.
Plan PlanOf(const v1::JobSpec& spec, const DataFacts& facts);

// What ResolveSpec and BuildPlan say.
absl::Status PlanStatus(const v1::JobSpec& spec, const DataFacts& facts);

inline constexpr ElementType kF32 = ElementType::kF32, kBF16 = ElementType::kBF16;

// Those of one kind.
template <typename T>
std::vector<T> OpsOf(const std::vector<Op>& ops) {
  std::vector<T> found;
  for (const Op& op : ops) {
    if (const T* o = std::get_if<T>(&op)) found.push_back(*o);
  }
  return found;
}

}  // namespace trainyard::plan
