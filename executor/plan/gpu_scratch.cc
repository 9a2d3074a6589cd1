#include "executor/plan/gpu_scratch.h"

#include <algorithm>
#include <initializer_list>
#include <variant>

#include "executor/plan/scratch.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kSector = 256;  // to which libraries' workspaces, and pieces of a batch, align

// Of products (kernels/cuda/cublas.h); of convolutions (convolution_plan.h) and the gradients of
// scores that a run of attention makes at once (attention_cudnn.h).
constexpr int64_t kProduct = 32 * kMiB;
constexpr int64_t kMostOfCudnn = 256 * kMiB;

// Sums over rows go by at most so many chunks, those of double precision by so many blocks, ids are
// sorted so many at once.
constexpr int64_t kRowChunks = 256;
constexpr int64_t kSumBlocks = 1024;
constexpr int64_t kSortedPlaces = 1024;
constexpr int64_t kCorrections = 16;  // of a step's moments, and a ratio

int64_t RowSums(int64_t rows, int64_t cols) { return kFloat * std::min(rows, kRowChunks) * cols; }
int64_t SortedIds(int64_t places) { return 8 * RoundUp(places, kSortedPlaces); }

struct ScratchOf {
  const std::vector<Tensor>& tensors;

  // A bias in the type of c goes beside.
  int64_t operator()(const Matmul& o) const { return kProduct + kSector + kFloat * o.n; }
  int64_t operator()(const AddProduct& o) const { return kProduct + kSector + kFloat * o.n; }

  // The weights, in cuDNN's order, lie beside, and the sums of a bias.
  int64_t Convolution(const ConvolutionShape& s) const {
    const int64_t weights = kFloat * s.out * (s.in / s.groups) * s.kernel_height * s.kernel_width;
    return kSector + RoundUp(weights, kSector) + kMostOfCudnn;
  }
  int64_t operator()(const ConvolutionForward& o) const { return Convolution(o.shape); }
  int64_t operator()(const ConvolutionBackwardData& o) const { return Convolution(o.shape); }
  int64_t operator()(const ConvolutionBackwardWeights& o) const {
    return Convolution(o.shape) + (o.dbias == kNone ? 0 : RowSums(kRowChunks, o.shape.out));
  }

  // cuDNN's forward pass wanted less than this wherever it was asked (tests/gpu/cudnn_plans_test).
  int64_t operator()(const AttentionForward&) const { return kMiB; }
  // By our own kernels a number per row and head. By cuDNN's as many heads at once as the limit
  // allows, at least those that share keys: their gradients of scores in tiles of 128, a number and
  // gradients of keys and values per row.
  int64_t operator()(const AttentionBackward& o) const {
    const int64_t group = o.heads / o.kv_heads, tiles = RoundUp(o.time, 128);
    const int64_t most = std::max(group, kMostOfCudnn / (2 * o.time * o.time));
    const int64_t heads = std::min(o.batch * o.heads, most);
    const int64_t rows = heads * o.time;
    const int64_t by_cudnn = 2 * heads * tiles * tiles + kMiB + kFloat * rows * (1 + o.head_dim);
    const bool narrow = tensors[o.qkv].type != ElementType::kF32;
    return std::max(kFloat * o.batch * o.heads * o.time, narrow ? by_cudnn : 0);
  }

  int64_t operator()(const BatchNormBackward& o) const {
    return 2 * RowSums(o.rows, o.cols) + 3 * kFloat * o.cols;
  }
  int64_t operator()(const BatchNormForward& o) const { return 2 * RowSums(o.rows, o.cols); }
  int64_t operator()(const ColumnSum& o) const { return RowSums(o.rows, o.cols); }
  int64_t operator()(const LayerNormBackward& o) const { return 2 * RowSums(o.rows, o.cols); }
  int64_t operator()(const EmbeddingBackward& o) const { return SortedIds(o.batch * o.time); }
  int64_t operator()(const EmbeddingTablesBackward& o) const {
    return static_cast<int64_t>(o.gradients.size()) * SortedIds(o.batch);
  }
  int64_t operator()(const MergeRows& o) const { return o.count * SortedIds(o.samples); }
  int64_t operator()(const LambStep&) const { return 8 * 2 * kSumBlocks + kCorrections; }
  int64_t operator()(const AdamWStep&) const { return kCorrections; }
  int64_t operator()(const AdamWRows&) const { return kCorrections; }
  int64_t operator()(const CountTargets&) const { return 8 * kSumBlocks; }
  int64_t operator()(const SquaredNorm&) const { return 8 * kSumBlocks; }
  int64_t operator()(const Sum&) const { return 8 * kSumBlocks; }

  // All others work in place.
  template <typename Other>
  int64_t operator()(const Other&) const {
    return 0;
  }
};

}  // namespace

int64_t GpuScratchBytes(const std::vector<Tensor>& tensors, const Op& op) {
  return std::visit(ScratchOf{tensors}, op);
}

int64_t UploadQueueBytes(const Plan& plan) {
  const auto bytes = [&](std::initializer_list<TensorId> ids) {
    int64_t sum = 0;
    for (const TensorId id : ids) {
      if (id != kNone) sum += RoundUp(plan.tensors[id].bytes(), kSector);
    }
    return sum;
  };
  return std::max(bytes({plan.state, plan.input, plan.ids, plan.target}),
                  bytes({plan.eval_input, plan.eval_ids, plan.eval_target}));
}

}  // namespace trainyard::plan
