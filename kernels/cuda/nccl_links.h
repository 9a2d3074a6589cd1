#pragma once

// The links between GPUs, by NCCL.

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/nccl_library.h"
#include "kernels/links.h"

namespace trainyard::kernels::cuda {

// "2.28.9"
absl::StatusOr<std::string> NcclVersion(const Nccl& nccl);

absl::StatusOr<LinksId> NameNcclLinks();

class NcclLinks final : public Links {
 public:
  // Begins to link the current device with those of the other ranks.
  static absl::StatusOr<std::unique_ptr<Links>> Begin(const LinksId& id, int rank, int size);
  ~NcclLinks() override;

  absl::StatusOr<bool> Ready() override;
  absl::Status Exchange(Stream& stream, absl::Span<const LinkTransfer> transfers) override;
  absl::Status Gather(Stream& stream, absl::Span<const LinkPart> parts) override;
  absl::Status Health() override;
  void Abort() override;
  absl::Status Close() override;
  std::string Description() const override;

 private:
  NcclLinks(const Nccl& nccl, int rank, int size) : nccl_(nccl), rank_(rank), size_(size) {}

  // OK also for what is still in progress.
  absl::Status Check(NcclResult result, absl::string_view doing) const;

  const Nccl& nccl_;
  const int rank_, size_;
  NcclComm comm_ = nullptr;  // null once it was aborted
  std::thread aborts_;
};

}  // namespace trainyard::kernels::cuda
