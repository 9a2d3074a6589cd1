#include "executor/engine/session.h"

#include <algorithm>
#include <array>
#include <utility>

#include "executor/engine/fault.h"
#include "executor/engine/lowering.h"
#include "executor/plan/cost/cost.h"
#include "executor/plan/graph/stored_shards.h"
#include "storage/base/status.h"

namespace trainyard::engine {

v1::JobSpec PlannedFor(const kernels::Device& device, v1::JobSpec spec, int ranks) {
  v1::Resources& resources = *spec.mutable_resources();
  resources.set_min_slots(ranks);
  resources.set_max_slots(ranks);
  if (device.IsGpu() && resources.device() == v1::Resources::DEVICE_UNSPECIFIED) {
    resources.set_device(v1::Resources::CUDA);
  }
  return spec;
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(kernels::Device& device,
                                                       const plan::Plan& plan) {
  absl::StatusOr<void*> arena = device.Allocate(plan.arena_bytes);
  if (!arena.ok()) {
    return WithFault(Fault::kOutOfMemory,
                     Annotate(arena.status(), absl::StrCat("the plan's arena of ", plan.arena_bytes,
                                                           " bytes on ", device.Description())));
  }
  absl::StatusOr<std::unique_ptr<UploadQueue>> uploads = UploadQueue::Open(device, plan);
  if (!uploads.ok()) {
    device.Free(*arena);
    return uploads.status();
  }
  return std::unique_ptr<Session>(
      new Session(device, plan, static_cast<char*>(*arena), *std::move(uploads)));
}

Session::Session(kernels::Device& device, const plan::Plan& plan, char* arena,
                 std::unique_ptr<UploadQueue> uploads)
    : device_(device),
      plan_(plan),
      arena_(arena),
      stream_(device.MakeStream()),
      uploads_(std::move(uploads)) {}

Session::~Session() {
  Synchronize().IgnoreError();
  if (stream_->scratch != nullptr) device_.Free(stream_->scratch);
  device_.Free(arena_);
}

absl::Status Session::Zero(const plan::Region& region) {
  if (region.bytes == 0) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(kernels::Kernel zero,
                      device_.Prepare(kernels::Zero{
                          .x = {arena_ + region.offset, kernels::DType::kU8}, .n = region.bytes}));
  zero.launch(*stream_);
  return Synchronize();
}

absl::Status Session::DrawNormal(plan::TensorId id, uint64_t seed, uint64_t stream, double std) {
  const plan::Tensor& tensor = plan_.tensors[id];
  for (const plan::DrawnRun& run : plan::DrawnRuns(tensor)) {
    char* const to = At(id, run.offset * sizeof(float), run.n * sizeof(float));
    TY_ASSIGN_OR_RETURN(const kernels::Kernel draw,
                        device_.Prepare(kernels::DrawNormal{.x = {to, kernels::DType::kF32},
                                                            .seed = seed,
                                                            .stream = stream,
                                                            .first = run.first,
                                                            .n = run.n,
                                                            .std = std}));
    Launch(draw);
  }
  return absl::OkStatus();
}

namespace {

// The job got its slot by the scratch that the plan counts, which is enough for every instruction
// set that a CPU may have: kernels that want more would take the memory of other jobs. (A GPU
// refuses to allocate what it does not have.)
absl::Status CheckIsPlanned(const kernels::Device& device, const plan::Plan& plan, size_t needed) {
  if (device.IsGpu() || plan.summary.device() != v1::Resources::CPU) return absl::OkStatus();
  const int64_t planned = plan::WorkspaceLimit(plan, device.Threads());
  if (static_cast<int64_t>(needed) <= planned) return absl::OkStatus();
  return WithFault(
      Fault::kOutOfMemory,
      absl::ResourceExhaustedError(absl::StrCat(
          "the kernels of ", device.Description(), " ask for ", needed,
          " bytes of scratch on this machine, and the plan counts ", planned,
          "; a smaller training.micro_batch_size may need less. Please report the job: a plan "
          "should count enough for every CPU")));
}

}  // namespace

absl::StatusOr<kernels::Kernels> Session::Prepare(const std::vector<plan::Op>& ops,
                                                  const plan::Instance& of) {
  TY_ASSIGN_OR_RETURN(kernels::Kernels program, Lower(device_, plan_, arena_, ops, of));
  size_t needed = 0;
  for (const kernels::Kernel& kernel : program) needed = std::max(needed, kernel.scratch_bytes);
  TY_RETURN_IF_ERROR(CheckIsPlanned(device_, plan_, needed));
  if (needed > stream_->scratch_bytes) {
    TY_RETURN_IF_ERROR(Synchronize());
    if (stream_->scratch != nullptr) device_.Free(stream_->scratch);
    stream_->scratch = nullptr;
    stream_->scratch_bytes = 0;
    absl::StatusOr<void*> scratch = device_.Allocate(needed);
    if (!scratch.ok()) {
      return WithFault(
          Fault::kOutOfMemory,
          Annotate(scratch.status(), absl::StrCat("kernels' scratch of ", needed, " bytes")));
    }
    stream_->scratch = *scratch;
    stream_->scratch_bytes = needed;
  }
  return program;
}

void Session::Tune(const kernels::Kernels& program) {
  for (const kernels::Kernel& kernel : program) {
    if (kernel.tune) kernel.tune(*stream_);
  }
}

absl::Status Session::Run(Program& program) {
  if (!program.ran_) {
    Launch(*program.kernels_);
    program.ran_ = true;
    return absl::OkStatus();
  }
  if (!program.recorded_ || program.scratch_ != stream_->scratch) {
    absl::StatusOr<kernels::Kernel> recorded = device_.Record(*stream_, program.kernels_);
    if (!recorded.ok()) return WithDeviceFault(recorded.status());
    program.recorded_ = *std::move(recorded);
    program.scratch_ = stream_->scratch;
  }
  Launch(*program.recorded_);
  return absl::OkStatus();
}

char* Session::At(plan::TensorId id, size_t offset, size_t bytes, const plan::Instance& of) const {
  const plan::Tensor& tensor = plan_.tensors[id];
  TY_CHECK(static_cast<int64_t>(offset + bytes) <= tensor.bytes(), tensor.name, ": ", offset, " + ",
           bytes, " of ", tensor.bytes(), " bytes");
  TY_CHECK(plan_.offsets[id] != plan::kNoPlace, tensor.name, " has no place of its own");
  return arena_ + plan_.offset(id, of) + offset;
}

void Session::Write(plan::TensorId id, const void* from, size_t bytes, size_t offset) {
  device_.CopyIn(*stream_, At(id, offset, bytes), from, bytes);
}

void Session::Upload(const MicroBatch& batch) {
  std::array<UploadQueue::Piece, 4> pieces;
  size_t n = 0;
  const auto add = [&](plan::TensorId id, const void* from) {
    if (id == plan::kNone) return;
    const auto bytes = static_cast<size_t>(plan_.tensors[id].bytes());
    pieces[n++] = {.to = At(id, 0, bytes, batch.place), .from = from, .bytes = bytes};
  };
  add(batch.state, batch.of_state);
  add(batch.input, batch.inputs);
  add(batch.ids, static_cast<const char*>(batch.inputs) + plan_.tensors[batch.input].bytes());
  add(batch.target, batch.targets);
  uploads_->Upload(absl::MakeSpan(pieces.data(), n), *stream_);
}

void Session::Read(plan::TensorId id, void* to, size_t bytes, size_t offset,
                   const plan::Instance& of) {
  device_.CopyOut(*stream_, to, At(id, offset, bytes, of), bytes);
}

absl::Status Session::ReadNow(plan::TensorId id, void* to, size_t bytes, size_t offset,
                              const plan::Instance& of) {
  TY_RETURN_IF_ERROR(Synchronize());  // such a copy makes the host wait for all that comes before
  Read(id, to, bytes, offset, of);
  return Synchronize();
}

void Session::ReadRegion(const plan::Region& region, void* to) {
  device_.CopyOut(*stream_, to, arena_ + region.offset, region.bytes);
}

const char* Session::HostView(const plan::Region& region) const {
  return static_cast<const char*>(device_.HostView(arena_ + region.offset));
}

void Session::Copy(int64_t from, int64_t to, int64_t bytes) {
  TY_CHECK(std::max(from, to) + bytes <= plan_.arena_bytes, "a copy of ", bytes, " bytes");
  device_.Copy(*stream_, arena_ + to, arena_ + from, bytes);
}

absl::Span<char> Session::InMemory(const plan::Region& region) const {
  return {arena_ + region.offset, static_cast<size_t>(region.bytes)};
}

PartialSum Session::PartialInMemory(int64_t partial) const {
  const int64_t before = partial * plan_.partial_bytes();
  const plan::Region& sums = plan_.sums_region;
  const plan::Region& gradients = plan_.gradient_region;
  const auto at = [&](const plan::Region& region) {
    return InMemory({.offset = region.offset - before, .bytes = region.bytes}).data();
  };
  return {.sums = {reinterpret_cast<double*>(at(sums)), sums.bytes / sizeof(double)},
          .gradients = {reinterpret_cast<float*>(at(gradients)), gradients.bytes / sizeof(float)}};
}

void Session::WaitBy(DeviceCommunicator& links) {
  links_ = &links;
  idle_ = device_.MakeEvent();
}

absl::Status Session::Wait(kernels::Event& event) {
  if (links_ == nullptr) return WithDeviceFault(device_.Wait(event));
  return OfGang(links_->Await(event));
}

absl::Status Session::OfGang(const absl::Status& status) {
  if (status.ok()) return status;
  const absl::Status own = device_.Passed(*idle_).status();
  return own.ok() ? WithFault(Fault::kGang, status) : WithDeviceFault(own);
}

absl::Status Session::Synchronize() {
  if (links_ != nullptr) {
    RecordEvent(*idle_);
    TY_RETURN_IF_ERROR(Wait(*idle_));
  }
  return WithDeviceFault(device_.Synchronize(*stream_));
}

}  // namespace trainyard::engine
