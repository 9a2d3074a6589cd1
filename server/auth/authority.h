#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/tls/certificate.h"
#include "storage/authority_store.h"
#include "storage/base/file.h"

namespace trainyard {

// The certificate authority of a yard, which all of its servers share: the certificate and the
// sealed key are in the store, and the key that opens it in `key_file` of each server (64 hex
// digits, readable by its owner alone). The first server makes both.
//
//   kFailedPrecondition  the yard has an authority and there is no such file, or the file holds
//                        another key: copy it from another server
//   kPermissionDenied    others may read the file
//   kInvalidArgument     it holds no key
absl::StatusOr<TlsIdentity> OpenAuthority(AuthorityStore& store, const std::string& key_file);

// The certificate of one server, which the yard's authority issues to it. Lies in memory alone, at
// a path by which this process can read it.
class OwnCertificate {
 public:
  // `hosts` are the names and addresses by which agents and clients call this server.
  static absl::StatusOr<OwnCertificate> Issue(TlsIdentity authority,
                                              std::vector<std::string> hosts);

  // Certificate and key in one PEM file.
  const std::string& path() const { return path_; }

  // Puts a new certificate in the place of the old one, which would end within two months.
  absl::Status Renew();

 private:
  OwnCertificate(TlsIdentity authority, std::vector<std::string> hosts)
      : authority_(std::move(authority)), hosts_(std::move(hosts)) {}

  TlsIdentity authority_;
  std::vector<std::string> hosts_;
  FileDescriptor memory_;
  std::string path_;
};

}  // namespace trainyard
