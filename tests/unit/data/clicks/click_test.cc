// Clicks: CSV, Criteo TSV, and those that are generated.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/open_dataset.h"
#include "executor/data/read_facts.h"
#include "executor/plan/spec/facts.h"
#include "tests/unit/data/files.h"

namespace trainyard::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct ClickBatch {
  std::vector<float> dense;
  std::vector<int32_t> ids, targets;
};

ClickBatch Take(const Dataset& dataset, Split split, const std::vector<int64_t>& samples) {
  const plan::DataFacts& facts = dataset.facts();
  const size_t dense = samples.size() * facts.dense, ids = samples.size() * facts.categorical;
  std::vector<int32_t> inputs(dense + ids, -7);
  EXPECT_EQ(dataset.input_bytes() * samples.size(), inputs.size() * 4);
  ClickBatch taken{.targets = std::vector<int32_t>(samples.size(), -7)};
  EXPECT_TRUE(dataset.Fill(split, samples, inputs.data(), taken.targets.data()).ok());
  const auto* floats = reinterpret_cast<const float*>(inputs.data());
  taken.dense.assign(floats, floats + dense);
  taken.ids.assign(inputs.begin() + dense, inputs.end());
  return taken;
}

void ExpectRefused(const v1::Data& data, const std::string& message) {
  for (const absl::Status& status : {OpenDataset(data, 0).status(), ReadFacts(data).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

class Clicks : public testing::Test {
 protected:
  v1::Data Csv(const std::string& content) {
    v1::Data data;
    v1::CsvData& csv = *data.mutable_csv();
    csv.set_train(folder_.Write("train.csv", content));
    csv.set_label("click");
    csv.add_dense("price");
    csv.add_dense("age");
    csv.add_categorical("city");
    csv.set_hash_buckets(1000);
    csv.set_validation_fraction(0.25);
    csv.set_bad_records(v1::REFUSE_BAD_RECORDS);
    return data;
  }

  v1::Data Criteo(const std::string& content) {
    v1::Data data;
    v1::CriteoData& criteo = *data.mutable_criteo();
    criteo.set_train(folder_.Write("train.tsv", content));
    criteo.set_hash_buckets(1000);
    criteo.set_validation_fraction(0.25);
    criteo.set_bad_records(v1::REFUSE_BAD_RECORDS);
    return data;
  }

  Folder folder_;
};

const char kCsv[] =
    "age,city,other,click,price\n"
    "30,Berlin,x,1,2.5\n"
    "31,Paris,y,0,-1e3\r\n"
    ",Berlin,\"a \"\"quoted\"\", one\",0,\n"
    "33,\"Berlin\",z,1,0";

TEST_F(Clicks, OfCsvAreReadByTheNamesOfTheirColumns) {
  for (const bool gzip : {false, true}) {
    const auto dataset = OpenDataset(Csv(gzip ? Gzip(kCsv) : std::string(kCsv)), 0);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    const plan::DataFacts& facts = (*dataset)->facts();
    EXPECT_EQ(facts.dense, 2);
    EXPECT_EQ(facts.categorical, 1);
    EXPECT_EQ(facts.buckets, 1000);
    EXPECT_EQ(facts.train_size, 3);
    EXPECT_EQ(facts.validation_size, 1);
    const ClickBatch train = Take(**dataset, Split::kTrain, {0, 1, 2, -1});
    EXPECT_THAT(train.dense, ElementsAre(2.5f, 30, -1000, 31, 0, 0, 0, 0));
    EXPECT_THAT(train.targets, ElementsAre(1, 0, 0, -1));
    EXPECT_EQ(train.ids[0], train.ids[2]);
    EXPECT_NE(train.ids[0], train.ids[1]);
    EXPECT_EQ(train.ids[3], 0);
    // The last row validates; quotes do not change a value.
    const ClickBatch held_out = Take(**dataset, Split::kValidation, {0});
    EXPECT_THAT(held_out.dense, ElementsAre(0, 33));
    EXPECT_EQ(held_out.ids[0], train.ids[0]);
  }
}

TEST_F(Clicks, OfAFileOfTheirOwnValidateThoughItsColumnsLieElsewhere) {
  v1::Data data = Csv(kCsv);
  data.mutable_csv()->set_validation(folder_.Write("validation.csv",
                                                   "\xEF\xBB\xBF"
                                                   "click,price,age,city\n1,7,8,Paris\n"));
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(Split::kTrain), 4);
  EXPECT_EQ((*dataset)->size(Split::kValidation), 1);
  const ClickBatch held_out = Take(**dataset, Split::kValidation, {0});
  EXPECT_THAT(held_out.dense, ElementsAre(7, 8));
  EXPECT_EQ(held_out.ids[0], Take(**dataset, Split::kTrain, {1}).ids[0]);
}

TEST_F(Clicks, OfBadCsvAreRefusedWithFileAndLine) {
  const std::string header = "click,price,age,city\n", good = "1,2,3,x\n";
  const std::pair<const char*, const char*> rows[] = {
      {"1,2,3\n", "train.csv: line 3: found 3 fields, expected 4 as in the header"},
      {"1,2,3,x,y\n", "line 3: found 5 fields, expected 4"},
      {"\n", "line 3: found 1 fields, expected 4"},
      {"2,2,3,x\n", "line 3: found label '2', expected 0 or 1"},
      {",2,3,x\n", "line 3: found label '', expected 0 or 1"},
      {"1,two,3,x\n", "line 3: column 'price': found 'two', expected a finite number or nothing"},
      {"1,nan,3,x\n", "line 3: column 'price': found 'nan'"},
      {"1,2,1e99,x\n", "line 3: column 'age': found '1e99'"},
      {"1,2,3,\"x\n", "line 3: found a quote that does not end"},
      {"1,2,3,\"x\"y\n", "line 3: found 'y' after the end of a quote, expected a comma"},
  };
  for (const auto& [row, message] : rows) ExpectRefused(Csv(header + good + row + good), message);
  ExpectRefused(Csv(""), "train.csv: is empty");
  ExpectRefused(Csv(header), "train.csv: holds no row");
  ExpectRefused(Csv(header + good), "1 rows are too few to cut a held-out split from");
  ExpectRefused(
      Csv("click,price,city\n"),
      "train.csv: found column 'age' of spec.data.csv.dense[1] 0 times in 3 columns, expected it "
      "once");
  ExpectRefused(Csv("click,price,Age,city\n"), "expected it once (did you mean 'Age'?)");
  ExpectRefused(Csv("click,price,age,city,click\n"),
                "found column 'click' of spec.data.csv.label 2");
  ExpectRefused(Csv(header + std::string(2'000'000, 'x')), "line 2: found more than 1048576 bytes");
  const std::string zipped = Gzip(header + good + good);
  ExpectRefused(Csv(zipped.substr(0, zipped.size() - 9)), "truncated gzip");
}

// The server reads what the user may not.
TEST_F(Clicks, OfAMissingColumnNoOtherIsTold) {
  const std::string secret = "root:x:0:0:secret,of,somebody,else\n";
  const std::string message(ReadFacts(Csv(secret)).status().message());
  for (const char* word : {"root", "secret", "somebody", "else"}) {
    EXPECT_THAT(message, testing::Not(HasSubstr(word)));
  }
}

// Its size is not known then, but what it will take is.
TEST_F(Clicks, OfALargeTableAreReadOnlyAtTheBeginningToPlanIt) {
  std::string text = "click,price,age,city\n";
  const std::string row = absl::StrCat("1,2,3,", std::string(1000, 'x'), "\n");
  constexpr int64_t kRows = 90'000;  // 90 MB
  for (int64_t i = 0; i < kRows; ++i) text += row;
  text += "a row that nobody sees\n";
  for (const bool gzip : {false, true}) {
    const auto facts = ReadFacts(Csv(gzip ? Gzip(text) : text));
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->dense, 2);
    EXPECT_EQ(facts->train_size, 0);
    EXPECT_EQ(facts->validation_size, 0);
    EXPECT_NEAR(static_cast<double>(facts->held_bytes), kRows * 13, kRows);
  }
  v1::Data data = Csv("click,price,age,city\n1,2,3,x\n");
  data.mutable_csv()->set_validation(folder_.Write("validation.csv", text));
  const auto facts = ReadFacts(data);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->train_size, 1);
  EXPECT_EQ(facts->validation_size, 0);
  EXPECT_NEAR(static_cast<double>(facts->held_bytes), kRows * 13, kRows);
}

