#include "executor/data/clicks/click_files.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/data/clicks/click_samples.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// Of a row in memory: features of 4 bytes, and whether it is a click.
int64_t RowBytes(const plan::DataFacts& shape) { return 4 * (shape.dense + shape.categorical) + 1; }

// Rows in blocks, so that a growing table is never copied.
class Rows {
 public:
  explicit Rows(const plan::DataFacts& shape)
      : dense_(shape.dense), ids_(shape.categorical), row_bytes_(RowBytes(shape)) {}

  void Add(const float* dense, const int32_t* ids, bool click) {
    if (size_ % kBlockRows == 0) {
      blocks_.push_back({std::make_unique<float[]>(kBlockRows * dense_),
                         std::make_unique<int32_t[]>(kBlockRows * ids_),
                         std::make_unique<bool[]>(kBlockRows)});
    }
    const int64_t row = size_++ % kBlockRows;
    std::copy_n(dense, dense_, blocks_.back().dense.get() + row * dense_);
    std::copy_n(ids, ids_, blocks_.back().ids.get() + row * ids_);
    blocks_.back().clicks[row] = click;
  }

  bool Read(int64_t row, float* dense, int32_t* ids) const {
    const Block& block = blocks_[row / kBlockRows];
    row %= kBlockRows;
    std::copy_n(block.dense.get() + row * dense_, dense_, dense);
    std::copy_n(block.ids.get() + row * ids_, ids_, ids);
    return block.clicks[row];
  }

  int64_t bytes() const { return static_cast<int64_t>(blocks_.size()) * kBlockRows * row_bytes_; }

 private:
  static constexpr int64_t kBlockRows = 4096;
  struct Block {
    std::unique_ptr<float[]> dense;
    std::unique_ptr<int32_t[]> ids;
    std::unique_ptr<bool[]> clicks;
  };

  int64_t dense_, ids_, row_bytes_;
  int64_t size_ = 0;
  std::vector<Block> blocks_;
};

// So much text is read to know the size of a table: half a second's worth.
constexpr int64_t kMostBytesCounted = int64_t{64} << 20;

// What reading a file found.
struct Count {
  int64_t rows = 0;
  bool whole = true;  // else `rows` is an estimate for all of the file
  int64_t skipped = 0;
  std::string warning;
};

// `rows` may be null: the file is only checked and counted, its first kMostBytesCounted bytes at
// least.
absl::StatusOr<Count> ReadFile(const ClickFiles& files, const std::string& uri, Rows* rows) {
  TY_ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(uri));
  TY_ASSIGN_OR_RETURN(const ParseRow parse, files.open(lines));
  Count count;
  std::string line, first;
  std::vector<float> dense(files.shape.dense);
  std::vector<int32_t> ids(files.shape.categorical);
  for (;;) {
    TY_ASSIGN_OR_RETURN(const bool more, lines.Next(line));
    if (!more) break;
    if (rows == nullptr && lines.bytes() > kMostBytesCounted && lines.progress() < 1) {
      count.whole = false;
      count.rows = static_cast<int64_t>(static_cast<double>(count.rows) / lines.progress());
      break;
    }
    bool click = false;
    const absl::Status status = parse(line, dense.data(), ids.data(), click);
    if (status.ok()) {
      ++count.rows;
      if (rows != nullptr) rows->Add(dense.data(), ids.data(), click);
      continue;
    }
    if (!files.skip_bad_records) {
      return Annotate(status, absl::StrCat(lines.path(), ": line ", lines.number()));
    }
    if (count.skipped++ == 0) first = absl::StrCat("line ", lines.number(), ": ", status.message());
  }
  if (count.skipped > 0) {
    count.warning = absl::StrCat(lines.path(), ": skipped ", count.skipped, " of ",
                                 count.skipped + count.rows, " rows; the first is ", first);
  }
  if (count.rows == 0) {
    return absl::InvalidArgumentError(count.skipped > 0
                                          ? absl::StrCat(count.warning, "; none is left")
                                          : absl::StrCat(lines.path(), ": holds no row"));
  }
  return count;
}

struct Table {
  plan::DataFacts facts;
  Rows train, own_validation;  // the latter from a file of its own
  std::string warning;
};

absl::StatusOr<Table> ReadTable(const ClickFiles& files, bool keep) {
  Table table{files.shape, Rows(files.shape), Rows(files.shape), ""};
  TY_ASSIGN_OR_RETURN(const Count train,
                      ReadFile(files, files.train, keep ? &table.train : nullptr));
  const auto size = [&](const Count& count) {
    table.facts.held_bytes += count.rows * RowBytes(files.shape);
    return count.whole ? count.rows : 0;
  };
  table.facts.train_size = size(train);
  table.warning = train.warning;
  if (!files.validation.empty()) {
    TY_ASSIGN_OR_RETURN(const Count validation,
                        ReadFile(files, files.validation, keep ? &table.own_validation : nullptr));
    table.facts.validation_size = size(validation);
    const bool both = !table.warning.empty() && !validation.warning.empty();
    absl::StrAppend(&table.warning, both ? "; " : "", validation.warning);
    return table;
  }
  if (!train.whole) return table;
  table.facts.validation_size = std::max<int64_t>(
      1, std::llround(static_cast<double>(train.rows) * files.validation_fraction));
  table.facts.train_size -= table.facts.validation_size;
  if (table.facts.train_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        files.train, ": ", train.rows, " rows are too few to cut a held-out split from"));
  }
  return table;
}

class ClickTable : public ClickSamples {
 public:
  ClickTable(Table table, bool own_validation)
      : ClickSamples(table.facts), table_(std::move(table)), own_validation_(own_validation) {
    if (!table_.warning.empty()) warnings_.Add(table_.warning);
  }

  int64_t bytes() const override { return table_.train.bytes() + table_.own_validation.bytes(); }

 protected:
  bool Read(Split split, int64_t sample, float* dense, int32_t* ids) const override {
    if (split == Split::kTrain) return table_.train.Read(sample, dense, ids);
    if (own_validation_) return table_.own_validation.Read(sample, dense, ids);
    return table_.train.Read(facts_.train_size + sample, dense, ids);
  }

 private:
  const Table table_;
  const bool own_validation_;
};

}  // namespace

absl::StatusOr<plan::DataFacts> ClickFileFacts(const ClickFiles& files) {
  TY_ASSIGN_OR_RETURN(const Table table, ReadTable(files, /*keep=*/false));
  return table.facts;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenClickFiles(const ClickFiles& files) {
  TY_ASSIGN_OR_RETURN(Table table, ReadTable(files, /*keep=*/true));
  return std::make_unique<ClickTable>(std::move(table), !files.validation.empty());
}

int32_t Bucket(uint64_t hash, int64_t buckets) {
  hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdu;
  hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53u;
  hash ^= hash >> 33;
  return static_cast<int32_t>((static_cast<unsigned __int128>(hash) * buckets) >> 64);
}

absl::Status ParseClick(absl::string_view field, bool& click) {
  click = field == "1";
  if (click || field == "0") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("found label '", field.substr(0, 40), "', expected 0 or 1"));
}

}  // namespace trainyard::data
