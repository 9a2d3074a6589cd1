#pragma once

// The loops that table.cc gathers. A file whose loops are templates over the element type has an
// Offer… that sets their pointers for one type; the other loops are declared here. Each loop is
// defined in the file of its op.

#include "kernels/cpu/vector/simd.h"
#include "kernels/cpu/vector/table.h"

// Instantiates an Offer… for every element type.
#define TRAINYARD_FOR_EACH_ELEMENT(offer)             \
  template void offer(ElementLoops<float>& loops);    \
  template void offer(ElementLoops<BFloat16>& loops); \
  template void offer(ElementLoops<Float16>& loops);

namespace trainyard::kernels::TRAINYARD_ISA {

template <typename T>
void OfferActivations(ElementLoops<T>& loops);
template <typename T>
void OfferAttention(ElementLoops<T>& loops);
template <typename T>
void OfferBatchNorm(ElementLoops<T>& loops);
template <typename T>
void OfferCasts(ElementLoops<T>& loops);
template <typename T>
void OfferColumnSum(ElementLoops<T>& loops);
template <typename T>
void OfferCrossEntropy(ElementLoops<T>& loops);
template <typename T>
void OfferDropout(ElementLoops<T>& loops);
template <typename T>
void OfferInteraction(ElementLoops<T>& loops);
template <typename T>
void OfferLayerNorm(ElementLoops<T>& loops);
template <typename T>
void OfferMaxPool(ElementLoops<T>& loops);
template <typename T>
void OfferMeanPool(ElementLoops<T>& loops);
template <typename T>
void OfferNormalizeImages(ElementLoops<T>& loops);
template <typename T>
void OfferRotary(ElementLoops<T>& loops);
template <typename T>
void OfferSquaredNorm(ElementLoops<T>& loops);
template <typename T>
void OfferSwiGlu(ElementLoops<T>& loops);
template <typename T>
void OfferTranspose(ElementLoops<T>& loops);
template <typename T>
void OfferWeightGradient(ElementLoops<T>& loops);
template <typename T>
void OfferWinograd(ElementLoops<T>& loops);

void BinaryCrossEntropyOfRows(const BinaryCrossEntropyRows& r);
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
