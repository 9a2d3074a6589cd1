// Token files of each format: what is accepted gives windows of ids within the vocabulary, or the
// place of the first that is not.

#include "executor/data/dataset/dataset.h"
#include "executor/data/open_dataset.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard;
  if (size < 4) return 0;
  static MemoryFile file;
  const std::string path = file.Hold(data + 4, size - 4);
  v1::Data spec;
  spec.mutable_tokens()->add_train(path);
  spec.mutable_tokens()->add_validation(path);
  spec.mutable_tokens()->set_format(static_cast<v1::TokenData::Format>(1 + data[0] % 3));
  const int32_t vocab = 1 + data[2] + 256 * data[3];
  spec.mutable_tokens()->set_vocab_size(vocab);
  const int64_t context = 1 + data[1] % 16;
  const auto dataset = data::OpenDataset(spec, context);
  if (!dataset.ok()) return 0;
  std::vector<int32_t> inputs(static_cast<size_t>(context)), targets(inputs.size());
  for (const data::Split split : {data::Split::kTrain, data::Split::kValidation}) {
    for (const int64_t sample : {int64_t{0}, (*dataset)->size(split) - 1, int64_t{-1}}) {
      if (!(*dataset)->Fill(split, {sample}, inputs.data(), targets.data()).ok()) continue;
      for (const int32_t id : inputs) TY_CHECK(id >= 0 && id < vocab, id);
      for (const int32_t id : targets) TY_CHECK(id >= -1 && id < vocab, id);
    }
  }
  return 0;
}