TEST_F(Clicks, OfBadRecordsAreSkippedCountedAndNamedWhenAsked) {
  v1::Data data = Csv("click,price,age,city\n1,2,3,x\n1,2\n0,5,6,y\n7,7,7,z\n1,8,9,x\n");
  data.mutable_csv()->set_bad_records(v1::SKIP_BAD_RECORDS);
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(Split::kTrain), 2);
  EXPECT_EQ(ReadFacts(data)->train_size, 2);
  EXPECT_THAT(Take(**dataset, Split::kTrain, {0, 1}).dense, ElementsAre(2, 3, 5, 6));
  EXPECT_THAT(Take(**dataset, Split::kValidation, {0}).dense, ElementsAre(8, 9));
  EXPECT_THAT((*dataset)->TakeWarnings(),
              ElementsAre(HasSubstr(
                  "train.csv: skipped 2 of 5 rows; the first is line 3: found 2 fields")));
  EXPECT_THAT((*dataset)->TakeWarnings(), IsEmpty());
  data = Csv("click,price,age,city\n1,2\n");
  data.mutable_csv()->set_bad_records(v1::SKIP_BAD_RECORDS);
  ExpectRefused(data,
                "skipped 1 of 1 rows; the first is line 2: found 2 fields, expected 4 as in "
                "the header; none is left");
}

