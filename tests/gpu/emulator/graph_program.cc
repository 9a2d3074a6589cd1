#include "tests/gpu/emulator/graph_program.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

namespace trainyard::emulator {
namespace {

using Numbers = std::vector<float>;  // packed, the last dimension fastest

Element ElementOf(cudnnDataType_t type) {
  return type == CUDNN_DATA_BFLOAT16 ? Element::kBF16
         : type == CUDNN_DATA_HALF   ? Element::kF16
                                     : Element::kF32;
}

// Calls f(packed place, offset by strides, indices) for each element.
template <typename F>
void Each(const ProgramTensor& t, const F& f) {
  std::vector<int64_t> at(t.dims.size(), 0);
  for (int64_t i = 0; i < t.elements(); ++i) {
    int64_t offset = 0;
    for (size_t d = 0; d < at.size(); ++d) offset += at[d] * t.strides[d];
    f(i, offset, at);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < t.dims[d]) break;
      at[d] = 0;
    }
  }
}

// The packed place in `t` of what lies at `at` in a tensor of `dims`: a dimension that is smaller
// serves as many neighbours each.
int64_t Shared(const ProgramTensor& t, const std::vector<int64_t>& dims,
               const std::vector<int64_t>& at) {
  int64_t place = 0;
  for (size_t d = 0; d < at.size(); ++d) place = place * t.dims[d] + at[d] * t.dims[d] / dims[d];
  return place;
}

bool Divides(const ProgramTensor& small, const ProgramTensor& large) {
  if (small.dims.size() != large.dims.size()) return false;
  for (size_t d = 0; d < small.dims.size(); ++d) {
    if (large.dims[d] % small.dims[d] != 0) return false;
  }
  return true;
}

float Pointwise(int mode, float x, float b, float t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0 ? x : b;
    default:
      std::abort();
  }
}

// A convolution's tensors as NCHW.
struct Convolution {
  const ProgramTensor &x, &w, &y;
  int64_t stride, pad;

  bool Fits() const {
    if (x.dims.size() != 4 || w.dims.size() != 4 || y.dims.size() != 4) return false;
    const auto extent = [this](int d) {
      return (x.dims[d] + 2 * pad - w.dims[d]) / stride + 1 == y.dims[d];
    };
    return x.dims[1] % w.dims[1] == 0 && x.dims[0] == y.dims[0] && y.dims[1] == w.dims[0] &&
           w.dims[0] % (x.dims[1] / w.dims[1]) == 0 && extent(2) && extent(3) && x.type == w.type &&
           x.type == y.type;
  }

  // f(x, w, y) with the packed places of each product of the sums; of all three sums in another
  // order if `backwards`.
  template <typename F>
  void EachProduct(bool backwards, const F& f) const {
    const int64_t C = x.dims[1], H = x.dims[2], W = x.dims[3];
    const int64_t K = w.dims[0], I = w.dims[1], R = w.dims[2], Q = w.dims[3];
    const int64_t P = y.dims[2], S = y.dims[3], per_group = K / (C / I);
    const auto turned = [backwards](int64_t i, int64_t of) { return backwards ? of - 1 - i : i; };
    for (int64_t a = 0; a < x.dims[0]; ++a) {
      const int64_t n = turned(a, x.dims[0]);
      for (int64_t b = 0; b < K; ++b) {
        const int64_t k = turned(b, K);
        for (int64_t i = 0; i < I; ++i) {
          const int64_t from = turned(i, I), c = k / per_group * I + from;
          for (int64_t p = 0; p < P; ++p) {
            for (int64_t r = 0; r < R; ++r) {
              const int64_t h = p * stride - pad + r;
              if (h < 0 || h >= H) continue;
              for (int64_t s = 0; s < S; ++s) {
                for (int64_t q = 0; q < Q; ++q) {
                  const int64_t v = s * stride - pad + q;
                  if (v < 0 || v >= W) continue;
                  f(((n * C + c) * H + h) * W + v, ((k * I + from) * R + r) * Q + q,
                    ((n * K + k) * P + p) * S + s);
                }
              }
            }
          }
        }
      }
    }
  }
};

class Runner {
 public:
  Runner(const Program& program, const std::map<int64_t, void*>& memory, bool backwards)
      : program_(program), memory_(memory), backwards_(backwards) {}

