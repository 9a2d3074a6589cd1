#include "executor/engine/parallel/data_link.h"

#include "absl/strings/str_cat.h"

namespace trainyard::engine {

absl::Status CheckHeader(const MessageHeader& header, uint64_t number, size_t send, size_t receive,
                         const LinkNames& names) {
  if (header.magic != MessageHeader::kMagic) {
    return absl::UnavailableError(absl::StrCat(names.peer, " sent what is no message"));
  }
  if (header.number != number) {
    return absl::InternalError(absl::StrCat(
        names.peer, " sent ", header.length, " bytes in its exchange ", header.number, " with ",
        names.self, ", which expected ", receive, " bytes in exchange ", number));
  }
  if (header.length != receive) {
    return absl::InternalError(absl::StrCat(names.peer, " sent ", header.length, " bytes where ",
                                            receive, " were expected by ", names.self));
  }
  if (header.expects != send) {
    return absl::InternalError(absl::StrCat(names.self, " sent ", send, " bytes where ",
                                            header.expects, " were expected by ", names.peer));
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
