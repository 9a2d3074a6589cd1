#include "server/auth/shown_certificate.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr absl::Duration kValid = absl::Hours(24 * 60);
constexpr absl::Duration kWarnBefore = absl::Hours(24 * 14);
constexpr absl::Duration kWarnEvery = absl::Hours(24);

class OfOperator final : public ShownCertificate {
 public:
  explicit OfOperator(TlsFiles files) : files_(std::move(files)) {}

 private:
  absl::StatusOr<std::optional<TlsIdentity>> Next(const CertificateFacts*,
                                                  absl::Time now) override {
    return ReadTlsFiles(files_, now);
  }

  const TlsFiles files_;
};

class OfYard final : public ShownCertificate {
 public:
  OfYard(TlsIdentity authority, std::vector<std::string> hosts)
      : authority_(std::move(authority)), hosts_(std::move(hosts)) {}

 private:
  absl::StatusOr<std::optional<TlsIdentity>> Next(const CertificateFacts* shown,
                                                  absl::Time now) override {
    const bool good =
        shown != nullptr && now > shown->not_before && shown->not_after - now > kValid / 2;
    // An authority that ends soon cannot give more time.
    if (good || (shown != nullptr && now - issued_ < kWarnEvery && now > issued_)) {
      return std::nullopt;
    }
    issued_ = now;
    TY_ASSIGN_OR_RETURN(
        TlsIdentity issued,
        IssueCertificate(
            authority_,
            {.name = "trainyard-server", .hosts = hosts_, .of_server = true, .valid_for = kValid}));
    return issued;
  }

  const TlsIdentity authority_;
  const std::vector<std::string> hosts_;
  absl::Time issued_ = absl::InfinitePast();
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShownCertificate>> ShownCertificate::OfFiles(const TlsFiles& files,
                                                                            absl::Time now) {
  auto shown = std::make_unique<OfOperator>(files);
  TY_RETURN_IF_ERROR(shown->Refresh(now));
  return shown;
}

absl::StatusOr<std::unique_ptr<ShownCertificate>> ShownCertificate::OfAuthority(
    const TlsIdentity& authority, const std::vector<std::string>& hosts, absl::Time now) {
  auto shown = std::make_unique<OfYard>(authority, hosts);
  TY_RETURN_IF_ERROR(shown->Refresh(now));
  return shown;
}

absl::Status ShownCertificate::Refresh(absl::Time now) {
  TY_ASSIGN_OR_RETURN(const std::optional<TlsIdentity> next,
                      Next(shown_.has_value() ? &*shown_ : nullptr, now));
  if (!next.has_value()) return absl::OkStatus();
  std::string pem = absl::StrCat(next->key, next->certificates);
  if (pem == pem_) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(CertificateFacts facts, ReadCertificate(next->certificates, "it"));
  TY_RETURN_IF_ERROR(memory_.Write(pem));
  pem_ = std::move(pem);
  shown_ = std::move(facts);
  spdlog::info("shows the certificate of {} for {}, valid until {}, fingerprint {}",
               shown_->subject, absl::StrJoin(shown_->hosts, ", "),
               absl::FormatTime(shown_->not_after), shown_->fingerprint);
  return absl::OkStatus();
}

void ShownCertificate::LookAgain(absl::Time now) {
  const absl::Status status = Refresh(now);
  const std::string complaint = status.ok() ? "" : status.ToString();
  if (complaint != complaint_ && !status.ok()) {
    spdlog::error("goes on with the certificate that it has: {}", complaint);
  }
  complaint_ = complaint;
  if (shown_->not_after - now < kWarnBefore && now - warned_ >= kWarnEvery) {
    warned_ = now;
    spdlog::warn("the certificate that is shown ends on {}", absl::FormatTime(shown_->not_after));
  }
}

}  // namespace trainyard
