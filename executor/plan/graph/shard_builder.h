#pragma once

// Layers of a transformer that are cut into the shards of tensor parallelism (Shoeybi et al. 2019,
// Megatron-LM). With one shard every method writes what GraphBuilder would.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "executor/plan/graph/graph_builder.h"

namespace trainyard::plan {

// The shards that `n` things (heads, columns, tokens) are cut into: shard s of `shards` has those
// from n * s / shards to n * (s + 1) / shards. Those that have none are left out.
std::vector<Run> CutIn(int64_t shards, int64_t n);

// The same of `heads` heads of queries, of which neighbours share one of `kv_heads` heads of keys
// and values: these stay together or, where there are fewer than shards, several shards share one,
// and each has it.
std::vector<Run> CutHeads(int64_t shards, int64_t heads, int64_t kv_heads);

class ShardBuilder {
 public:
  explicit ShardBuilder(GraphBuilder& builder) : builder_(builder) {}

  std::vector<Run> Cut(int64_t n) const { return CutIn(builder_.shards_, n); }
  std::vector<Run> CutHeads(int64_t heads, int64_t kv_heads) const {
    return plan::CutHeads(builder_.shards_, heads, kv_heads);
  }

  // What one shard is asked for.
  struct Shard {
    int64_t number = 0, count = 1;  // which of how many that have something
    Run things;
    uint32_t dropout = 0;  // the stream of its dropout
  };

  // Some of the columns of something that is cut along them.
  struct Columns {
    int64_t all = 0;
    std::vector<Run> held;
    int64_t size() const;
  };

  // y [rows of x, cols] = what `each` makes of x, summed over the shards, + the bias `name`.bias.
  // `each` is given its shard of the things that were cut into `cut` and x, and ends with LinearOut
  // of `name`.
  struct SumOptions {
    std::string name;
    std::vector<Run> cut;
    int64_t cols = 0;
    bool bias = false, dropout = false;  // whether there is a dropout within
  };
  using Each = std::function<TensorId(const Shard& shard, TensorId x)>;
  TensorId Sum(TensorId x, const SumOptions& options, const Each& each);

  // GraphBuilder::Linear, of which a shard has some outputs, or some inputs: then its result is a
  // part of a sum, without bias.
  using LinearOptions = GraphBuilder::LinearOptions;
  TensorId LinearIn(const std::string& name, const Shard& shard, TensorId x, int64_t rows,
                    int64_t in, const Columns& out, const LinearOptions& options);
  TensorId LinearOut(const std::string& name, const Shard& shard, TensorId x, int64_t rows,
                     const Columns& in, int64_t out, const LinearOptions& options);

  // GraphBuilder::LinearSideBySide, of which a shard has of each part those outputs.
  using LinearPart = GraphBuilder::LinearPart;
  TensorId SideBySide(const std::string& name, const Shard& shard, TensorId x, int64_t rows,
                      int64_t in, const std::vector<LinearPart>& parts,
                      const std::vector<Run>& held, double std, bool bias = false);

  // GraphBuilder::Drop on some columns.
  TensorId Drop(const std::string& name, const Shard& shard, TensorId x, double p,
                const Columns& cols);

  // A table [vocab, width] of tokens, by its shards.
  using Vocabulary = std::vector<TensorId>;
  Vocabulary Tokens(const std::string& name, int64_t vocab, int64_t width, double std);
  // For a second use of a table: the same or, where uses are apart, another that begins with the
  // same values and gets the same gradient, that of both (passes/fold_replicas.h).
  Vocabulary Again(const Vocabulary& tokens);
  // GraphBuilder::Embedding; positions: kNone, or [time, width].
  TensorId Embedding(const std::string& name, TensorId ids, const Vocabulary& tokens,
                     TensorId positions, int64_t time);
  // x [rows, width] times each shard's part of the table: [rows, tokens of the shard]. bias: the
  // name of what is added, "": nothing.
  std::vector<TensorId> Logits(const std::string& name, TensorId x, const Vocabulary& tokens,
                               int64_t rows, const std::string& bias = "");

 private:
  bool whole() const { return builder_.shards_ == 1; }
  std::string NameOf(const std::string& name, int64_t shard) const;
  // `dims` are those of the whole.
  TensorId ParameterShard(const std::string& name, const Shard& shard, std::vector<int64_t> dims,
                          std::vector<Run> rows, std::vector<Run> cols, double std,
                          std::vector<Part> parts = {});
  std::vector<TensorId> Spread(TensorId x, size_t count);

  GraphBuilder& builder_;
};

// Puts what was spread in the place of its copies, which the backward pass alone told apart.
// Returns how many ops are left out.
size_t JoinCopies(Graph& graph);

}  // namespace trainyard::plan
