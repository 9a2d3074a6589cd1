#pragma once

// A watch as a gRPC stream. Includes gRPC: only for .cc files.

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/api/names.h"
#include "server/api/services.h"
#include "server/api/stream_caller.h"
#include "server/rpc/bridge.h"
#include "server/rpc/write_stream.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"

namespace trainyard {

template <typename Response>
class WatchStream final : public WriteStream<Response>, public WatchSink {
 public:
  // The responses that are sent for a batch; may be none.
  using ToResponses = std::function<std::deque<Response>(const WatchBatch&)>;

  // `field` is the request's field with the job's `name`.
  static WatchStream* Begin(grpc::CallbackServerContext& context, const ServiceDependencies& b,
                            std::string field, std::string name, int64_t after,
                            ToResponses to_responses) {
    auto* stream = new WatchStream(context, std::move(to_responses));  // deletes itself in OnDone
    // Called while the stream lives, and has its watch.
    auto open = [caller = StreamCaller(context, b, MethodName()), field = std::move(field),
                 name = std::move(name), after, stream,
                 &jobs = b.stores.jobs()]() -> absl::StatusOr<JobRecord> {
      TY_ASSIGN_OR_RETURN(stream->guard_, caller.Admit(name, stream->watch_));
      TY_ASSIGN_OR_RETURN(const JobName job, ParseJobName(field, name));
      if (after < 0) return FieldError("after_sequence", after, "at least 0");
      return jobs.Get(job);
    };
    stream->watch_ = b.watches.Make(std::move(open), after, *stream);
    const std::shared_ptr<Watch> watch = stream->watch_;  // the stream may end at once
    b.watches.Begin(watch);
    return stream;
  }

 private:
  // "WatchJob" of a WatchJobResponse.
  static std::string MethodName() {
    const std::string& name = Response::descriptor()->name();
    return name.substr(0, name.size() - absl::string_view("Response").size());
  }

  WatchStream(grpc::CallbackServerContext& context, ToResponses to_responses)
      : WriteStream<Response>(context), to_responses_(std::move(to_responses)) {}

  // WatchSink
  bool Send(WatchBatch batch) override {
    std::deque<Response> responses = to_responses_(batch);
    if (responses.empty()) return false;
    this->Write(std::move(responses));
    return true;
  }
  void Abort() override { this->Abandon(); }
  void Finish(const absl::Status& status) override { this->FinishWith(status); }

  // WriteStream
  void AllWritten() override { watch_->Sent(); }
  void Left() override { watch_->Cancel(); }

  const ToResponses to_responses_;
  std::shared_ptr<Watch> watch_;  // shared with the hub, which drops it when it finishes
  std::shared_ptr<void> guard_;   // ends the watch should the caller's token not count any more
};

}  // namespace trainyard
