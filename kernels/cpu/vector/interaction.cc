// F features (x and the rows of e), W width; both padded to whole vectors in scratch.

#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/tile.h"
#include "kernels/cpu/vector/transpose.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// The pieces of the scratch, as scratch::InteractionFloats counts them
// (kernels/scratch/interaction.h).
struct InteractionScratch {
  int64_t features, padded_features, padded_width;
  float *f, *transposed, *products;  // [F, Wp], [W, Fp], [F, Fp]
};

// Everything is 0 at first, and so the padding stays.
TRAINYARD_INLINE InteractionScratch LayOut(int64_t count, int64_t width, float* scratch) {
  const int64_t features = count + 1;
  InteractionScratch s = {.features = features,
                          .padded_features = (features + 15) / 16 * 16,
                          .padded_width = (width + 15) / 16 * 16,
                          .f = scratch,
                          .transposed = nullptr,
                          .products = nullptr};
  s.transposed = s.f + features * s.padded_width;
  s.products = s.transposed + s.padded_width * s.padded_features;
  const int64_t all = s.products + features * s.padded_features - scratch;
  __builtin_memset(scratch, 0, sizeof(float) * all);
  return s;
}

template <typename T>
TRAINYARD_INLINE void Gather(const T* x, const T* e, int64_t count, int64_t width,
                             const InteractionScratch& s) {
  Copy(width, x, s.f);
  for (int64_t t = 0; t < count; ++t) Copy(width, e + t * width, s.f + (t + 1) * s.padded_width);
}

template <typename T>
void Interaction(const InteractionSamples<T>& r) {
  const InteractionScratch s = LayOut(r.count, r.width, r.scratch);
  T* y = r.y;
  for (int64_t b = 0; b < r.samples; ++b) {
    const T* x = r.x + b * r.width;
    Gather(x, r.e + b * r.count * r.width, r.count, r.width, s);
    TransposeBlock(s.f, s.features, r.width, s.padded_width, s.transposed, s.padded_features);
    Multiply<false>({.a = s.f,
                     .a_row = s.padded_width,
                     .a_step = 1,
                     .b = s.transposed,
                     .b_row = s.padded_features,
                     .c = s.products,
                     .c_row = s.padded_features,
                     .rows = s.features,
                     .cols = s.padded_features,
                     .depth = r.width});
    Copy(r.width, x, y);
    y += r.width;
    for (int64_t i = 1; i < s.features; ++i) {
      Copy(i, s.products + i * s.padded_features, y);
      y += i;
    }
  }
}

// With g the gradients of the products as a symmetric matrix of zero diagonal: df = g f.
template <typename T>
void InteractionBackwardOfSamples(const InteractionBackwardSamples<T>& r) {
  const InteractionScratch s = LayOut(r.count, r.width, r.scratch);
  float* const df = s.transposed;  // [F, Wp] fits: F <= Fp
  const T* dy = r.dy;
  for (int64_t b = 0; b < r.samples; ++b) {
    Gather(r.x + b * r.width, r.e + b * r.count * r.width, r.count, r.width, s);
    const T* g = dy + r.width;
    for (int64_t i = 1; i < s.features; ++i) {
      float* const row = s.products + i * s.padded_features;
      Copy(i, g, row);
      for (int64_t j = 0; j < i; ++j) s.products[j * s.padded_features + i] = row[j];
      g += i;
    }
    Multiply<false>({.a = s.products,
                     .a_row = s.padded_features,
                     .a_step = 1,
                     .b = s.f,
                     .b_row = s.padded_width,
                     .c = df,
                     .c_row = s.padded_width,
                     .rows = s.features,
                     .cols = s.padded_width,
                     .depth = s.features});
    if (r.dx != nullptr) {
      Map(r.width, df, dy, r.dx + b * r.width, [](VecF u, VecF v) { return u + v; });
    }
    for (int64_t t = 0; r.de != nullptr && t < r.count; ++t) {
      Copy(r.width, df + (t + 1) * s.padded_width, r.de + (b * r.count + t) * r.width);
    }
    dy = g;
  }
}

template <typename T>
void RegisterInteraction(ElementLoops<T>& loops) {
  loops.interaction = Interaction<T>;
  loops.interaction_backward = InteractionBackwardOfSamples<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterInteraction)

}  // namespace trainyard::kernels::TRAINYARD_ISA
