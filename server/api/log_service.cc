#include <grpcpp/grpcpp.h>

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api/log_tail.h"
#include "server/api/names.h"
#include "server/api/services.h"
#include "server/api/stream_caller.h"
#include "server/rpc/bridge.h"
#include "server/rpc/write_stream.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

constexpr int64_t kMostBytes = 16 << 20;

absl::Status CheckRequest(const v1::TailLogsRequest& request) {
  if (request.attempt() < 0) return FieldError("attempt", request.attempt(), "at least 0");
  if (request.rank() < 0) return FieldError("rank", request.rank(), "at least 0");
  if (request.last_bytes() < 0 || request.last_bytes() > kMostBytes) {
    return FieldError("last_bytes", request.last_bytes(), absl::StrCat("0 to ", kMostBytes));
  }
  return absl::OkStatus();
}

class LogStream final : public WriteStream<v1::TailLogsResponse>, public LogSink {
 public:
  static LogStream* Begin(grpc::CallbackServerContext& context, const ServiceDependencies& b,
                          const v1::TailLogsRequest& request) {
    auto* stream = new LogStream(context);  // deletes itself in OnDone
    // Called while the stream lives, and has its tail.
    auto open = [caller = StreamCaller(context, b, "TailLogs"), request, stream,
                 &b]() -> absl::StatusOr<RankRecord> {
      TY_ASSIGN_OR_RETURN(stream->guard_, caller.Admit(request.job(), stream->tail_));
      TY_RETURN_IF_ERROR(CheckRequest(request));
      TY_ASSIGN_OR_RETURN(const JobName name, ParseJobName("job", request.job()));
      TY_ASSIGN_OR_RETURN(const JobRecord job, b.stores.jobs().Get(name));
      if (job.attempt == 0) {
        return absl::NotFoundError(
            absl::StrCat(request.job(), ": no attempt was started yet (", job.reason.message, ")"));
      }
      return b.stores.fleet().FindRank(job.uid, request.attempt(), request.rank());
    };
    LogTailOptions options{.follow = request.follow()};
    if (request.last_bytes() > 0) options.last_bytes = request.last_bytes();
    stream->tail_ = std::make_shared<LogTail>(b.pool, b.fleet, std::move(open), options, *stream);
    const std::shared_ptr<LogTail> tail = stream->tail_;  // the stream may end at once
    tail->Poke();
    return stream;
  }

 private:
  explicit LogStream(grpc::CallbackServerContext& context) : WriteStream(context) {}

  // LogSink
  void Send(const RankRecord& rank, const LogPiece& piece) override {
    std::deque<v1::TailLogsResponse> responses(1);
    responses.front().set_data(piece.data);
    responses.front().set_offset(piece.offset);
    responses.front().set_attempt(rank.id.attempt);
    responses.front().set_node(rank.node);
    Write(std::move(responses));
  }
  void Finish(const absl::Status& status) override { FinishWith(status); }

  // WriteStream
  void AllWritten() override { tail_->Sent(); }
  void Left() override { tail_->Cancel(); }

  std::shared_ptr<LogTail> tail_;  // shared with the tasks of the pool
  std::shared_ptr<void> guard_;    // ends it should the caller's token not count any more
};

using LogServiceBase = v1::LogService::WithCallbackMethod_TailLogs<v1::LogService::Service>;

class LogService final : public LogServiceBase {
 public:
  explicit LogService(const ServiceDependencies& dependencies) : b_(dependencies) {}

  grpc::ServerWriteReactor<v1::TailLogsResponse>* TailLogs(
      grpc::CallbackServerContext* context, const v1::TailLogsRequest* request) override {
    return LogStream::Begin(*context, b_, *request);
  }

 private:
  const ServiceDependencies b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeLogService(const ServiceDependencies& dependencies) {
  return std::make_shared<LogService>(dependencies);
}

}  // namespace trainyard
