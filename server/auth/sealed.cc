#include "server/auth/sealed.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <memory>

#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kNonceBytes = 12;
constexpr int kTagBytes = 16;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

unsigned char* Bytes(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }
const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string MakeSealKey() {
  std::string key(kSealKeyBytes, 0);
  TY_CHECK(RAND_bytes(Bytes(key), static_cast<int>(key.size())) == 1, "no random numbers");
  return key;
}

absl::StatusOr<std::string> Seal(const std::string& key, absl::string_view text,
                                 absl::string_view about) {
  TY_CHECK(key.size() == kSealKeyBytes, "a key of another length");
  std::string out(kNonceBytes + text.size() + kTagBytes, 0);
  const Context context(EVP_CIPHER_CTX_new());
  int size = 0;
  if (context == nullptr || RAND_bytes(Bytes(out), kNonceBytes) != 1 ||
      EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, Bytes(absl::string_view(key)),
                         Bytes(out)) != 1 ||
      EVP_EncryptUpdate(context.get(), nullptr, &size, Bytes(about),
                        static_cast<int>(about.size())) != 1 ||
      EVP_EncryptUpdate(context.get(), Bytes(out) + kNonceBytes, &size, Bytes(text),
                        static_cast<int>(text.size())) != 1 ||
      EVP_EncryptFinal_ex(context.get(), Bytes(out) + kNonceBytes + text.size(), &size) != 1 ||
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes,
                          Bytes(out) + kNonceBytes + text.size()) != 1) {
    return absl::InternalError("AES-256-GCM could not encrypt");
  }
  return out;
}

absl::StatusOr<std::string> Unseal(const std::string& key, absl::string_view sealed,
                                   absl::string_view about) {
  TY_CHECK(key.size() == kSealKeyBytes, "a key of another length");
  const absl::Status changed =
      absl::DataLossError("sealed under another key or for something else, or changed since");
  if (sealed.size() < kNonceBytes + kTagBytes) return changed;
  const absl::string_view nonce = sealed.substr(0, kNonceBytes);
  const absl::string_view text =
      sealed.substr(kNonceBytes, sealed.size() - kNonceBytes - kTagBytes);
  std::string tag(sealed.substr(sealed.size() - kTagBytes));
  std::string out(text.size() + 1, 0);  // one more: an empty text has an address, too
  const Context context(EVP_CIPHER_CTX_new());
  int size = 0;
  if (context == nullptr ||
      EVP_DecryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, Bytes(absl::string_view(key)),
                         Bytes(nonce)) != 1 ||
      EVP_DecryptUpdate(context.get(), nullptr, &size, Bytes(about),
                        static_cast<int>(about.size())) != 1 ||
      EVP_DecryptUpdate(context.get(), Bytes(out), &size, Bytes(text),
                        static_cast<int>(text.size())) != 1 ||
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, Bytes(tag)) != 1) {
    return absl::InternalError("AES-256-GCM could not decrypt");
  }
  if (EVP_DecryptFinal_ex(context.get(), Bytes(out) + text.size(), &size) != 1) return changed;
  out.resize(text.size());
  return out;
}

}  // namespace trainyard
