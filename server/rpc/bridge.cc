#include "server/rpc/bridge.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace trainyard {
namespace {

constexpr size_t kLongestMessage = 4096;

}  // namespace

google::rpc::Status ToMessage(const absl::Status& status) {
  std::string message(status.message());
  if (message.size() > kLongestMessage) {
    message.resize(kLongestMessage);
    // Not in the middle of a character: clients decode trailers as UTF-8.
    while (!message.empty() && (static_cast<unsigned char>(message.back()) & 0xc0) == 0x80) {
      message.pop_back();
    }
    if (!message.empty() && static_cast<unsigned char>(message.back()) >= 0xc0) message.pop_back();
    message += "…";
  }
  google::rpc::Status out;
  out.set_code(static_cast<int>(status.code()));
  out.set_message(std::move(message));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    google::protobuf::Any& any = *out.add_details();
    any.set_type_url(std::string(type));
    any.set_value(std::string(payload));
  });
  return out;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status out = ToMessage(status);
  const auto code = static_cast<grpc::StatusCode>(out.code());
  if (out.details().empty()) return {code, out.message()};
  return {code, out.message(), out.SerializeAsString()};
}

absl::Status WithRetryInfo(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  info.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(delay - absl::Trunc(delay, absl::Seconds(1)))));
  status.SetPayload(
      absl::StrCat("type.googleapis.com/", google::rpc::RetryInfo::descriptor()->full_name()),
      absl::Cord(info.SerializeAsString()));
  return status;
}

std::string AuthorizationOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found == metadata.end()) return "";
  return {found->second.data(), found->second.size()};
}

}  // namespace trainyard
