#include "kernels/cpu/vector/table.h"

#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

#define TRAINYARD_TEXT_OF(x) #x
#define TRAINYARD_TEXT(x) TRAINYARD_TEXT_OF(x)

const VectorTable& Table() {
  static constexpr VectorTable kTable = {
      .name = TRAINYARD_TEXT(TRAINYARD_ISA),
      .add = AddRange,
      .relu = Relu,
      .relu_backward = ReluBackward,
      .gelu = Gelu,
      .gelu_backward = GeluBackward,
      .gelu_tanh = GeluTanh,
      .gelu_tanh_backward = GeluTanhBackward,
      .rotate = RotateHead,
      .swiglu = SwiGlu,
      .swiglu_backward = SwiGluBackwardRow,
      .batch_norm_moments = BatchNormMomentsOfRows,
      .batch_norm = BatchNormOfRows,
      .batch_norm_sums = BatchNormSumsOfRows,
      .batch_norm_gradient = BatchNormGradientOfRows,
      .layer_norm = LayerNorm,
      .layer_norm_backward = LayerNormBackwardRun,
      .attention = AttentionOfHeads,
      .attention_backward = AttentionBackwardOfHeads,
      .cross_entropy = CrossEntropyOfRows,
      .binary_cross_entropy = BinaryCrossEntropyOfRows,
      .interaction = Interaction,
      .interaction_backward = InteractionBackwardOfSamples,
      .adamw = AdamW,
      .sgd = Sgd,
      .dropout = DropoutOfRange,
      .max_pool = MaxPoolOfRow,
      .max_pool_backward = MaxPoolBackwardOfRow,
      .sum = SumOfRange,
      .squared_norm = SquaredNormOfRange,
      .column_sum = ColumnSumOfRows,
      .transpose = TransposeBlock,
      .exp = ExpRange,
      .log = LogRange,
      .phi = PhiRange,
  };
  return kTable;
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