  void Do(const ProgramOp& op) {
    const ProgramTensor& to = Spec(op, op.tensors.size() - 1);
    Numbers result(to.elements(), 0.0f);
    switch (op.kind) {
      case ProgramOpKind::kPointwise:
        DoPointwise(op, to, result);
        break;
      case ProgramOpKind::kIndex:
        Each(to, [&](int64_t i, int64_t, const std::vector<int64_t>& at) {
          result[i] = static_cast<float>(at[op.axis]);
        });
        break;
      case ProgramOpKind::kReduce:
        DoReduce(op, to, result);
        break;
      case ProgramOpKind::kProduct:
        DoProduct(op, to, result);
        break;
      case ProgramOpKind::kReshape:
        DoReshape(op, to, result);
        break;
      default:
        DoConvolution(op, result);
    }
    Store(to, std::move(result));
  }

 private:
  const ProgramTensor& Spec(const ProgramOp& op, size_t i) const {
    return program_.tensors.at(op.tensors[i]);
  }

  const Numbers& Load(const ProgramTensor& t) {
    const auto [at, fresh] = numbers_.try_emplace(t.id);
    if (fresh) {
      const void* const data = memory_.at(t.id);
      at->second.resize(t.elements());
      Each(t, [&](int64_t i, int64_t offset, const std::vector<int64_t>&) {
        at->second[i] = Get(ElementOf(t.type), data, offset);
      });
    }
    return at->second;
  }

  void Store(const ProgramTensor& t, Numbers result) {
    const Element type = ElementOf(t.type);
    if (type != Element::kF32) {
      for (float& x : result) {
        uint16_t bits;
        Put(type, &bits, 0, x);
        x = Get(type, &bits, 0);
      }
    }
    if (!t.is_virtual) {
      void* const data = memory_.at(t.id);
      Each(t, [&](int64_t i, int64_t offset, const std::vector<int64_t>&) {
        Put(type, data, offset, result[i]);
      });
    }
    numbers_[t.id] = std::move(result);
  }

  void DoPointwise(const ProgramOp& op, const ProgramTensor& to, Numbers& result) {
    const size_t operands = op.tensors.size() - 1;
    const Numbers& x = Load(Spec(op, 0));
    const Numbers& b = operands > 1 ? Load(Spec(op, 1)) : x;
    const Numbers& t = operands > 2 ? Load(Spec(op, 2)) : x;
    Each(to, [&](int64_t i, int64_t, const std::vector<int64_t>& at) {
      const auto of = [&](const Numbers& numbers, size_t operand) {
        return operand < operands ? numbers[Shared(Spec(op, operand), to.dims, at)] : 0.0f;
      };
      result[i] = Pointwise(op.mode, of(x, 0), of(b, 1), of(t, 2));
    });
  }

  void DoReduce(const ProgramOp& op, const ProgramTensor& to, Numbers& result) {
    const ProgramTensor& from = Spec(op, 0);
    const Numbers& x = Load(from);
    const bool largest = op.mode == CUDNN_REDUCE_TENSOR_MAX;
    if (largest) std::fill(result.begin(), result.end(), -INFINITY);
    Each(from, [&](int64_t i, int64_t, const std::vector<int64_t>& at) {
      float& sum = result[Shared(to, from.dims, at)];
      sum = largest ? std::max(sum, x[i]) : sum + x[i];
    });
  }