// A row of the challenge, with `first` and `last` of its integers and values.
std::string Row(const std::string& label, const std::string& first, const std::string& last) {
  std::string row = label + "\t" + first;
  for (int i = 2; i <= 13; ++i) absl::StrAppend(&row, "\t", i);
  for (int i = 1; i <= 25; ++i) absl::StrAppend(&row, "\t0000000a");
  return row + "\t" + last + "\n";
}

TEST_F(Clicks, OfCriteoAreLogarithmsAndHashes) {
  const auto dataset = OpenDataset(Criteo(Row("1", "9", "68fd1e64") + Row("0", "", "68FD1E64") +
                                          Row("0", "-2", "") + Row("1", "0", "a")),
                                   0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->facts().dense, 13);
  EXPECT_EQ((*dataset)->facts().categorical, 26);
  const ClickBatch train = Take(**dataset, Split::kTrain, {0, 1, 2});
  EXPECT_FLOAT_EQ(train.dense[0], std::log(10.0f));
  EXPECT_FLOAT_EQ(train.dense[12], std::log(14.0f));
  EXPECT_EQ(train.dense[13], 0);  // empty
  EXPECT_EQ(train.dense[26], 0);  // negative
  EXPECT_THAT(train.targets, ElementsAre(1, 0, 0));
  EXPECT_EQ(train.ids[25], train.ids[51]);  // letters of either case
  EXPECT_NE(train.ids[25], train.ids[77]);
  EXPECT_EQ(train.ids[0], Take(**dataset, Split::kValidation, {0}).ids[25]);  // 0000000a is a
  // Checkpoints depend on it: a hash does not change from one version to the next.
  EXPECT_EQ(train.ids[25], 374);
}

TEST_F(Clicks, OfBadCriteoAreRefusedWithFileAndLine) {
  const std::string good = Row("1", "9", "68fd1e64");
  const std::pair<std::string, const char*> rows[] = {
      {"1\t2\t3\n", "train.tsv: line 2: found 3 fields, expected 40"},
      {absl::StrReplaceAll(good, {{"\n", "\t\n"}}), "line 2: found 41 fields, expected 40"},
      {Row("x", "9", "a"), "line 2: found label 'x', expected 0 or 1"},
      {Row("1", "9.5", "a"), "line 2: field 2: found '9.5', expected an integer or nothing"},
      {Row("1", "9", "123456789"),
       "line 2: field 40: found '123456789', expected up to 8 hexadecimal digits or nothing"},
      {Row("1", "9", "0xab"), "line 2: field 40: found '0xab'"},
      {Row("1", "9", "-1"), "line 2: field 40: found '-1'"},
  };
  for (const auto& [row, message] : rows) ExpectRefused(Criteo(good + row + good), message);
}

