#pragma once

// The inner loops of the CPU back end, compiled once per instruction set. Every function is serial,
// allocates nothing, and works on the range that it is given; ../*.cc cut the ranges and hold the
// threads. Shapes are those of kernels/ops.

#include <cstddef>
#include <cstdint>

namespace trainyard::kernels {

struct StepState;

// Of rows [0, rows), at least one: the mean of each column and the sum of squares around it.
struct BatchNormMoments {
  const float* x;
  float *mean, *squares;
  int64_t rows, cols;
};

// Rows [0, rows): y = relu?((x - mean) * scale + beta + residual?)
struct BatchNormRows {
  const float *x, *mean, *scale, *beta;
  const float* residual;  // may be null, may be y
  float* y;               // may be x
  int64_t rows, cols;
  bool relu;
};

// Rows [0, rows), g = dy where y > 0: sum of g, dot = sum of g * (x - mean), dresidual = g.
struct BatchNormSums {
  const float *dy, *x;
  const float* y;  // null: g = dy
  const float* mean;
  float* dresidual;  // may be null, may be dy
  float *sum, *dot;
  int64_t rows, cols;
};

// Rows [0, rows): dx = g * of_g + (x - mean) * of_d + plus; dx may be x.
struct BatchNormGradient {
  const float *dy, *x;
  const float* y;  // null: g = dy
  const float *mean, *of_g, *of_d, *plus;
  float* dx;
  int64_t rows, cols;
};

// Rows [0, rows) of a layer norm.
struct LayerNormRows {
  const float* x;
  const float* gamma;
  const float* beta;  // may be null
  float* y;
  float* mean;  // may be null: RMSNorm
  float* rstd;
  int64_t rows, cols;
  float epsilon;
};

// Rows [0, rows); dgamma and dbeta receive this run's sums (overwritten; dbeta may be null).
struct LayerNormBackwardRows {
  const float* dy;
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
// floats apart, those of y and dy `y_row`; the next head's q, y and gradients of them lie head_dim
// further, its lse lies time further. scratch: AttentionScratchFloats.
struct AttentionHeads {
  const float *q, *k, *v;
  float* y;
  float* lse;
  int64_t row, y_row, group, time, head_dim;
  float scale;
  bool causal;
  float* scratch;
};

struct AttentionHeadsBackward {
  const float *q, *k, *v, *dy, *y, *lse;
  float *dq, *dk, *dv;
  int64_t row, y_row, group, time, head_dim;
  float scale;
  bool causal;
  float* scratch;
};

// Enough for either direction, on every instruction set.
int64_t AttentionScratchFloats(int64_t time, int64_t head_dim);

struct CrossEntropyRows {
  const float* logits;
  const int32_t* targets;
  float* losses;
  float* z_losses;  // may be null
  float* correct;   // may be null
  float* dlogits;   // may be null, may be logits
  int64_t rows, classes;
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

// Samples [0, samples). scratch: InteractionScratchFloats.
struct InteractionSamples {
  const float *x, *e;
  float* y;
  int64_t samples, count, width;
  float* scratch;
};

struct InteractionBackwardSamples {
  const float *dy, *x, *e;
  float *dx, *de;
  int64_t samples, count, width;
  float* scratch;
};

// Enough for either direction, on every instruction set.
int64_t InteractionScratchFloats(int64_t count, int64_t width);

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
};

// One sample of a dropout: elements [begin, begin + n) of it; begin is a multiple of 4.
struct DropoutRange {
  const float* x;
  float* y;
  int64_t begin, n;
  uint64_t seed;
  uint32_t stream;
  int64_t step, sample;
  float p;
};

// One row of y; x, y and index begin at the image.
struct MaxPoolRow {
  const float* x;
  float* y;
  uint8_t* index;
  int64_t row;
  int64_t height, width, channels, window, stride, pad, out_width;
};

// One row of dx; all begin at the image.
struct MaxPoolBackwardRow {
  const float* dy;
  const uint8_t* index;
  float* dx;
  int64_t row;
  int64_t out_height, width, channels, window, stride, pad, out_width;
};

struct VectorTable {
  const char* name;
  void (*add)(const float* a, const float* b, float* y, int64_t n);
  void (*relu)(const float* x, float* y, int64_t n);
  void (*relu_backward)(const float* x, const float* dy, float* dx, int64_t n);
  void (*gelu)(const float* x, float* y, int64_t n);
  void (*gelu_backward)(const float* x, const float* dy, float* dx, int64_t n);
  void (*gelu_tanh)(const float* x, float* y, int64_t n);
  void (*gelu_tanh_backward)(const float* x, const float* dy, float* dx, int64_t n);
  // cos, sin: [half], of one position; x, y: one head, y may be x.
  void (*rotate)(const float* x, const float* cos, const float* sin, float* y, int64_t half);
  void (*swiglu)(const float* gate, const float* up, float* y, int64_t n);
  // dgate may be gate and dup may be up.
  void (*swiglu_backward)(const float* gate, const float* up, const float* dy, float* dgate,
                          float* dup, int64_t n);
  void (*batch_norm_moments)(const BatchNormMoments& rows);
  void (*batch_norm)(const BatchNormRows& rows);
  void (*batch_norm_sums)(const BatchNormSums& rows);
  void (*batch_norm_gradient)(const BatchNormGradient& rows);
  void (*layer_norm)(const LayerNormRows& rows);
  void (*layer_norm_backward)(const LayerNormBackwardRows& rows);
  void (*attention)(const AttentionHeads& heads);
  void (*attention_backward)(const AttentionHeadsBackward& heads);
  void (*cross_entropy)(const CrossEntropyRows& rows);
  void (*binary_cross_entropy)(const BinaryCrossEntropyRows& rows);
  void (*interaction)(const InteractionSamples& samples);
  void (*interaction_backward)(const InteractionBackwardSamples& samples);
  void (*adamw)(const AdamWRange& range);
  void (*sgd)(const SgdRange& range);
  void (*dropout)(const DropoutRange& range);
  void (*max_pool)(const MaxPoolRow& row);
  void (*max_pool_backward)(const MaxPoolBackwardRow& row);
  // Sixteen running sums whatever the instruction set: the same bits everywhere.
  double (*sum)(const float* x, int64_t n);
  double (*squared_norm)(const float* x, int64_t n);
  // y[c] = sum over rows of x[r * stride + c], c < cols.
  void (*column_sum)(const float* x, int64_t rows, int64_t cols, int64_t stride, float* y);
  // y[j * y_stride + i] = x[i * x_stride + j]
  void (*transpose)(const float* x, int64_t rows, int64_t cols, int64_t x_stride, float* y,
                    int64_t y_stride);
  // For tests: e^x, log x, Phi(x).
  void (*exp)(const float* x, float* y, int64_t n);
  void (*log)(const float* x, float* y, int64_t n);
  void (*phi)(const float* x, float* y, int64_t n);
};

namespace avx512 {
const VectorTable& Table();  // F, BW, DQ, VL
}
namespace avx2 {
const VectorTable& Table();  // and FMA
}
namespace baseline {
const VectorTable& Table();
}

}  // namespace trainyard::kernels