  void DoProduct(const ProgramOp& op, const ProgramTensor& to, Numbers& result) {
    const ProgramTensor &left = Spec(op, 0), &right = Spec(op, 1);
    const Numbers &a = Load(left), &b = Load(right);
    const int64_t M = to.dims[2], N = to.dims[3], K = left.dims[3];
    for (int64_t n = 0; n < to.dims[0]; ++n) {
      for (int64_t h = 0; h < to.dims[1]; ++h) {
        const float* const rows = a.data() + (n * to.dims[1] + h) * M * K;
        const int64_t shared = h * right.dims[1] / to.dims[1];
        const float* const cols = b.data() + (n * right.dims[1] + shared) * K * N;
        float* const c = result.data() + (n * to.dims[1] + h) * M * N;
        for (int64_t m = 0; m < M; ++m) {
          for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[m * N + j] += rows[m * K + k] * cols[k * N + j];
          }
        }
      }
    }
  }

  void DoReshape(const ProgramOp& op, const ProgramTensor& to, Numbers& result) {
    const ProgramTensor& from = Spec(op, 0);
    const Numbers& x = Load(from);
    std::map<int64_t, float> lying;
    Each(from,
         [&](int64_t i, int64_t offset, const std::vector<int64_t>&) { lying[offset] = x[i]; });
    Each(to, [&](int64_t i, int64_t offset, const std::vector<int64_t>&) {
      result[i] = lying.at(offset);
    });
  }

  void DoConvolution(const ProgramOp& op, Numbers& result) {
    const bool forward = op.kind == ProgramOpKind::kForward;
    const bool by_data = op.kind == ProgramOpKind::kDataGradient;
    // The result is the last: y, x or w.
    const ProgramTensor& x = Spec(op, by_data ? 2 : 0);
    const ProgramTensor& w = Spec(op, op.kind == ProgramOpKind::kWeightGradient ? 2 : 1);
    const ProgramTensor& y = Spec(op, forward ? 2 : by_data ? 0 : 1);
    const Convolution convolution = {x, w, y, op.stride, op.pad};
    if (forward) {
      const Numbers &a = Load(x), &b = Load(w);
      convolution.EachProduct(backwards_,
                              [&](int64_t i, int64_t j, int64_t k) { result[k] += a[i] * b[j]; });
    } else if (by_data) {
      const Numbers &a = Load(y), &b = Load(w);
      convolution.EachProduct(backwards_,
                              [&](int64_t i, int64_t j, int64_t k) { result[i] += a[k] * b[j]; });
    } else {
      const Numbers &a = Load(x), &b = Load(y);
      convolution.EachProduct(backwards_,
                              [&](int64_t i, int64_t j, int64_t k) { result[j] += a[i] * b[k]; });
    }
  }

  const Program& program_;
  const std::map<int64_t, void*>& memory_;
  const bool backwards_;
  std::map<int64_t, Numbers> numbers_;
};

}  // namespace

int64_t ProgramTensor::elements() const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

bool Program::Valid() const {
  for (const ProgramOp& op : ops) {
    std::vector<const ProgramTensor*> of;
    for (const int64_t id : op.tensors) of.push_back(&tensors.at(id));
    const ProgramTensor& to = *of.back();
    switch (op.kind) {
      case ProgramOpKind::kPointwise:
      case ProgramOpKind::kIndex:
        for (const ProgramTensor* operand : of) {
          if (!Divides(*operand, to)) return false;
        }
        break;
      case ProgramOpKind::kReduce:
        if (!Divides(to, *of[0])) return false;
        break;
      case ProgramOpKind::kProduct:
        // Both sides of one type, as the library asks.
        if (of[0]->dims[2] != to.dims[2] || of[1]->dims[3] != to.dims[3] ||
            of[0]->dims[3] != of[1]->dims[2] || of[0]->dims[1] % of[1]->dims[1] != 0 ||
            of[0]->type != of[1]->type) {
          return false;
        }
        break;
      case ProgramOpKind::kReshape:
        if (of[0]->elements() != to.elements()) return false;
        break;
      case ProgramOpKind::kForward:
        if (!Convolution{*of[0], *of[1], to, op.stride, op.pad}.Fits()) return false;
        break;
      case ProgramOpKind::kDataGradient:
        if (!Convolution{to, *of[1], *of[0], op.stride, op.pad}.Fits()) return false;
        break;
      case ProgramOpKind::kWeightGradient:
        if (!Convolution{*of[0], to, *of[1], op.stride, op.pad}.Fits()) return false;
        break;
    }
  }
  return !ops.empty();
}

bool Program::HasProduct() const {
  return std::any_of(ops.begin(), ops.end(),
                     [](const ProgramOp& op) { return op.kind == ProgramOpKind::kProduct; });
}

bool Program::Has16Bits() const {
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return ElementOf(tensor.second.type) != Element::kF32;
  });
}

void Program::Run(const std::map<int64_t, void*>& memory, bool backwards) const {
  Runner runner(*this, memory, backwards);
  for (const ProgramOp& op : ops) runner.Do(op);
}

}  // namespace trainyard::emulator