TEST_F(Clicks, HashToEveryBucketAndToNothingElse) {
  std::string content = "click,price,age,city\n";
  for (int i = 0; i < 400; ++i) absl::StrAppend(&content, "1,2,3,", i, "\n");
  v1::Data data = Csv(content);
  data.mutable_csv()->set_hash_buckets(7);
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::map<int32_t, int> seen;
  for (int64_t i = 0; i < 300; ++i) ++seen[Take(**dataset, Split::kTrain, {i}).ids[0]];
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(seen.begin()->first, 0);
  EXPECT_EQ(seen.rbegin()->first, 6);
  for (const auto& [bucket, count] : seen) EXPECT_GT(count, 20) << bucket;
}

v1::Data Generated(int64_t samples) {
  v1::Data data;
  v1::ClicksData& clicks = *data.mutable_clicks();
  clicks.set_train_samples(int64_t{1} << 40);
  clicks.set_validation_samples(samples);
  clicks.set_dense(3);
  clicks.set_categorical(5);
  clicks.set_categories(10);
  clicks.set_seed(4);
  return data;
}

TEST(GeneratedClicks, AreAFunctionOfSeedAndSample) {
  v1::Data data = Generated(100);
  const auto one = OpenDataset(data, 0).value(), two = OpenDataset(data, 0).value();
  const std::vector<int64_t> samples = {0, 5, (int64_t{1} << 40) - 1};
  const ClickBatch a = Take(*one, Split::kTrain, samples);
  Take(*two, Split::kTrain, {7});
  const ClickBatch b = Take(*two, Split::kTrain, samples);
  EXPECT_EQ(a.dense, b.dense);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.targets, b.targets);
  EXPECT_NE(Take(*one, Split::kValidation, {0}).dense, Take(*one, Split::kTrain, {0}).dense);
  data.mutable_clicks()->set_seed(5);
  EXPECT_NE(Take(*OpenDataset(data, 0).value(), Split::kTrain, samples).dense, a.dense);
}

TEST(GeneratedClicks, HaveTheMomentsOfTheirLaw) {
  constexpr int64_t kSamples = 20'000;
  const auto dataset = OpenDataset(Generated(kSamples), 0).value();
  std::vector<int64_t> all(kSamples);
  for (int64_t i = 0; i < kSamples; ++i) all[i] = i;
  const ClickBatch samples = Take(*dataset, Split::kValidation, all);
  double sum = 0, squares = 0;
  for (const float x : samples.dense) sum += x, squares += x * x;
  EXPECT_NEAR(sum / samples.dense.size(), 0, 0.02);
  EXPECT_NEAR(squares / samples.dense.size(), 1, 0.02);
  std::map<int32_t, double> share;
  for (const int32_t id : samples.ids) share[id] += 1.0 / samples.ids.size();
  EXPECT_EQ(share.size(), 10u);
  // u^2 < (k + 1) / 10.
  EXPECT_NEAR(share[0], std::sqrt(0.1), 0.01);
  EXPECT_NEAR(share[9], 1 - std::sqrt(0.9), 0.01);
  double clicks = 0;
  for (const int32_t target : samples.targets) clicks += target;
  EXPECT_GT(clicks / kSamples, 0.1);
  EXPECT_LT(clicks / kSamples, 0.5);
  // Better than chance, short of certainty, and not by chance of a few samples.
  EXPECT_GT(*dataset->BestAuc(kSamples), 0.75);
  EXPECT_LT(*dataset->BestAuc(kSamples), 0.95);
  EXPECT_NEAR(*dataset->BestAuc(kSamples), *dataset->BestAuc(kSamples / 2), 0.02);
  EXPECT_EQ(*dataset->BestAuc(kSamples), *dataset->BestAuc(kSamples));
}

TEST(GeneratedClicks, NeedNoFileToBePlanned) {
  EXPECT_EQ(DeclaredFacts(Generated(100))->train_size, int64_t{1} << 40);
  EXPECT_EQ(ReadFacts(Generated(100))->buckets, 10);
}

}  // namespace
}  // namespace trainyard::data
