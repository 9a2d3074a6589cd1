// Byte-level BPE from the command line, for tokenizers.py and the benchmark.
//
//   tokenize train TEXT VOCAB_SIZE            writes tokenizer.json to stdout
//   tokenize encode TOKENIZER_JSON TEXTS      TEXTS: a JSON array of texts; writes their ids alike
//   tokenize time TOKENIZER_JSON TEXT ROUNDS  seconds of each encoding, one per line
//   tokenize time-train TEXT VOCAB_SIZE ROUNDS

#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "executor/data/tokenizer/bpe_trainer.h"
#include "executor/data/tokenizer/tokenizer_json.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::data {
namespace {

void PrintSeconds(int64_t rounds, absl::FunctionRef<void()> work) {
  for (int64_t i = 0; i < rounds; ++i) {
    const absl::Time start = absl::Now();
    work();
    std::cout << absl::ToDoubleSeconds(absl::Now() - start) << '\n';
  }
}

absl::Status Encode(const Bpe& bpe, const std::string& texts) {
  nlohmann::json all = nlohmann::json::array();
  for (const nlohmann::json& text : nlohmann::json::parse(texts)) {
    TY_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, bpe.Encode(text.get<std::string>()));
    TY_CHECK(bpe.Decode(ids) == text.get<std::string>() || bpe.model().add_prefix_space,
             "decoding");
    all.push_back(ids);
  }
  std::cout << all << '\n';
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& words) {
  const std::string usage = "tokenize train|encode|time|time-train …: see tokenize.cc";
  if (words.size() < 3) return absl::InvalidArgumentError(usage);
  TY_ASSIGN_OR_RETURN(const std::string first, ReadFile(words[1]));
  const auto number = [&](size_t i) {
    int64_t n = 0;
    TY_CHECK(i < words.size() && absl::SimpleAtoi(words[i], &n), usage);
    return n;
  };
  if (words[0] == "train") {
    TY_ASSIGN_OR_RETURN(const BpeModel model, TrainBpe(first, number(2)));
    std::cout << BpeToJson(model);
    return absl::OkStatus();
  }
  if (words[0] == "time-train") {
    PrintSeconds(number(3), [&] { TY_CHECK(TrainBpe(first, number(2)).ok(), "training"); });
    return absl::OkStatus();
  }
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<const Bpe> bpe, BpeFromJson(first));
  TY_ASSIGN_OR_RETURN(const std::string second, ReadFile(words[2]));
  if (words[0] == "encode") return Encode(*bpe, second);
  PrintSeconds(number(3), [&] {
    int64_t tokens = 0;
    TY_CHECK(bpe->ForEachId(second, [&](int32_t) { ++tokens; }).ok(), "encoding");
    std::cerr << tokens << " tokens\n";
  });
  return absl::OkStatus();
}

}  // namespace
}  // namespace trainyard::data

int main(int argc, char** argv) {
  const absl::Status status = trainyard::data::Main({argv + 1, argv + argc});
  if (!status.ok()) std::cerr << "tokenize: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
