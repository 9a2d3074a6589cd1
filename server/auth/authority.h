#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/tls/certificate.h"
#include "storage/authority_store.h"

namespace trainyard {

// The certificate authority of a yard, which all of its servers share: the certificate and the
// sealed key are in the store, and the key that opens it in `key_file` of each server (64 hex
// digits, not for everybody to read). The first server makes both.
//
//   kFailedPrecondition  the yard has an authority and there is no such file, or the file holds
//                        another key: copy it from another server
//   kPermissionDenied    everybody may read the file
//   kInvalidArgument     it holds no key
absl::StatusOr<TlsIdentity> OpenAuthority(AuthorityStore& store, const std::string& key_file);

}  // namespace trainyard
