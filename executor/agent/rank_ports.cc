#include "executor/agent/rank_ports.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

// Below those that Linux gives to connections by itself.
constexpr int kFirst = 20000, kEnd = 32000;

bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int one = 1;  // as ranks do: connections that are over do not count
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  const bool free =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0;
  close(fd);
  return free;
}

// FNV-1a.
uint64_t HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

absl::StatusOr<int> FreeRankPorts(absl::string_view node, int slots) {
  const int runs = (kEnd - kFirst) / slots;
  for (int i = 0; i < runs; ++i) {
    const int first = kFirst + static_cast<int>((HashOf(node) + i) % runs) * slots;
    int port = first;
    while (port < first + slots && IsFree(port)) ++port;
    if (port == first + slots) return first;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no ", slots, " free ports in a row from ", kFirst, " to ", kEnd - 1,
                   " by which other ranks could reach those of this node; --rank-port names "
                   "others"));
}

std::string WithPort(absl::string_view host, int port) {
  const bool bare_ipv6 = host.find(':') != host.npos && host[0] != '[';
  return absl::StrCat(bare_ipv6 ? "[" : "", host, bare_ipv6 ? "]" : "", ":", port);
}

}  // namespace trainyard
