#pragma once

// What table.cc gathers: declared here, defined in the file of the same op.

#include "kernels/cpu/vector/simd.h"
#include "kernels/cpu/vector/table.h"

namespace trainyard::kernels::TRAINYARD_ISA {

void AddRange(const float* a, const float* b, float* y, int64_t n);
void Relu(const float* x, float* y, int64_t n);
void ReluBackward(const float* x, const float* dy, float* dx, int64_t n);
void Gelu(const float* x, float* y, int64_t n);
void GeluBackward(const float* x, const float* dy, float* dx, int64_t n);
void GeluTanh(const float* x, float* y, int64_t n);
void GeluTanhBackward(const float* x, const float* dy, float* dx, int64_t n);
void RotateHead(const float* x, const float* cos, const float* sin, float* y, int64_t half);
void SwiGlu(const float* gate, const float* up, float* y, int64_t n);
void SwiGluBackwardRow(const float* gate, const float* up, const float* dy, float* dgate,
                       float* dup, int64_t n);
void BatchNormMomentsOfRows(const BatchNormMoments& r);
void BatchNormOfRows(const BatchNormRows& r);
void BatchNormSumsOfRows(const BatchNormSums& r);
void BatchNormGradientOfRows(const BatchNormGradient& r);
void LayerNorm(const LayerNormRows& r);
void LayerNormBackwardRun(const LayerNormBackwardRows& r);
void AttentionOfHeads(const AttentionHeads& h);
void AttentionBackwardOfHeads(const AttentionHeadsBackward& h);
void CrossEntropyOfRows(const CrossEntropyRows& r);
void BinaryCrossEntropyOfRows(const BinaryCrossEntropyRows& r);
void Interaction(const InteractionSamples& s);
void InteractionBackwardOfSamples(const InteractionBackwardSamples& s);
void AdamW(const AdamWRange& r);
void Sgd(const SgdRange& r);
void DropoutOfRange(const DropoutRange& r);
void MaxPoolOfRow(const MaxPoolRow& r);
void MaxPoolBackwardOfRow(const MaxPoolBackwardRow& r);
double SumOfRange(const float* x, int64_t n);
double SquaredNormOfRange(const float* x, int64_t n);
void ColumnSumOfRows(const float* x, int64_t rows, int64_t cols, int64_t stride, float* y);
void TransposeBlock(const float* x, int64_t rows, int64_t cols, int64_t x_stride, float* y,
                    int64_t y_stride);
void ExpRange(const float* x, float* y, int64_t n);
void LogRange(const float* x, float* y, int64_t n);
void PhiRange(const float* x, float* y, int64_t n);

}  // namespace trainyard::kernels::TRAINYARD_ISA
