#pragma once

// The server's end of a server-streaming call as a queue. Includes gRPC: only for .cc files.

#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "server/rpc/bridge.h"

namespace trainyard {

// Writes what it is given in order. Lives until OnDone, which gRPC calls once the stream was
// finished and all else is over; then it deletes itself. gRPC's threads call AllWritten and Left of
// the subclass, which must not block.
template <typename Response>
class WriteStream : public grpc::ServerWriteReactor<Response> {
 public:
  explicit WriteStream(grpc::CallbackServerContext& context) : context_(context) {}

  // Takes over a batch of at least one; AllWritten follows, unless FinishWith is called first.
  void Write(std::deque<Response> batch) {
    absl::MutexLock lock(&mu_);
    batch_ = std::move(batch);
    if (!finish_.has_value()) StartNext();
  }

  // Sends the status, after the message that is being written. `this` may be gone afterwards.
  void FinishWith(const absl::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      finish_ = ToGrpc(status);
      if (writing_) return;  // OnWriteDone goes on
    }
    this->Finish(ToGrpc(status));
  }

  void Abandon() { context_.TryCancel(); }

 protected:
  ~WriteStream() override = default;

  virtual void AllWritten() = 0;  // also when the client left before
  virtual void Left() = 0;        // the client left; FinishWith must follow

 private:
  void StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    // No buffer hint, though more follows: with it the first message of a stream, and its
    // completion, wait in gRPC 1.51 until something else writes on the connection (seen: until the
    // keepalive ping, 20 s).
    this->StartWrite(&batch_.front());
  }

  void OnWriteDone(bool ok) final {
    std::optional<grpc::Status> finish;
    bool all = false;
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      batch_.pop_front();
      if (!ok) batch_.clear();
      if (finish_.has_value()) {
        finish = finish_;
      } else if (batch_.empty()) {
        all = true;
      } else {
        StartNext();
      }
    }
    if (finish.has_value()) return this->Finish(*finish);
    if (!ok) Left();
    if (all) AllWritten();
  }
  void OnCancel() final { Left(); }
  void OnDone() final { delete this; }

  grpc::CallbackServerContext& context_;
  absl::Mutex mu_;
  std::deque<Response> batch_ ABSL_GUARDED_BY(mu_);  // the first is being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
