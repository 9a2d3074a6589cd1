// Files of clicks, CSV and Criteo's: what is accepted has labels of 0 and 1, finite numbers and
// rows within the tables.

#include <cmath>
#include <cstring>
#include <vector>

#include "executor/data/dataset/dataset.h"
#include "executor/data/open_dataset.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard;
  if (size < 1) return 0;
  static MemoryFile file;
  const std::string path = file.Hold(data + 1, size - 1);
  constexpr int64_t kBuckets = 97;
  const auto bad_records = (data[0] & 2) != 0 ? v1::SKIP_BAD_RECORDS : v1::REFUSE_BAD_RECORDS;
  v1::Data spec;
  if ((data[0] & 1) != 0) {
    v1::CsvData& csv = *spec.mutable_csv();
    csv.set_train(path);
    csv.set_label("y");
    csv.add_dense("a");
    csv.add_categorical("b");
    csv.add_categorical("c");
    csv.set_hash_buckets(kBuckets);
    csv.set_validation_fraction(0.5);
    csv.set_bad_records(bad_records);
  } else {
    spec.mutable_criteo()->set_train(path);
    spec.mutable_criteo()->set_hash_buckets(kBuckets);
    spec.mutable_criteo()->set_validation_fraction(0.5);
    spec.mutable_criteo()->set_bad_records(bad_records);
  }
  const auto dataset = data::OpenDataset(spec, plan::Windowing());
  if (!dataset.ok()) return 0;
  const plan::DataFacts facts = (*dataset)->facts();
  std::vector<float> inputs(static_cast<size_t>(facts.dense + facts.categorical));
  for (const data::Split split : {data::Split::kTrain, data::Split::kValidation}) {
    for (int64_t sample = 0; sample < (*dataset)->size(split); ++sample) {
      int32_t target = -1;
      const absl::Status filled = (*dataset)->Fill(split, {sample}, inputs.data(), &target);
      TY_CHECK(filled.ok(), filled.ToString());
      TY_CHECK(target == 0 || target == 1, target);
      for (int64_t i = 0; i < facts.dense; ++i) TY_CHECK(std::isfinite(inputs[i]), inputs[i]);
      for (int64_t i = facts.dense; i < facts.dense + facts.categorical; ++i) {
        int32_t id = 0;
        std::memcpy(&id, &inputs[i], sizeof(id));
        TY_CHECK(id >= 0 && id < kBuckets, id);
      }
    }
  }
  return 0;
}
