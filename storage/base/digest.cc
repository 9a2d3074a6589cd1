#include "storage/base/digest.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "storage/base/status.h"

namespace trainyard {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  TY_CHECK(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1, "EVP_DigestInit_ex");
}

Sha256::~Sha256() = default;

void Sha256::Add(const void* data, size_t bytes) {
  TY_CHECK(EVP_DigestUpdate(context_->md, data, bytes) == 1, "EVP_DigestUpdate");
}

std::string Sha256::Finish() {
  std::string raw(32, '\0');
  unsigned int size = 0;
  TY_CHECK(
      EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(raw.data()), &size) == 1 &&
          size == 32,
      "EVP_DigestFinal_ex");
  return absl::BytesToHexString(raw);
}

std::string Sha256Hex(absl::string_view text) {
  Sha256 sha;
  sha.Add(text);
  return sha.Finish();
}

}  // namespace trainyard
