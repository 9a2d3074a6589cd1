#include "executor/agent/rank_ports.h"

#include "absl/strings/str_cat.h"
#include "storage/base/free_port.h"

namespace trainyard {
namespace {

// Below those that Linux gives to connections by itself.
constexpr int kFirst = 20000, kEnd = 32000;

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
    while (port < first + slots && PortIsFree(INADDR_ANY, port)) ++port;
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
