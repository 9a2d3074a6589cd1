#include "executor/run/orders.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::run {
namespace {

constexpr size_t kLongestLine = 1 << 16;

// The name of the folder's field where there is a user, or a worker must be confined. A worker of
// before, which would run as the agent and unconfined, finds no folder then and ends.
constexpr char kFolder[] = "run_dir";
constexpr char kFolderOfNewer[] = "run_dir_of_user";

union OneDescriptor {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

nlohmann::json ToJson(const UnixUser& user) {
  return {{"name", user.name},
          {"uid", user.uid},
          {"gid", user.gid},
          {"groups", user.groups},
          {"home", user.home}};
}

UnixUser UserOf(const nlohmann::json& json) {
  return {.name = json.at("name").get<std::string>(),
          .uid = json.at("uid").get<uid_t>(),
          .gid = json.at("gid").get<gid_t>(),
          .groups = json.at("groups").get<std::vector<gid_t>>(),
          .home = json.at("home").get<std::string>()};
}

}  // namespace

absl::Status GiveOrders(int socket, const Orders& orders, int state) {
  nlohmann::json json = {
      {orders.user || orders.confined ? kFolderOfNewer : kFolder, orders.run_directory},
      {"device", orders.device},
      {"threads", orders.threads},
      {"kept_state_room", orders.kept_state_room},
      {"environment", orders.environment}};
  if (orders.user) json["user"] = ToJson(*orders.user);
  const std::string line =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (line.size() > kLongestLine) {
    return absl::InvalidArgumentError(
        absl::StrCat("the orders have ", line.size(), " bytes, at most ", kLongestLine, " fit"));
  }
  OneDescriptor ancillary{};
  iovec piece{const_cast<char*>(line.data()), line.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (state >= 0) {
    message.msg_control = ancillary.bytes;
    message.msg_controllen = sizeof ancillary.bytes;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &state, sizeof(int));
  }
  constexpr char kWhat[] = "cannot hand the rank to a worker";
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  if (sent < 0) return ErrnoStatus(errno, kWhat);
  return WriteAll(socket, absl::string_view(line).substr(sent), kWhat);
}

absl::StatusOr<Orders> ParseOrders(const std::string& line) {
  try {
    const nlohmann::json json = nlohmann::json::parse(line);
    Orders orders;
    if (json.contains("user")) orders.user = UserOf(json.at("user"));
    orders.confined = json.contains(kFolderOfNewer);
    orders.run_directory =
        json.at(orders.user || orders.confined ? kFolderOfNewer : kFolder).get<std::string>();
    orders.device = json.at("device").get<std::string>();
    orders.threads = json.at("threads").get<int>();
    orders.kept_state_room = json.value("kept_state_room", int64_t{0});
    orders.environment = json.value("environment", std::map<std::string, std::string>());
    return orders;
  } catch (const nlohmann::json::parse_error& e) {
    // Its text quotes what it could not read, which may be a secret.
    return absl::InvalidArgumentError(
        absl::StrCat("the orders cannot be read from byte ", e.byte, " on"));
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("the orders cannot be read: ", e.what()));
  }
}

absl::Status OrdersReader::Read(int socket) {
  char bytes[4096];
  OneDescriptor ancillary{};
  iovec piece{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.bytes;
  message.msg_controllen = sizeof ancillary.bytes;
  ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (n < 0 && errno == ENOTSOCK) n = read(socket, bytes, sizeof bytes);  // of an agent of before
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return absl::OkStatus();
  if (n <= 0) return absl::UnavailableError("the agent has gone");
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(h), sizeof fd);
    state_.Reset(fd);
  }
  line_.append(bytes, n);
  const size_t end = line_.find('\n');
  if (end != line_.npos) {
    done_ = true;
    rest_ = line_.substr(end + 1);
    line_.resize(end);
  }
  return line_.size() > kLongestLine ? absl::UnavailableError("the agent sends no line")
                                     : absl::OkStatus();
}

}  // namespace trainyard::run
