#pragma once

// Graphs of operations as cuDNN's documentation tells what they mean, in plain loops over fp32:
// what the emulated library runs.

#include <cudnn.h>

#include <cstdint>
#include <map>
#include <vector>

#include "element.h"

namespace trainyard::emulator {

struct ProgramTensor {
  int64_t id = 0;
  std::vector<int64_t> dims, strides;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool is_virtual = false, by_value = false;

  int64_t elements() const;
};

enum class ProgramOpKind {
  kPointwise,
  kIndex,
  kReduce,
  kProduct,
  kReshape,
  kForward,
  kDataGradient,
  kWeightGradient
};

// The operands in the order in which the library's descriptor names them; the result is the last.
struct ProgramOp {
  ProgramOpKind kind;
  int mode = 0;      // of pointwise operations and reductions, as cuDNN counts them
  int64_t axis = 0;  // of indices
  int64_t stride = 1, pad = 0;
  std::vector<int64_t> tensors;  // ids
};

class Program {
 public:
  std::map<int64_t, ProgramTensor> tensors;
  std::vector<ProgramOp> ops;  // each after those whose results it reads

  // Whether shapes and types fit each other.
  bool Valid() const;
  bool HasProduct() const;
  bool Has16Bits() const;

  // `memory` by id: of the device, or of a value on the host. `backwards`: sums over channels from
  // the other end.
  void Run(const std::map<int64_t, void*>& memory, bool backwards) const;
};

}  // namespace trainyard::emulator
