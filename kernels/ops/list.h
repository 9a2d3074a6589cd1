#pragma once

// Every op, once. What a device prepares and what a plan may hold is generated from this list, so
// that a back end that lacks an op does not compile.

#include "kernels/ops/activation.h"
#include "kernels/ops/add.h"
#include "kernels/ops/add_bias.h"
#include "kernels/ops/add_parts.h"
#include "kernels/ops/add_product.h"
#include "kernels/ops/arrive.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/batch_norm.h"
#include "kernels/ops/binary_cross_entropy.h"
#include "kernels/ops/cast.h"
#include "kernels/ops/column_sum.h"
#include "kernels/ops/concat.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/copy_if_taken.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/cross_entropy_shards.h"
#include "kernels/ops/draw_normal.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/embedding_shards.h"
#include "kernels/ops/embedding_tables.h"
#include "kernels/ops/fold.h"
#include "kernels/ops/interaction.h"
#include "kernels/ops/lamb.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/mean_pool.h"
#include "kernels/ops/muon.h"
#include "kernels/ops/norm_leaves.h"
#include "kernels/ops/normalize_images.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/pool.h"
#include "kernels/ops/rotary.h"
#include "kernels/ops/row_optimizer.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/soft_cap.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/transpose.h"
#include "kernels/ops/zero.h"

// X(Op) for each op that a plan may hold, in alphabetical order.
#define TY_FOR_EACH_PLANNED_OP(X) \
  X(ActivationBackward)           \
  X(ActivationForward)            \
  X(AdamWRows)                    \
  X(AdamWStep)                    \
  X(Add)                          \
  X(AddBias)                      \
  X(AddLeaves)                    \
  X(AddParts)                     \
  X(AddProduct)                   \
  X(AddRows)                      \
  X(Arrive)                       \
  X(AttentionBackward)            \
  X(AttentionForward)             \
  X(BatchNormBackward)            \
  X(BatchNormForward)             \
  X(BatchNormInference)           \
  X(BinaryCrossEntropy)           \
  X(Cast)                         \
  X(ClipScale)                    \
  X(ColumnSum)                    \
  X(Concat)                       \
  X(ConvolutionBackwardData)      \
  X(ConvolutionBackwardWeights)   \
  X(ConvolutionForward)           \
  X(CopyIfTaken)                  \
  X(CountTargets)                 \
  X(CrossEntropy)                 \
  X(CrossEntropyOfShards)         \
  X(CrossEntropyShard)            \
  X(CrossEntropyShardGradient)    \
  X(DivideByNorm)                 \
  X(Dropout)                      \
  X(EmaStep)                      \
  X(EmbeddingBackward)            \
  X(EmbeddingForward)             \
  X(EmbeddingShardsBackward)      \
  X(EmbeddingShardsForward)       \
  X(EmbeddingTablesBackward)      \
  X(EmbeddingTablesForward)       \
  X(Fold)                         \
  X(GatherRows)                   \
  X(InteractionBackward)          \
  X(InteractionForward)           \
  X(KeepRows)                     \
  X(LambStep)                     \
  X(LayerNormBackward)            \
  X(LayerNormForward)             \
  X(Matmul)                       \
  X(MaxPoolBackward)              \
  X(MaxPoolForward)               \
  X(MeanPoolBackward)             \
  X(MeanPoolForward)              \
  X(MergeRows)                    \
  X(MuonMomentum)                 \
  X(MuonStep)                     \
  X(NewtonSchulz)                 \
  X(NormalizeImages)              \
  X(Rotary)                       \
  X(SgdRows)                      \
  X(SgdStep)                      \
  X(SoftCapBackward)              \
  X(SoftCapForward)               \
  X(Split)                        \
  X(Spread)                       \
  X(SquaredNorm)                  \
  X(SquaredNormLeaves)            \
  X(Sum)                          \
  X(SwiGluBackward)               \
  X(SwiGluForward)                \
  X(TakeRows)                     \
  X(Transpose)                    \
  X(Zero)

// X(Op) for each op that a device prepares.
#define TY_FOR_EACH_OP(X)   \
  TY_FOR_EACH_PLANNED_OP(X) \
  X(DrawNormal)
