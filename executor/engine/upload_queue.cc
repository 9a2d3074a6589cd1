#include "executor/engine/upload_queue.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// Pieces begin at multiples of this many bytes: copies of whole sectors are the fastest.
constexpr size_t kAlign = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

size_t BytesOf(const plan::Plan& plan, std::initializer_list<plan::TensorId> ids) {
  size_t bytes = 0;
  for (const plan::TensorId id : ids) {
    if (id != plan::kNone) bytes += Aligned(plan.tensors[id].bytes());
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UploadQueue>> UploadQueue::Open(kernels::Device& device,
                                                               const plan::Plan& plan) {
  if (!device.Asynchronous())
    return std::unique_ptr<UploadQueue>(new UploadQueue(device, nullptr, 0));
  const size_t bytes = std::max(BytesOf(plan, {plan.state, plan.input, plan.ids, plan.target}),
                                BytesOf(plan, {plan.eval_input, plan.eval_ids, plan.eval_target}));
  absl::StatusOr<void*> memory = device.Allocate(bytes);
  if (!memory.ok()) {
    return WithFault(Fault::kOutOfMemory,
                     Annotate(memory.status(), absl::StrCat("the next micro-batch, of ", bytes,
                                                            " bytes, on ", device.Description())));
  }
  return std::unique_ptr<UploadQueue>(new UploadQueue(device, static_cast<char*>(*memory), bytes));
}

UploadQueue::UploadQueue(kernels::Device& device, char* memory, size_t bytes)
    : device_(device), memory_(memory), bytes_(bytes) {
  for (int64_t i = 0; i < BatchesInUse(device); ++i) read_.push_back(device.MakeEvent());
  if (memory == nullptr) return;
  copies_ = device.MakeStream();
  emptied_ = device.MakeEvent();
}

UploadQueue::~UploadQueue() {
  if (memory_ == nullptr) return;
  device_.Synchronize(*copies_).IgnoreError();
  device_.Free(memory_);
}

void UploadQueue::Upload(absl::Span<const Piece> pieces, kernels::Stream& stream) {
  kernels::Event& read = *read_[deliveries_++ % read_.size()];
  if (memory_ == nullptr) {
    for (const Piece& piece : pieces) device_.CopyIn(stream, piece.to, piece.from, piece.bytes);
    return device_.RecordEvent(read, stream);
  }
  const auto for_each = [&](auto&& copy) {
    size_t at = 0;
    for (const Piece& piece : pieces) {
      TY_CHECK(at + piece.bytes <= bytes_, "more than the ", bytes_, " bytes of a micro-batch");
      copy(piece, memory_ + at);
      at += Aligned(piece.bytes);
    }
  };
  device_.StreamWait(*copies_, *emptied_);
  for_each([&](const Piece& piece, char* here) {
    device_.CopyIn(*copies_, here, piece.from, piece.bytes);
  });
  device_.RecordEvent(read, *copies_);
  device_.StreamWait(stream, read);
  for_each([&](const Piece& piece, const char* here) {
    device_.Copy(stream, piece.to, here, piece.bytes);
  });
  device_.RecordEvent(*emptied_, stream);
}

}  // namespace trainyard::engine
