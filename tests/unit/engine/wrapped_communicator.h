#pragma once

// A communicator with something around what it exchanges.

#include <string>
#include <utility>

#include "executor/engine/parallel/communicator.h"

namespace trainyard::engine {

// Does what `real` does, but for what a test overrides.
class WrappedCommunicator : public Communicator {
 public:
  // `real` must outlive it.
  explicit WrappedCommunicator(Communicator& real) : real_(real) {}

  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  absl::Status Exchange(absl::Span<const Transfer> transfers) override {
    return real_.Exchange(transfers);
  }
  void Abort(absl::Status why) override { real_.Abort(std::move(why)); }
  absl::Status Failure() const override { return real_.Failure(); }
  std::string name(int rank) const override { return real_.name(rank); }
  void SetPatience(absl::Duration patience) override { real_.SetPatience(patience); }
  int64_t bytes_sent() const override { return real_.bytes_sent(); }

 private:
  Communicator& real_;
};

}  // namespace trainyard::engine
