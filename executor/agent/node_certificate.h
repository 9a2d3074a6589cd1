#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls/certificate.h"

namespace trainyard {

// The certificate by which the yard knows this node, in the agent's state directory:
//   node.key  its private key, made once and told to nobody
//   node.pem  the certificate, by the yard's authority; renewed for the same key
//   yard.pem  the certificate of that authority, by which the agent knows the yard
// Each call reads the files, and replaces a file whole: any number of threads may call.
class NodeCertificate {
 public:
  explicit NodeCertificate(const std::string& state_dir) : folder_(state_dir) {}

  // Whether the node has joined, be its certificate over by now.
  bool exists() const;

  struct Files {
    TlsIdentity own;
    std::string authorities;    // PEM text
    bool should_renew = false;  // half of its time is over
  };
  // kNotFound: the node has not joined. kFailedPrecondition: the certificate is over, or not valid
  // yet by this machine's clock. kInvalidArgument: a file is broken, and named.
  absl::StatusOr<Files> Read(absl::Time now) const;

  // What the yard is asked for a certificate with (MakeSigningRequest). Makes the key if there is
  // none; a certificate for an earlier one is removed then.
  absl::StatusOr<std::string> SigningRequest() const;

  // kInvalidArgument: `certificates`, PEM text, do not begin with one of this node's key. A crash
  // in between leaves what was there before, or nothing if it was of another yard.
  absl::Status Keep(const std::string& certificates, const std::string& authorities) const;

 private:
  std::string PathOf(const char* file) const { return folder_ + "/" + file; }
  absl::StatusOr<std::string> ReadKey() const;
  absl::Status Forget() const;

  std::string folder_;
};

}  // namespace trainyard
