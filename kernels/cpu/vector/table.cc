#include "kernels/cpu/vector/table.h"

#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

template <typename T>
static ElementLoops<T> LoopsOf() {
  ElementLoops<T> loops{};
  RegisterActivations(loops);
  RegisterAttention(loops);
  RegisterBatchNorm(loops);
  RegisterCasts(loops);
  RegisterColumnSum(loops);
  RegisterCrossEntropy(loops);
  RegisterDropout(loops);
  RegisterInteraction(loops);
  RegisterLayerNorm(loops);
  RegisterMaxPool(loops);
  RegisterMeanPool(loops);
  RegisterNormalizeImages(loops);
  RegisterRotary(loops);
  RegisterSquaredNorm(loops);
  RegisterSoftCap(loops);
  RegisterSwiGlu(loops);
  RegisterTranspose(loops);
  RegisterWeightGradient(loops);
  RegisterWinograd(loops);
  return loops;
}

#define TRAINYARD_TEXT_OF(x) #x
#define TRAINYARD_TEXT(x) TRAINYARD_TEXT_OF(x)

const VectorTable& Table() {
  static const VectorTable kTable = {
      .name = TRAINYARD_TEXT(TRAINYARD_ISA),
      .f32 = LoopsOf<float>(),
      .bf16 = LoopsOf<BFloat16>(),
      .f16 = LoopsOf<Float16>(),
      .binary_cross_entropy = BinaryCrossEntropyOfRows,
      .cross_entropy_of_shards = CrossEntropyOfShards,
      .adamw = AdamW,
      .sgd = Sgd,
      .ema = Ema,
      .lamb_moments = LambMoments,
      .lamb_step = LambStepOfRange,
      .draw_normals = DrawNormals,
      .muon_momentum = MuonMomentumOfRange,
      .lanes = kLanes,
      .panel_product = PanelProductOf,
      .winograd_weight_gradient = WinogradWeightGradientOf,
      .weight_gradient_sums = SumWeightGradient,
      .scale = Scale,
      .axpby = Axpby,
      .sum = SumOfRange,
      .exp = ExpRange,
      .log = LogRange,
      .phi = PhiRange,
  };
  return kTable;
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
