#pragma once

// Names the first value of a step that is NaN or infinite.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

// Runs a step again, op by op. Slow: it reads back everything that the ops write.
class NonFiniteSearch {
 public:
  explicit NonFiniteSearch(Session& session);

  // What was found: place, element, value, and what the op read; "" as long as all is finite.
  const std::string& found() const { return found_; }

  // Looks at a tensor that no op of the step wrote; `what` says what it is: "parameter".
  absl::Status Look(plan::TensorId id, const std::string& what, const plan::Instance& place = {});
  // Of a table that is shared out: at the rows that this rank has.
  absl::Status LookAtRows(plan::TensorId table, const std::string& what);
  // Some rank has found something: what comes later is not looked at.
  void LeaveToOthers() { received_ = found_.empty(); }

  // Runs `program`, the kernels of `ops`, one by one, and looks at what they write until one of
  // them writes what is not finite, or reads such a value that another rank made. `where` follows
  // the op's name: "micro-batch 2 of 4". `places`, by op: for which they were prepared; none: for
  // the first.
  absl::Status Run(const std::vector<plan::Op>& ops, const kernels::Kernels& program,
                   const std::string& where, const std::vector<plan::Instance>& places = {});

 private:
  // "element 7 of [3, 4], value inf", or "" when all of the tensor is finite; notes its largest
  // magnitude. `of`: the whole of which the tensor has the elements from number `first` on, if it
  // is a part.
  absl::StatusOr<std::string> Scan(plan::TensorId id, const plan::Instance& place = {},
                                   const plan::Tensor* of = nullptr, int64_t first = 0);
  std::string Inputs(plan::Op op) const;
  absl::Status LookAtReceived(const plan::Op& op, const plan::Instance& place);

  Session& session_;
  std::vector<char> chunk_;
  std::map<plan::TensorId, double> largest_;  // of each tensor, when it was last looked at
  std::string found_;
  bool received_ = false;  // what is not finite came from another rank
};

}  // namespace trainyard::engine
