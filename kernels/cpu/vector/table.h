#pragma once

// The inner loops of the CPU back end, compiled once per instruction set. Every function is serial,
// allocates nothing, and works on the range that it is given; ../*.cc cut the ranges and hold the
// threads. Shapes are those of kernels/ops.

#include <cstddef>
#include <cstdint>

#include "kernels/element.h"
#include "kernels/scratch/weight_gradient_depth.h"

namespace trainyard::kernels {

struct StepState;

// The mean of each column over rows [0, rows), at least one, and the sum of squares around it.
template <typename T>
struct BatchNormMoments {
  const T* x;
  float *mean, *squares;
  int64_t rows, cols;
};

// Rows [0, rows): y = relu?((x - mean) * scale + beta + residual?)
template <typename T>
struct BatchNormRows {
  const T* x;
  const float *mean, *scale, *beta;
  const T* residual;  // may be null, may be y
  T* y;               // may be x
  int64_t rows, cols;
  bool relu;
};

// Rows [0, rows), g = dy where y > 0: sum of g, dot = sum of g * (x - mean), dresidual = g.
template <typename T>
struct BatchNormSums {
  const T *dy, *x;
  const T* y;  // null: g = dy
  const float* mean;
  T* dresidual;  // may be null, may be dy
  float *sum, *dot;
  int64_t rows, cols;
};

// Rows [0, rows): dx = g * of_g + (x - mean) * of_d + plus; dx may be x.
template <typename T>
struct BatchNormGradient {
  const T *dy, *x;
  const T* y;  // null: g = dy
  const float *mean, *of_g, *of_d, *plus;
  T* dx;
  int64_t rows, cols;
};

// Rows [0, rows) of a layer norm.
template <typename T>
struct LayerNormRows {
  const float* x;
  const float* gamma;
  const float* beta;  // may be null
  T* y;
  float* mean;  // may be null: RMSNorm
  float* rstd;
  int64_t rows, cols;
  float epsilon;
};

// Rows [0, rows); dgamma and dbeta receive this run's sums (overwritten). dx, dgamma and dbeta may
// be null.
template <typename T>
struct LayerNormBackwardRows {
  const T* dy;
  const float* x;
  const float* gamma;
  const float* mean;  // may be null: RMSNorm
  const float* rstd;
  float* dx;
  float* dgamma;
  float* dbeta;
  int64_t rows, cols;
  bool accumulate_dx;
};

// `group` heads of one sequence that share k and v. Rows of q, k, v (and their gradients) lie `row`
// elements apart, those of y and dy `y_row`. The next head's q and y (and their gradients) lie
// head_dim further, its lse lies `time` further. Queries see the first `keys` keys only. scratch:
// as many floats as scratch::AttentionFloats says.
template <typename T>
struct AttentionHeads {
  const T *q, *k, *v;
  T* y;
  float* lse;
  int64_t row, y_row, group, time, keys, head_dim;
  float scale;
  bool causal;
  float* scratch;
};

template <typename T>
struct AttentionHeadsBackward {
  const T *q, *k, *v, *dy, *y;
  const float* lse;
  T *dq, *dk, *dv;
  int64_t row, y_row, group, time, keys, head_dim;
  float scale;
  bool causal;
  float* scratch;
};

template <typename T>
struct CrossEntropyRows {
  const T* logits;
  const int32_t* targets;
  float* losses;
  float* z_losses;  // may be null
  float* correct;   // may be null
  T* dlogits;       // may be null, may be logits
  int64_t rows, classes;
  int64_t step;  // elements from one row of logits, and of dlogits, to the next
  float scale, smoothing, z_loss;
};

// kernels/ops/cross_entropy_shards.h says what these rows are.
template <typename T>
struct CrossEntropyShardRows {
  const T* logits;
  const int32_t* targets;
  float* statistics;
  int64_t rows, classes, first;
  bool with_mean, with_first_largest;
};

struct CrossEntropyOfShardsRows {
  const float* const* statistics;  // by shard
  int64_t shards;
  const int32_t* targets;
  float* losses;
  float* z_losses;  // may be null
  float* correct;   // may be null
  float* norms;     // may be null
  int64_t rows, classes;
  float smoothing, z_loss;
};

template <typename T>
struct CrossEntropyShardGradientRows {
  const T* logits;
  const int32_t* targets;
  const float* norms;
  T* dlogits;  // may be logits
  int64_t rows, classes, first, all_classes;
  float scale, smoothing, z_loss;
};

struct BinaryCrossEntropyRows {
  const float* logits;
  const int32_t* targets;
  float* losses;
  float* correct;  // may be null
  float* dlogits;  // may be null, may be logits
  int64_t rows;
  float scale;
};

// Samples [0, samples). scratch: as many floats as scratch::InteractionFloats says.
template <typename T>
struct InteractionSamples {
  const T *x, *e;
  T* y;
  int64_t samples, count, width;
  float* scratch;
};

template <typename T>
struct InteractionBackwardSamples {
  const T *dy, *x, *e;
  T *dx, *de;  // may be null
  int64_t samples, count, width;
  float* scratch;
};

struct AdamWRange {
  float *w, *m, *v;
  const float* grad;
  int64_t n;
  float grad_scale, beta1, beta2, epsilon;
  float decay;            // lr * weight_decay
  float step_size;        // lr / (1 - beta1^t)
  float inverse_sqrt_c2;  // 1 / sqrt(1 - beta2^t)
};

struct SgdRange {
  float *w, *velocity;  // velocity may be null
  const float* grad;
  int64_t n;
  float grad_scale, lr, momentum, weight_decay;
  bool first;  // velocity holds nothing yet
  bool nesterov;
};

struct LambRange {
  float *w, *m, *v;
  const float* grad;
  int64_t n;
  float grad_scale, beta1, beta2, epsilon, weight_decay;
  float inverse_c1;       // 1 / (1 - beta1^t)
  float inverse_sqrt_c2;  // 1 / sqrt(1 - beta2^t)
};

struct LambSquares {
  double w, u;  // sums of squares
};

struct DrawRange {
  float* x;
  uint64_t seed, stream;
  int64_t first, n;
  double std;
};

struct MuonRange {
  float* velocity;
  const float* grad;
  float* y;
  int64_t n;
  float grad_scale, momentum;
  bool nesterov;
};

// One sample of a dropout: elements [begin, begin + n) of it; begin is a multiple of 4.
template <typename T>
struct DropoutRange {
  const T* x;
  T* y;
  int64_t begin, n;
  uint64_t seed;
  uint32_t stream;
  int64_t step, sample;
  float p;
};

// One row of y; x, y and index begin at the image.
template <typename T>
struct MaxPoolRow {
  const T* x;
  T* y;
  uint8_t* index;
  int64_t row;
  int64_t height, width, channels, window, stride, pad, out_width;
};

// One row of dx; all begin at the image.
template <typename T>
struct MaxPoolBackwardRow {
  const T* dy;
  const uint8_t* index;
  T* dx;
  int64_t row;
  int64_t out_height, width, channels, window, stride, pad, out_width;
};

// c[i * c_row + j] (+)= sum over p < depth of a(i, p) * b(p, j) for i < rows and j < cols. b lies
// in panels of `lanes` columns: b[j / lanes * b_panel + p * lanes + j % lanes]. So does a if a_row
// is 1 and a_step lanes; or its rows lie n apart, with a_row n, a_step 1 and a_panel lanes * n.
// Both are readable up to a multiple of a panel's rows and columns.
struct PanelProduct {
  const float* a;
  int64_t a_row, a_step, a_panel;
  const float* b;
  int64_t b_panel, depth;
  float* c;
  int64_t c_row, rows, cols;
  bool accumulate;
};

// Tiles of Winograd's F(4x4, 3x3) in a batch of images [height, width, channels]: tile i of `tiles`
// is number first + i of the batch, counted row by row in each image.
template <typename T>
struct WinogradImage {
  T* data;
  int64_t height, width, channels;
  int64_t first, tiles;
};

// The 36 values of each tile, each in a plane of its own. Value k of tile i and channel c lies at
//   k * plane + i * tile + c / lanes * chunk + c % lanes
struct WinogradPlanes {
  float* data;
  int64_t plane, tile, chunk;
};

// Transforms weights [outs, ins, 3, 3] into panels (PanelProduct). Value k of step s and column j
// goes to
//   k * plane + j / lanes * panel + s * lanes + j % lanes
// Forward, inputs are the steps of the sum and outputs the columns; backward it is the other way
// round, and the window is turned by half a turn. Writes columns [first, first + cols).
template <typename T>
struct WinogradWeights {
  const T* w;
  int64_t outs, ins;
  bool backward;
  int64_t first, cols;
  float* to;
  int64_t plane, panel;
};

// dw of one output: [ins, 3, 3] (+)= its 36 products transformed back. Product k of input c lies at
// from[k * plane + c].
struct WinogradWeightGradient {
  const float* from;
  int64_t plane, ins;
  float* dw;
  bool accumulate;
};

// A tile of a convolution's gradient by its weights: `outs` outputs by `ins` inputs at one place of
// the window, summed over `pixels` of the output from first_pixel on. dy and x start at the tile's
// first channel. Output row y reads input row y * stride + shift_y; columns alike.
template <typename T>
struct WeightGradientTile {
  const T *x, *dy;
  int64_t height, width, in, out_height, out_width, out;
  int64_t stride, shift_y, shift_x;
  int64_t first_pixel, pixels, outs, ins;
  float* dw;  // [outs], dw_row floats apart
  int64_t dw_row;
  bool accumulate;
  float* scratch;  // scratch::kWeightGradientDepth * (outs + ins, each rounded up to 16)
};

// One output's weights: dw[i][place] (+)= sum over p < count of partials[p * each + place * in +
// i].
struct WeightGradientSums {
  const float* partials;
  int64_t count, each, in, places;
  float* dw;
  bool accumulate;
};

// How many values a byte may have: normalize_images' table has as many per channel.
inline constexpr int64_t kValuesOfAByte = 256;

// Loops on tensors of T; statistics, factors and sums are fp32, and so is all arithmetic.
template <typename T>
struct ElementLoops {
  void (*add)(const T* a, const T* b, T* y, int64_t n);
  void (*add_to_f32)(const float* a, const T* b, float* y, int64_t n);
  void (*to_f32)(const T* x, float* y, int64_t n);
  void (*from_f32)(const float* x, T* y, int64_t n);
  void (*relu)(const T* x, T* y, int64_t n);
  void (*relu_backward)(const T* x, const T* dy, T* dx, int64_t n);
  void (*relu6)(const T* x, T* y, int64_t n);
  void (*relu6_backward)(const T* x, const T* dy, T* dx, int64_t n);
  void (*gelu)(const T* x, T* y, int64_t n);
  void (*gelu_backward)(const T* x, const T* dy, T* dx, int64_t n);
  void (*gelu_tanh)(const T* x, T* y, int64_t n);
  void (*gelu_tanh_backward)(const T* x, const T* dy, T* dx, int64_t n);
  // cos, sin: [half], of one position; `turn`: 1, or -1 to turn back; x, y: one head, y may be x.
  void (*rotate)(const T* x, const float* cos, const float* sin, float turn, T* y, int64_t half);
  // y may be x, dx may be dy.
  void (*soft_cap)(const T* x, float cap, T* y, int64_t n);
  void (*soft_cap_backward)(const T* y, const T* dy, float cap, T* dx, int64_t n);
  void (*swiglu)(const T* gate, const T* up, T* y, int64_t n);
  // dgate may be gate and dup may be up.
  void (*swiglu_backward)(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n);
  void (*batch_norm_moments)(const BatchNormMoments<T>& rows);
  void (*batch_norm)(const BatchNormRows<T>& rows);
  void (*batch_norm_sums)(const BatchNormSums<T>& rows);
  void (*batch_norm_gradient)(const BatchNormGradient<T>& rows);
  void (*layer_norm)(const LayerNormRows<T>& rows);
  void (*layer_norm_backward)(const LayerNormBackwardRows<T>& rows);
  void (*attention)(const AttentionHeads<T>& heads);
  void (*attention_backward)(const AttentionHeadsBackward<T>& heads);
  void (*cross_entropy)(const CrossEntropyRows<T>& rows);
  void (*cross_entropy_shard)(const CrossEntropyShardRows<T>& rows);
  void (*cross_entropy_shard_gradient)(const CrossEntropyShardGradientRows<T>& rows);
  void (*interaction)(const InteractionSamples<T>& samples);
  void (*interaction_backward)(const InteractionBackwardSamples<T>& samples);
  void (*dropout)(const DropoutRange<T>& range);
  void (*max_pool)(const MaxPoolRow<T>& row);
  void (*max_pool_backward)(const MaxPoolBackwardRow<T>& row);
  // One image.
  void (*mean_pool)(const T* x, int64_t pixels, int64_t channels, T* y);
  void (*mean_pool_backward)(const T* dy, int64_t pixels, int64_t channels, T* dx);
  // y[p, c] = table[c, x[p, c]]; table: [channels, 256], channels in [1, 3].
  void (*normalize_images)(const uint8_t* x, const T* table, int64_t channels, T* y,
                           int64_t pixels);
  // y[c] = sum over rows of x[r * stride + c], c < cols.
  void (*column_sum)(const T* x, int64_t rows, int64_t cols, int64_t stride, float* y);
  // Sixteen running sums whatever the instruction set: the same bits everywhere.
  double (*squared_norm)(const T* x, int64_t n);
  void (*winograd_input)(const WinogradImage<const T>& image, const WinogradPlanes& to);
  void (*winograd_output)(const WinogradPlanes& from, const float* bias,
                          const WinogradImage<T>& image);
  // Transforms the gradient of the output, by the transpose of winograd_output.
  void (*winograd_gradient)(const WinogradImage<const T>& image, const WinogradPlanes& to);
  void (*winograd_weights)(const WinogradWeights<T>& weights);
  void (*weight_gradient)(const WeightGradientTile<T>& tile);
  // y[j * y_stride + i] = x[i * x_stride + j]
  void (*transpose)(const T* x, int64_t rows, int64_t cols, int64_t x_stride, T* y,
                    int64_t y_stride);
};

struct VectorTable {
  const char* name;
  ElementLoops<float> f32;
  ElementLoops<BFloat16> bf16;
  ElementLoops<Float16> f16;
  void (*binary_cross_entropy)(const BinaryCrossEntropyRows& rows);
  void (*cross_entropy_of_shards)(const CrossEntropyOfShardsRows& rows);
  void (*adamw)(const AdamWRange& range);
  void (*sgd)(const SgdRange& range);
  void (*ema)(const float* w, float rest, float* average, int64_t n);
  // Updates m and v; returns the sums of squares of the weights and of the update u that they give.
  LambSquares (*lamb_moments)(const LambRange& range);
  void (*lamb_step)(const LambRange& range, float rate);  // w -= rate * u
  void (*draw_normals)(const DrawRange& range);
  void (*muon_momentum)(const MuonRange& range);
  int64_t lanes;
  void (*panel_product)(const PanelProduct& product);
  void (*winograd_weight_gradient)(const WinogradWeightGradient& gradient);
  void (*weight_gradient_sums)(const WeightGradientSums& sums);
  void (*scale)(float a, float* x, int64_t n);
  // y = b x + c y
  void (*axpby)(float b, const float* x, float c, float* y, int64_t n);
  // Sixteen running sums, as in ElementLoops::squared_norm.
  double (*sum)(const float* x, int64_t n);
  // For tests: e^x, log x, Phi(x).
  void (*exp)(const float* x, float* y, int64_t n);
  void (*log)(const float* x, float* y, int64_t n);
  void (*phi)(const float* x, float* y, int64_t n);
};

namespace avx512 {
const VectorTable& Table();  // needs AVX-512 F, BW, DQ and VL
}
namespace avx2 {
const VectorTable& Table();  // needs AVX2 and FMA
}
namespace baseline {
const VectorTable& Table();
}

}  // namespace trainyard::kernels
