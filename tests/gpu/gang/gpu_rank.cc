#include "tests/gpu/gang/gpu_rank.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "tests/gpu/gang/rank_device.h"

namespace trainyard::engine::testing {
namespace {

constexpr absl::Duration kMeeting = absl::Seconds(20);

absl::Status Meet(GpuRank& rank, const Rendezvous& rendezvous) {
  TY_ASSIGN_OR_RETURN(rank.host, engine::Meet(rendezvous));
  TY_ASSIGN_OR_RETURN(rank.device, OpenGpuOf(rendezvous.rank));
  rank.stream = rank.device->MakeStream();
  TY_ASSIGN_OR_RETURN(rank.links, NcclCommunicator::Make(*rank.device, *rank.host, kMeeting));
  return absl::OkStatus();
}

class OnGpus : public Communicator {
 public:
  explicit OnGpus(GpuRank& rank) : rank_(rank) {}

  int rank() const override { return rank_.rank(); }
  int size() const override { return rank_.size(); }

  absl::Status Exchange(absl::Span<const Transfer> transfers) override {
    std::deque<DeviceBytes> memory;
    std::vector<Transfer> on_device;
    for (const Transfer& transfer : transfers) {
      DeviceBytes& sent = memory.emplace_back(*rank_.device, transfer.send.size());
      sent.Write(*rank_.stream, std::string(transfer.send.begin(), transfer.send.end()));
      DeviceBytes& received = memory.emplace_back(*rank_.device, transfer.receive.size());
      on_device.push_back({.peer = transfer.peer, .send = sent.span(), .receive = received.span()});
    }
    TY_RETURN_IF_ERROR(rank_.links->Exchange(*rank_.stream, on_device));
    for (size_t i = 0; i < transfers.size(); ++i) {
      memory[2 * i + 1].Read(*rank_.stream, transfers[i].receive.data());
    }
    return rank_.Await(*rank_.stream);
  }

  void Abort(absl::Status why) override { rank_.links->Abort(std::move(why)); }
  absl::Status Failure() const override { return rank_.links->Health(); }
  std::string name(int rank) const override { return rank_.host->name(rank); }
  void SetPatience(absl::Duration patience) override { rank_.links->SetPatience(patience); }
  int64_t bytes_sent() const override { return rank_.links->bytes_sent(); }
  std::string description() const override { return rank_.links->description(); }

 private:
  GpuRank& rank_;
};

}  // namespace

DeviceBytes::DeviceBytes(kernels::Device& device, size_t bytes) : device_(device), bytes_(bytes) {
  auto data = device.Allocate(bytes);
  TY_CHECK(data.ok(), data.status().ToString());
  data_ = *data;
}

void DeviceBytes::Write(kernels::Stream& stream, const std::string& bytes) const {
  device_.CopyIn(stream, data_, bytes.data(), bytes.size());
}

void DeviceBytes::Read(kernels::Stream& stream, char* to) const {
  if (bytes_ > 0) device_.CopyOut(stream, to, data_, bytes_);
}

absl::Status GpuRank::Await(kernels::Stream& on) const {
  const std::unique_ptr<kernels::Event> event = device->MakeEvent();
  device->RecordEvent(*event, on);
  return links->Await(*event);
}

Gang::Body MeetingOnGpus(GpuBody body) {
  return [body](const Rendezvous& rendezvous, const Gang::Say& say) -> std::string {
    GpuRank rank;
    if (absl::Status met = Meet(rank, rendezvous); !met.ok()) {
      return absl::StrCat("Meet: ", met.ToString());
    }
    const absl::Status status = body(rank, say);
    return status.ok() ? "" : status.ToString();
  };
}

std::unique_ptr<Communicator> OverGpus(GpuRank& rank) { return std::make_unique<OnGpus>(rank); }

}  // namespace trainyard::engine::testing
