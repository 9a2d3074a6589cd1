#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls/certificate.h"
#include "proto/tls/pem_files.h"

namespace trainyard {

// The certificate that a server shows, in memory: what gRPC reads there is always a certificate and
// the key to it, whatever happens to files. For one thread.
class ShownCertificate {
 public:
  // That of the operator. Kept as it was last good while the files are away, broken or half
  // replaced.
  static absl::StatusOr<std::unique_ptr<ShownCertificate>> OfFiles(const TlsFiles& files,
                                                                   absl::Time now);
  // One that `authority` issues for `hosts`, the names and addresses by which agents and clients
  // call this server. Renewed when half of its time is over, or the clock says that it is not
  // valid.
  static absl::StatusOr<std::unique_ptr<ShownCertificate>> OfAuthority(
      const TlsIdentity& authority, const std::vector<std::string>& hosts, absl::Time now);

  virtual ~ShownCertificate() = default;

  // For Server.
  TlsFiles files() const { return {memory_.path(), memory_.path()}; }

  // Call it about once a second. What goes wrong is logged, once, and a certificate that is about
  // to end once a day.
  void LookAgain(absl::Time now);

 protected:
  // What is to be shown now; nullopt: what is shown already.
  virtual absl::StatusOr<std::optional<TlsIdentity>> Next(const CertificateFacts* shown,
                                                          absl::Time now) = 0;

  absl::Status Refresh(absl::Time now);

 private:
  PemInMemory memory_;
  std::string pem_;  // what lies there
  std::optional<CertificateFacts> shown_;
  std::string complaint_;  // the last that was logged
  absl::Time warned_ = absl::InfinitePast();
};

}  // namespace trainyard
