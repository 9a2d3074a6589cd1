#include "proto/tls/certificate.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/digest.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// How far behind ours a clock may be that checks a certificate which was just made. An authority is
// made once, perhaps before the clock of a new machine was set.
constexpr absl::Duration kServersClockDiffers = absl::Hours(24);
constexpr absl::Duration kAuthoritysClockDiffers = absl::Hours(24 * 30);
constexpr size_t kLongestName = 64;  // ub-common-name of RFC 5280

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using Number = std::unique_ptr<BIGNUM, Free<BN_free>>;
using Request = std::unique_ptr<X509_REQ, Free<X509_REQ_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

// What OpenSSL said last. Empties its queue.
std::string OpenSslError() {
  char text[256] = "no reason given";
  if (const unsigned long code = ERR_peek_last_error(); code != 0) {
    ERR_error_string_n(code, text, sizeof(text));
  }
  ERR_clear_error();
  return text;
}

absl::Status Failed(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", OpenSslError()));
}

Bio ReaderOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string TextIn(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

// A key without a pass phrase is asked for none: OpenSSL would ask on the terminal.
int NoPassPhrase(char*, int, int, void*) { return 0; }

absl::StatusOr<Certificate> ParseCertificate(const std::string& pem, const std::string& source) {
  Certificate certificate(PEM_read_bio_X509(ReaderOf(pem).get(), nullptr, NoPassPhrase, nullptr));
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, " holds no certificate: expected PEM text with BEGIN CERTIFICATE (",
                     OpenSslError(), ")"));
  }
  return certificate;
}

absl::StatusOr<Key> ParseKey(const std::string& pem) {
  Key key(PEM_read_bio_PrivateKey(ReaderOf(pem).get(), nullptr, NoPassPhrase, nullptr));
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no private key: expected PEM text with BEGIN PRIVATE KEY, without a pass phrase (",
        OpenSslError(), ")"));
  }
  return key;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string CommonNameOf(const X509* certificate) {
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, sizeof(name));
  return name;
}

std::string TextOf(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<size_t>(ASN1_STRING_length(string))};
}

// "10.0.0.1", or "2001:db8:0:0:0:0:0:1".
std::string AddressOf(const ASN1_STRING* octets) {
  const std::string bytes = TextOf(octets);
  std::vector<std::string> parts;
  if (bytes.size() == 4) {
    for (const char byte : bytes) parts.push_back(absl::StrCat(static_cast<uint8_t>(byte)));
    return absl::StrJoin(parts, ".");
  }
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const int pair = static_cast<uint8_t>(bytes[i]) << 8 | static_cast<uint8_t>(bytes[i + 1]);
    parts.push_back(absl::StrCat(absl::Hex(pair)));
  }
  return absl::StrJoin(parts, ":");
}

std::vector<std::string> HostsOf(const X509* certificate) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> hosts;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) hosts.push_back(TextOf(name->d.dNSName));
    if (name->type == GEN_IPADD) hosts.push_back(AddressOf(name->d.iPAddress));
  }
  return hosts;
}

absl::StatusOr<std::string> PemOf(X509* certificate) {
  const Bio out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(out.get(), certificate) != 1) return Failed("writing a certificate");
  return TextIn(out.get());
}

absl::StatusOr<std::string> PemOf(EVP_PKEY* key) {
  const Bio out(BIO_new(BIO_s_secmem()));
  if (PEM_write_bio_PKCS8PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("writing a private key");
  }
  return TextIn(out.get());
}

bool IsAddress(const std::string& host) {
  const std::unique_ptr<ASN1_OCTET_STRING, Free<ASN1_OCTET_STRING_free>> octets(
      a2i_IPADDRESS(host.c_str()));
  ERR_clear_error();
  return octets != nullptr;
}

// The host as OpenSSL's configuration language has it (x509v3_config), in which commas and colons
// have a meaning: only what is an address, or has the letters of a DNS name, comes into it.
absl::StatusOr<std::string> AlternativeNameOf(const std::string& host) {
  if (IsAddress(host)) return absl::StrCat("IP:", host);
  const bool looks_like_address = host.find_first_not_of("0123456789.") == std::string::npos;
  const size_t star = host.rfind('*');
  const bool star_in_front =
      star == std::string::npos || (star == 0 && absl::StartsWith(host, "*.") && host.size() > 2);
  const auto of_name = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '*' || c == '_';
  };
  if (!looks_like_address && star_in_front && host.size() <= 253 &&
      std::all_of(host.begin(), host.end(), of_name)) {
    return absl::StrCat("DNS:", host);
  }
  return FieldError("host", absl::StrCat("'", host, "'"), "a DNS name or an IP address");
}

absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return Failed(OBJ_nid2ln(nid));
  }
  return absl::OkStatus();
}

struct Wanted {
  std::string name;
  absl::Time not_before, not_after;
  std::vector<std::pair<int, std::string>> extensions;  // by OpenSSL's number of each
};

