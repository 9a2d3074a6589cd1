#pragma once

// The inner loops of the CPU back end, compiled once per instruction set. Every function is serial,
// allocates nothing, and works on the range that it is given; ../*.cc cut the ranges and hold the
// threads. Shapes are those of kernels/ops.

#include <cstddef>
#include <cstdint>

namespace trainyard::kernels {

struct StepState;

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
  float* correct;  // may be null
  float* dlogits;  // may be null, may be logits
  int64_t rows, classes;
  float scale;
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

// Output rows [0, rows) of one image; x starts at the first window row.
struct MaxPoolRows {
  const float* x;
  float* y;
  uint8_t* index;
  int64_t rows, width, channels, window;
};

struct MaxPoolBackwardRows {
  const float* dy;
  const uint8_t* index;
  float* dx;
  int64_t rows, width, channels, window;
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
  void (*max_pool)(const MaxPoolRows& rows);
  void (*max_pool_backward)(const MaxPoolBackwardRows& rows);
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
