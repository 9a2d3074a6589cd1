#include "executor/engine/parallel/authentication.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

const unsigned char* Unsigned(const char* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Unsigned(char* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

Nonce RandomNonce() {
  Nonce nonce;
  TY_CHECK(RAND_bytes(Unsigned(nonce.data()), nonce.size()) == 1, "no random numbers");
  return nonce;
}

Digest Sha256Of(absl::string_view data) {
  Digest digest;
  SHA256(Unsigned(data.data()), data.size(), Unsigned(digest.data()));
  return digest;
}

Digest HmacSha256(absl::string_view key, absl::string_view data) {
  Digest digest;
  unsigned int bytes = 0;
  TY_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), Unsigned(data.data()),
                data.size(), Unsigned(digest.data()), &bytes) != nullptr &&
               bytes == digest.size(),
           "HMAC-SHA256 failed");
  return digest;
}

bool SameBytes(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

struct MessageMac::Context {
  EVP_CIPHER_CTX* cipher = EVP_CIPHER_CTX_new();
  ~Context() { EVP_CIPHER_CTX_free(cipher); }
};

MessageMac::MessageMac(const MacKey& key) : context_(std::make_unique<Context>()) {
  TY_CHECK(context_->cipher != nullptr &&
               EVP_EncryptInit_ex(context_->cipher, EVP_aes_128_gcm(), nullptr,
                                  Unsigned(key.data()), nullptr) == 1,
           "AES-128-GCM failed");
}

MessageMac::~MessageMac() = default;

void MessageMac::Begin(uint64_t number, uint32_t part) {
  unsigned char nonce[12];
  std::memcpy(nonce, &number, sizeof number);
  std::memcpy(nonce + sizeof number, &part, sizeof part);
  TY_CHECK(EVP_EncryptInit_ex(context_->cipher, nullptr, nullptr, nullptr, nonce) == 1,
           "AES-128-GCM failed");
}

void MessageMac::Add(absl::string_view data) {
  // OpenSSL takes an int.
  constexpr size_t kMost = size_t{1} << 30;
  while (!data.empty()) {
    const size_t bytes = std::min(data.size(), kMost);
    int written = 0;
    TY_CHECK(EVP_EncryptUpdate(context_->cipher, nullptr, &written, Unsigned(data.data()),
                               static_cast<int>(bytes)) == 1,
             "AES-128-GCM failed");
    data.remove_prefix(bytes);
  }
}

MacTag MessageMac::Finish() {
  MacTag tag;
  int written = 0;
  TY_CHECK(
      EVP_EncryptFinal_ex(context_->cipher, Unsigned(tag.data()), &written) == 1 &&
          EVP_CIPHER_CTX_ctrl(context_->cipher, EVP_CTRL_GCM_GET_TAG, kTagBytes, tag.data()) == 1,
      "AES-128-GCM failed");
  return tag;
}

}  // namespace trainyard::engine
