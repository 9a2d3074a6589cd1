// Images and labels in the IDX format, plain or gzip: what is accepted has labels within its
// classes.

#include <algorithm>
#include <vector>

#include "executor/data/dataset/dataset.h"
#include "executor/data/open_dataset.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard;
  static MemoryFile images, labels;
  if (size < 1 || size > 1 << 16) return 0;
  const size_t cut = std::min<size_t>(size - 1, data[0]);  // the labels come first
  v1::Data spec;
  v1::IdxData& idx = *spec.mutable_idx();
  idx.set_std(1);
  idx.set_validation_fraction(0.1);
  idx.set_train_labels(labels.Hold(data + 1, cut));
  idx.set_train_images(images.Hold(data + 1 + cut, size - 1 - cut));
  const auto dataset = data::OpenDataset(spec, plan::Windowing());
  if (!dataset.ok()) return 0;
  const plan::DataFacts facts = (*dataset)->facts();
  TY_CHECK(facts.height * facts.width <= 1 << 26, facts.height);
  std::vector<uint8_t> image(static_cast<size_t>(facts.height * facts.width * facts.channels));
  for (const data::Split split : {data::Split::kTrain, data::Split::kValidation}) {
    const int64_t samples = (*dataset)->size(split);
    for (const int64_t sample : {int64_t{0}, samples - 1}) {
      if (sample < 0 || sample >= samples) continue;
      int32_t label = -1;
      const absl::Status filled = (*dataset)->Fill(split, {sample}, image.data(), &label);
      TY_CHECK(filled.ok(), filled.ToString());
      TY_CHECK(label >= 0 && label < facts.classes, label);
    }
  }
  return 0;
}
