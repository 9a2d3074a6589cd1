#pragma once

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

template <>
struct Rules<AddParts> : ForwardOp, NoScratch {
  static constexpr bool kReadsNarrow = true;

  // The parts are results of products, in the type of these.
  static void Retype(AddParts& o, Typing& typing) { typing.WriteAs(o.y, o.parts.front()); }

  static void Differentiate(const AddParts& f, TensorId dy, Gradient& gradient) {
    for (const TensorId part : f.parts) gradient.Accumulate(part, dy);
    gradient.SumRows(dy, f.bias, f.rows, f.cols, gradient.token_cuts());
  }

  static InPlace InPlacePairs(const AddParts& o) {
    InPlace pairs;
    for (const TensorId part : o.parts) pairs.emplace_back(part, o.y);
    return pairs;
  }
};

template <>
struct Rules<AddRows> : BackwardOp, NoScratch {};

template <>
struct Rules<Spread> : ForwardOp, NoScratch {
  static constexpr bool kReadsNarrow = true;

  // Of all results the first: where it has a gradient, the others have one, too.
  static TensorId ResultOf(const Spread& o) { return o.copies.front(); }

  static void Retype(Spread& o, Typing& typing) {
    typing.ReadNarrow(o.x);
    for (const TensorId copy : o.copies) typing.WriteNarrow(copy);
  }

  static void Differentiate(const Spread& f, TensorId dy, Gradient& gradient) {
    AddParts sum{.parts = {dy}, .rows = 1, .cols = f.n};
    for (size_t i = 1; i < f.copies.size(); ++i) sum.parts.push_back(gradient.Consume(f.copies[i]));
    gradient.Overwrite(f.x, [&](TensorId dx) {
      const std::vector<int64_t>& dims = gradient.graph()[dx].dims;
      sum.rows = f.n / dims.back();
      sum.cols = dims.back();
      sum.y = dx;
      gradient.Emit(std::move(sum));
    });
  }
};

}  // namespace trainyard::plan
