#include "server/rpc/bridge.h"

#include <grpcpp/server_context.h>

namespace trainyard {
namespace {

constexpr size_t kLongestMessage = 4096;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
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
  return {static_cast<grpc::StatusCode>(status.code()), message};
}

std::string AuthorizationOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found == metadata.end()) return "";
  return {found->second.data(), found->second.size()};
}

}  // namespace trainyard
