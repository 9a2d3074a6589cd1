#pragma once

// The loops that table.cc gathers. A file whose loops are templates over the element type has an
// Register… that sets their pointers for one type; the other loops are declared here. Each loop is
// defined in the file of its op.

#include "kernels/cpu/vector/simd.h"
#include "kernels/cpu/vector/table.h"

// Instantiates an Register… for every element type.
#define TRAINYARD_FOR_EACH_ELEMENT(register_loops)             \
  template void register_loops(ElementLoops<float>& loops);    \
  template void register_loops(ElementLoops<BFloat16>& loops); \
  template void register_loops(ElementLoops<Float16>& loops);

namespace trainyard::kernels::TRAINYARD_ISA {

template <typename T>
void RegisterActivations(ElementLoops<T>& loops);
template <typename T>
void RegisterAttention(ElementLoops<T>& loops);
template <typename T>
void RegisterBatchNorm(ElementLoops<T>& loops);
template <typename T>
void RegisterCasts(ElementLoops<T>& loops);
template <typename T>
void RegisterColumnSum(ElementLoops<T>& loops);
template <typename T>
void RegisterCrossEntropy(ElementLoops<T>& loops);
template <typename T>
void RegisterDropout(ElementLoops<T>& loops);
template <typename T>
void RegisterInteraction(ElementLoops<T>& loops);
template <typename T>
void RegisterLayerNorm(ElementLoops<T>& loops);
template <typename T>
void RegisterMaxPool(ElementLoops<T>& loops);
template <typename T>
void RegisterMeanPool(ElementLoops<T>& loops);
template <typename T>
void RegisterNormalizeImages(ElementLoops<T>& loops);
template <typename T>
void RegisterRotary(ElementLoops<T>& loops);
template <typename T>
void RegisterSoftCap(ElementLoops<T>& loops);
template <typename T>
void RegisterSquaredNorm(ElementLoops<T>& loops);
template <typename T>
void RegisterSwiGlu(ElementLoops<T>& loops);
template <typename T>
void RegisterTranspose(ElementLoops<T>& loops);
template <typename T>
void RegisterWeightGradient(ElementLoops<T>& loops);
template <typename T>
void RegisterWinograd(ElementLoops<T>& loops);

void BinaryCrossEntropyOfRows(const BinaryCrossEntropyRows& r);
void CrossEntropyOfShards(const CrossEntropyOfShardsRows& r);
void AdamW(const AdamWRange& r);
void Sgd(const SgdRange& r);
void Ema(const float* w, float rest, float* average, int64_t n);
LambSquares LambMoments(const LambRange& r);
void DrawNormals(const DrawRange& r);
void LambStepOfRange(const LambRange& r, float rate);
void MuonMomentumOfRange(const MuonRange& r);
void PanelProductOf(const PanelProduct& p);
void WinogradWeightGradientOf(const WinogradWeightGradient& g);
void SumWeightGradient(const WeightGradientSums& s);
void Scale(float a, float* x, int64_t n);
void Axpby(float b, const float* x, float c, float* y, int64_t n);
double SumOfRange(const float* x, int64_t n);
template <typename T>
double SquaredNormOfRange(const T* x, int64_t n);
void ExpRange(const float* x, float* y, int64_t n);
void LogRange(const float* x, float* y, int64_t n);
void PhiRange(const float* x, float* y, int64_t n);

}  // namespace trainyard::kernels::TRAINYARD_ISA