// Signed by `issuer_key`; without an `issuer` the certificate signs itself.
absl::StatusOr<Certificate> Sign(const Wanted& wanted, EVP_PKEY* key, X509* issuer,
                                 EVP_PKEY* issuer_key) {
  Certificate out(X509_new());
  if (out == nullptr) return Failed("a certificate");
  X509* const certificate = out.get();
  if (issuer == nullptr) issuer = certificate;
  // RFC 5280 wants a positive serial number of at most 20 bytes that nobody can foresee.
  const Number serial(BN_new());
  if (serial == nullptr || BN_rand(serial.get(), 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return Failed("a serial number");
  }
  X509_NAME* const subject = X509_get_subject_name(certificate);
  const auto* name = reinterpret_cast<const unsigned char*>(wanted.name.data());
  if (X509_set_version(certificate, X509_VERSION_3) != 1 ||
      X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_UTF8, name,
                                 static_cast<int>(wanted.name.size()), -1, 0) != 1 ||
      X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) != 1 ||
      ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(wanted.not_before)) ==
          nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(wanted.not_after)) == nullptr ||
      X509_set_pubkey(certificate, key) != 1) {
    return Failed("a certificate");
  }
  for (const auto& [nid, value] : wanted.extensions) {
    TY_RETURN_IF_ERROR(AddExtension(certificate, issuer, nid, value));
  }
  if (X509_sign(certificate, issuer_key, EVP_sha256()) == 0) return Failed("signing");
  return out;
}

absl::StatusOr<Key> MakeKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("a private key");
  return key;
}

// SHA-256 of the DER form of its public half.
absl::StatusOr<std::string> FingerprintOf(EVP_PKEY* key) {
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY(key, &der);
  if (size <= 0) return Failed("the DER form of a public key");
  const std::string digest =
      Sha256Hex({reinterpret_cast<const char*>(der), static_cast<size_t>(size)});
  OPENSSL_free(der);
  return digest;
}

bool IsOurKind(const EVP_PKEY* key) {
  char group[64] = "";
  return EVP_PKEY_is_a(key, "EC") == 1 &&
         EVP_PKEY_get_group_name(key, group, sizeof(group), nullptr) == 1 &&
         absl::string_view(group) == SN_X9_62_prime256v1;
}

// The key that it asks a certificate for, which belongs to the request and lives as long.
absl::StatusOr<std::pair<Request, EVP_PKEY*>> ParseRequest(const std::string& pem) {
  Request request(PEM_read_bio_X509_REQ(ReaderOf(pem).get(), nullptr, NoPassPhrase, nullptr));
  if (request == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no request for a certificate: expected PEM text with BEGIN CERTIFICATE REQUEST (",
        OpenSslError(), ")"));
  }
  EVP_PKEY* const key = X509_REQ_get0_pubkey(request.get());
  if (key == nullptr || !IsOurKind(key)) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        "a request for a certificate: expected an EC key on P-256, found another one");
  }
  if (X509_REQ_verify(request.get(), key) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        "a request for a certificate: it was not signed with the key that it names");
  }
  return std::make_pair(std::move(request), key);
}

absl::Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kLongestName) return absl::OkStatus();
  return FieldError("name", absl::StrCat("'", name, "'"),
                    absl::StrCat("1 to ", kLongestName, " bytes"));
}

// For the public half of `key`.
absl::StatusOr<std::string> Issue(const TlsIdentity& authority, const CertificateRequest& request,
                                  EVP_PKEY* key) {
  TY_RETURN_IF_ERROR(CheckName(request.name));
  TY_ASSIGN_OR_RETURN(const Certificate issuer,
                      ParseCertificate(authority.certificates, "the authority"));
  TY_ASSIGN_OR_RETURN(const Key issuer_key, ParseKey(authority.key));
  std::vector<std::string> hosts, uses;
  for (const std::string& host : request.hosts) {
    TY_ASSIGN_OR_RETURN(hosts.emplace_back(), AlternativeNameOf(host));
  }
  if (request.of_server) uses.push_back("serverAuth");
  if (request.of_client) uses.push_back("clientAuth");
  const absl::Time now = absl::Now();
  if (uses.empty()) {
    return absl::InvalidArgumentError("a certificate must be of a server, of a client, or of both");
  }
  Wanted wanted{
      .name = request.name,
      .not_before = now - kServersClockDiffers,
      .not_after = std::min(now + request.valid_for, TimeOf(X509_get0_notAfter(issuer.get()))),
      .extensions = {{NID_basic_constraints, "critical,CA:FALSE"},
                     {NID_key_usage, "critical,digitalSignature"},
                     {NID_subject_key_identifier, "hash"},
                     {NID_authority_key_identifier, "keyid:always"}}};
  wanted.extensions.emplace_back(NID_ext_key_usage, absl::StrJoin(uses, ","));
  if (!hosts.empty()) {
    wanted.extensions.emplace_back(NID_subject_alt_name, absl::StrJoin(hosts, ","));
  }
  TY_ASSIGN_OR_RETURN(const Certificate certificate,
                      Sign(wanted, key, issuer.get(), issuer_key.get()));
  TY_ASSIGN_OR_RETURN(const std::string pem, PemOf(certificate.get()));
  return absl::StrCat(pem, authority.certificates);
}

}  // namespace

absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem,
                                                 const std::string& source) {
  TY_ASSIGN_OR_RETURN(const Certificate certificate, ParseCertificate(pem, source));
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate.get(), &der);
  if (size <= 0) return Failed("the DER form of a certificate");
  CertificateFacts facts{
      .subject = CommonNameOf(certificate.get()),
      .hosts = HostsOf(certificate.get()),
      .not_before = TimeOf(X509_get0_notBefore(certificate.get())),
      .not_after = TimeOf(X509_get0_notAfter(certificate.get())),
      .is_authority = X509_check_ca(certificate.get()) == 1,
      .fingerprint = Sha256Hex({reinterpret_cast<const char*>(der), static_cast<size_t>(size)})};
  OPENSSL_free(der);
  EVP_PKEY* const key = X509_get0_pubkey(certificate.get());
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, " holds a certificate with an unknown key (", OpenSslError(), ")"));
  }
  TY_ASSIGN_OR_RETURN(facts.key_fingerprint, FingerprintOf(key));
  return facts;
}

absl::StatusOr<std::string> CertificatesIn(const std::string& pem, const std::string& source) {
  const Bio in = ReaderOf(pem);
  std::string all;
  while (true) {
    const Certificate certificate(PEM_read_bio_X509(in.get(), nullptr, NoPassPhrase, nullptr));
    if (certificate == nullptr) break;
    TY_ASSIGN_OR_RETURN(const std::string one, PemOf(certificate.get()));
    all += one;
  }
  // The first that cannot be read ends it: after good ones it is the end of the text.
  const unsigned long error = ERR_peek_last_error();
  if (!all.empty() && ERR_GET_REASON(error) == PEM_R_NO_START_LINE) {
    ERR_clear_error();
    return all;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(source, " holds no certificate, or a broken one: expected PEM text with BEGIN ",
                   "CERTIFICATE (", OpenSslError(), ")"));
}

absl::Status CheckKeyOfCertificate(const TlsIdentity& identity) {
  TY_ASSIGN_OR_RETURN(const Certificate certificate,
                      ParseCertificate(identity.certificates, "the certificate"));
  TY_ASSIGN_OR_RETURN(const Key key, ParseKey(identity.key));
  if (X509_check_private_key(certificate.get(), key.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return absl::InvalidArgumentError("the private key is not that of the certificate");
}

absl::StatusOr<TlsIdentity> MakeAuthority(const std::string& name, absl::Duration valid_for) {
  TY_RETURN_IF_ERROR(CheckName(name));
  TY_ASSIGN_OR_RETURN(const Key key, MakeKey());
  const absl::Time now = absl::Now();
  const Wanted wanted{.name = name,
                      .not_before = now - kAuthoritysClockDiffers,
                      .not_after = now + valid_for,
                      .extensions = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                     {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                     {NID_subject_key_identifier, "hash"}}};
  TY_ASSIGN_OR_RETURN(const Certificate certificate, Sign(wanted, key.get(), nullptr, key.get()));
  TlsIdentity authority;
  TY_ASSIGN_OR_RETURN(authority.certificates, PemOf(certificate.get()));
  TY_ASSIGN_OR_RETURN(authority.key, PemOf(key.get()));
  return authority;
}

absl::Status CheckHost(const std::string& host) { return AlternativeNameOf(host).status(); }

absl::StatusOr<TlsIdentity> IssueCertificate(const TlsIdentity& authority,
                                             const CertificateRequest& request) {
  TY_ASSIGN_OR_RETURN(const Key key, MakeKey());
  TlsIdentity identity;
  TY_ASSIGN_OR_RETURN(identity.certificates, Issue(authority, request, key.get()));
  TY_ASSIGN_OR_RETURN(identity.key, PemOf(key.get()));
  return identity;
}

absl::StatusOr<std::string> MakePrivateKey() {
  TY_ASSIGN_OR_RETURN(const Key key, MakeKey());
  return PemOf(key.get());
}

absl::StatusOr<std::string> MakeSigningRequest(const std::string& private_key) {
  TY_ASSIGN_OR_RETURN(const Key key, ParseKey(private_key));
  const Request request(X509_REQ_new());
  const Bio out(BIO_new(BIO_s_mem()));
  if (request == nullptr || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0 ||
      PEM_write_bio_X509_REQ(out.get(), request.get()) != 1) {
    return Failed("a request for a certificate");
  }
  return TextIn(out.get());
}

absl::StatusOr<std::string> KeyOfSigningRequest(const std::string& signing_request) {
  TY_ASSIGN_OR_RETURN(const auto parsed, ParseRequest(signing_request));
  return FingerprintOf(parsed.second);
}

absl::StatusOr<std::string> SignCertificate(const TlsIdentity& authority,
                                            const std::string& signing_request,
                                            const CertificateRequest& request) {
  TY_ASSIGN_OR_RETURN(const auto parsed, ParseRequest(signing_request));
  return Issue(authority, request, parsed.second);
}

}  // namespace trainyard
