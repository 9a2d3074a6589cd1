#include "storage/base/server_list.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// gRPC would take port 99999 for 34463 (modulo 65536), so the range is checked here.
absl::Status CheckPort(const std::string& server, const std::string& port) {
  int number = 0;
  if (absl::SimpleAtoi(port, &number) && number >= 1 && number <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("server '", Printable(server), "': the port is '",
                                                 Printable(port),
                                                 "'; expected a number from 1 to 65535"));
}

absl::Status CheckServer(const std::string& server) {
  const auto refuse = [&server](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("server '", Printable(server), "': ", why, "; expected HOST:PORT"));
  };
  if (server.empty()) return refuse("the address is empty");
  if (std::any_of(server.begin(), server.end(),
                  [](unsigned char c) { return c <= ' ' || c == 0x7f; })) {
    return refuse("an address has no spaces and no control characters");
  }
  if (absl::StartsWith(server, "unix") || absl::StrContains(server, "://") ||
      absl::StrContains(server, ":///")) {
    return absl::OkStatus();
  }
  if (absl::StrContains(server, '/')) return refuse("a host has no '/'");
  const size_t colon = server.rfind(':');
  if (colon == std::string::npos) return absl::OkStatus();
  if (colon == 0) return refuse("the host is missing");
  if (server[0] == '[') {
    const size_t bracket = server.find(']');
    if (bracket == std::string::npos) return refuse("the ']' is missing");
    if (bracket + 1 == server.size()) return absl::OkStatus();
    if (bracket + 1 != colon) return refuse("only ':PORT' follows ']'");
  } else if (server.find(':') != colon) {
    return absl::OkStatus();  // a bare IPv6 address
  }
  return CheckPort(server, server.substr(colon + 1));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseServers(absl::string_view list) {
  std::vector<std::string> servers;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    std::string server(absl::StripAsciiWhitespace(part));
    TY_RETURN_IF_ERROR(CheckServer(server));
    if (std::find(servers.begin(), servers.end(), server) == servers.end()) {
      servers.push_back(std::move(server));
    }
  }
  return servers;
}

bool IsLoopback(absl::string_view server) {
  if (absl::StartsWith(server, "unix:")) return true;
  const std::string host(server.substr(0, server.rfind(':')));
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return (ntohl(address.s_addr) >> 24) == 127;
  return host == "localhost" || host == "[::1]" || host == "::1";
}

}  // namespace trainyard
