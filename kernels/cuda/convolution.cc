#include "kernels/ops/convolution.h"

#include <algorithm>
#include <array>
#include <climits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/add_bias.h"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/transpose.h"

namespace trainyard::kernels::cuda {
namespace {

// An algorithm that wants more scratch than this is passed over.
constexpr size_t kMaxWorkspace = size_t{256} << 20;

// What the three directions share. cuDNN takes NHWC activations with [out, height, width, in]
// weights; ours are [out, in, height, width], so weights pass through scratch: per filter a
// transposition of [in, taps] to [taps, in], where taps = kernel_height * kernel_width.
struct Problem {
  ConvolutionShape shape;
  DType type = DType::kF32;  // of x, y and the weights; cuDNN's gradient by weights has it, too
  TensorDescriptor x, y;
  FilterDescriptor w;
  ConvolutionDescriptor convolution;
  Cudnn* dnn = nullptr;
  size_t workspace_bytes = 0;

  int64_t taps() const { return shape.kernel_height * shape.kernel_width; }
  int64_t out_rows() const { return shape.batch * shape.out_height() * shape.out_width(); }
  // The two orders of the weights are the same bytes.
  bool same_order() const { return taps() == 1 || group_in() == 1; }
  int64_t group_in() const { return shape.in / shape.groups; }
  size_t weight_bytes() const {
    const size_t bytes = static_cast<size_t>(shape.out * group_in() * taps()) * SizeOf(type);
    return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
  }
  // Scratch: the weights in cuDNN's order, then its workspace, then `more`.
  size_t scratch_bytes(size_t more = 0) const {
    return kWorkspaceAlign + weight_bytes() + RoundedWorkspace() + more;
  }
  size_t RoundedWorkspace() const {
    return (workspace_bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
  }
};

// Where the parts of the scratch lie.
struct Scratch {
  Scratch(const Problem& problem, Stream& stream)
      : weights{AlignWorkspace(stream.scratch), problem.type},
        workspace(static_cast<char*>(weights.data) + problem.weight_bytes()),
        more(static_cast<char*>(workspace) + problem.RoundedWorkspace()) {}

  Buffer weights;
  void* workspace;
  void* more;
};

absl::Status CheckShape(const ConvolutionShape& s) {
  absl::Status status = RequirePositive("convolution", {{"batch", s.batch},
                                                        {"height", s.height},
                                                        {"width", s.width},
                                                        {"in", s.in},
                                                        {"out", s.out},
                                                        {"kernel_height", s.kernel_height},
                                                        {"kernel_width", s.kernel_width},
                                                        {"stride", s.stride},
                                                        {"groups", s.groups}});
  if (!status.ok()) return status;
  if (s.in % s.groups != 0 || s.out % s.groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "convolution: ", s.groups, " groups divide not both ", s.in, " and ", s.out, " channels"));
  }
  if (s.pad < 0 || s.out_height() <= 0 || s.out_width() <= 0 ||
      s.height + 2 * s.pad < s.kernel_height || s.width + 2 * s.pad < s.kernel_width) {
    return absl::InvalidArgumentError("convolution: the kernel does not fit into the padded image");
  }
  const int64_t largest = std::max(s.batch * s.height * s.width * s.in,
                                   s.batch * s.out_height() * s.out_width() * s.out);
  if (largest > INT_MAX || s.out * s.in * s.kernel_height * s.kernel_width > INT_MAX) {
    return absl::UnimplementedError("cuda convolution: a tensor of 2^31 elements or more");
  }
  return absl::OkStatus();
}

template <typename Owned, typename Handle>
absl::Status Make(cudnnStatus_t (*create)(Handle*), Owned& to) {
  Handle made = nullptr;
  const absl::Status status = ToStatus(create(&made), "cuDNN descriptor");
  to.reset(made);
  return status;
}

cudnnDataType_t TypeOf(DType type) {
  return type == DType::kBF16  ? CUDNN_DATA_BFLOAT16
         : type == DType::kF16 ? CUDNN_DATA_HALF
                               : CUDNN_DATA_FLOAT;
}

absl::Status Describe(Cudnn* dnn, const ConvolutionShape& s, DType of, Problem& p) {
  p.shape = s;
  p.type = of;
  p.dnn = dnn;
  const cudnnDataType_t type = TypeOf(of);
  absl::Status status = Make(cudnnCreateTensorDescriptor, p.x);
  status.Update(Make(cudnnCreateTensorDescriptor, p.y));
  status.Update(Make(cudnnCreateFilterDescriptor, p.w));
  status.Update(Make(cudnnCreateConvolutionDescriptor, p.convolution));
  if (!status.ok()) return status;
  const auto narrow = [](int64_t extent) { return static_cast<int>(extent); };
  const int batch = narrow(s.batch), in = narrow(s.in), out = narrow(s.out),
            group_in = narrow(p.group_in());
  status.Update(ToStatus(cudnnSetTensor4dDescriptor(p.x.get(), CUDNN_TENSOR_NHWC, type, batch, in,
                                                    narrow(s.height), narrow(s.width)),
                         "convolution x"));
  status.Update(ToStatus(cudnnSetTensor4dDescriptor(p.y.get(), CUDNN_TENSOR_NHWC, type, batch, out,
                                                    narrow(s.out_height()), narrow(s.out_width())),
                         "convolution y"));
  status.Update(
      ToStatus(cudnnSetFilter4dDescriptor(p.w.get(), type, CUDNN_TENSOR_NHWC, out, group_in,
                                          narrow(s.kernel_height), narrow(s.kernel_width)),
               "convolution w"));
  const int pad = narrow(s.pad), stride = narrow(s.stride);
  status.Update(
      ToStatus(cudnnSetConvolution2dDescriptor(p.convolution.get(), pad, pad, stride, stride, 1, 1,
                                               CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
               "convolution"));
  status.Update(
      ToStatus(cudnnSetConvolutionGroupCount(p.convolution.get(), narrow(s.groups)), "groups"));
  // fp32 throughout: the default would allow TF32. Of 16-bit elements the products are exact and
  // the sums fp32 on tensor cores, too.
  const cudnnMathType_t math = of == DType::kF32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH;
  status.Update(
      ToStatus(cudnnSetConvolutionMathType(p.convolution.get(), math), "convolution arithmetic"));
  return status;
}

// The library ranks its algorithms; the first one wins that adds in a fixed order, keeps to our
// arithmetic and to the limit of the workspace. `workspace_of` asks the library for an algorithm's
// workspace under our descriptors, which also says whether it takes them.
template <typename Ranked, typename WorkspaceOf>
absl::StatusOr<decltype(Ranked::algo)> FirstFit(const Ranked* ranked, int count, Problem& p,
                                                const WorkspaceOf& workspace_of) {
  for (int i = 0; i < count; ++i) {
    const Ranked& candidate = ranked[i];
    if (candidate.status != CUDNN_STATUS_SUCCESS || candidate.determinism != CUDNN_DETERMINISTIC) {
      continue;
    }
    size_t bytes = 0;
    if (workspace_of(candidate.algo, &bytes) != CUDNN_STATUS_SUCCESS) continue;
    if (bytes > kMaxWorkspace) continue;
    p.workspace_bytes = bytes;
    return candidate.algo;
  }
  const ConvolutionShape& s = p.shape;
  return absl::UnimplementedError(absl::StrCat(
      "cuda convolution: cuDNN offers no deterministic algorithm for batch ", s.batch, ", ",
      s.height, "x", s.width, "x", s.in, " to ", s.out, " channels, kernel ", s.kernel_height, "x",
      s.kernel_width, ", stride ", s.stride, ", pad ", s.pad, ", groups ", s.groups));
}

absl::StatusOr<cudnnConvolutionFwdAlgo_t> ChooseForward(Problem& p) {
  std::array<cudnnConvolutionFwdAlgoPerf_t, CUDNN_CONVOLUTION_FWD_ALGO_COUNT> ranked;
  int count = 0;
  const absl::Status asked =
      ToStatus(cudnnGetConvolutionForwardAlgorithm_v7(p.dnn->handle(), p.x.get(), p.w.get(),
                                                      p.convolution.get(), p.y.get(), ranked.size(),
                                                      &count, ranked.data()),
               "convolution algorithms");
  if (!asked.ok()) return asked;
  return FirstFit(ranked.data(), count, p, [&p](cudnnConvolutionFwdAlgo_t algo, size_t* bytes) {
    return cudnnGetConvolutionForwardWorkspaceSize(p.dnn->handle(), p.x.get(), p.w.get(),
                                                   p.convolution.get(), p.y.get(), algo, bytes);
  });
}

absl::StatusOr<cudnnConvolutionBwdDataAlgo_t> ChooseBackwardData(Problem& p) {
  std::array<cudnnConvolutionBwdDataAlgoPerf_t, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT> ranked;
  int count = 0;
  const absl::Status asked =
      ToStatus(cudnnGetConvolutionBackwardDataAlgorithm_v7(p.dnn->handle(), p.w.get(), p.y.get(),
                                                           p.convolution.get(), p.x.get(),
                                                           ranked.size(), &count, ranked.data()),
               "convolution data gradient algorithms");
  if (!asked.ok()) return asked;
  return FirstFit(ranked.data(), count, p, [&p](cudnnConvolutionBwdDataAlgo_t algo, size_t* bytes) {
    return cudnnGetConvolutionBackwardDataWorkspaceSize(
        p.dnn->handle(), p.w.get(), p.y.get(), p.convolution.get(), p.x.get(), algo, bytes);
  });
}

absl::StatusOr<cudnnConvolutionBwdFilterAlgo_t> ChooseBackwardWeights(Problem& p) {
  std::array<cudnnConvolutionBwdFilterAlgoPerf_t, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT> ranked;
  int count = 0;
  const absl::Status asked =
      ToStatus(cudnnGetConvolutionBackwardFilterAlgorithm_v7(p.dnn->handle(), p.x.get(), p.y.get(),
                                                             p.convolution.get(), p.w.get(),
                                                             ranked.size(), &count, ranked.data()),
               "convolution weight gradient algorithms");
  if (!asked.ok()) return asked;
  return FirstFit(
      ranked.data(), count, p, [&p](cudnnConvolutionBwdFilterAlgo_t algo, size_t* bytes) {
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(
            p.dnn->handle(), p.x.get(), p.y.get(), p.convolution.get(), p.w.get(), algo, bytes);
      });
}

// The weights in cuDNN's order, in scratch where that differs from ours.
const void* ReorderWeights(Stream& stream, const Problem& p, const Buffer& w, const Buffer& to) {
  if (p.same_order()) return w.data;
  LaunchTranspose(stream, w, to, p.shape.out, p.group_in(), p.taps(), false);
  return to.data;
}

void Note(Stream& stream, cudnnStatus_t error, absl::string_view doing) {
  if (error != CUDNN_STATUS_SUCCESS) {
    CudaStream::From(stream).fault().Note(ToStatus(error, doing));
  }
}

constexpr float kOne = 1.0f, kZero = 0.0f;

void RunForward(Stream& stream, const Problem& p, cudnnConvolutionFwdAlgo_t algo,
                const ConvolutionForward& op) {
  const Scratch scratch(p, stream);
  const void* w = ReorderWeights(stream, p, op.w, scratch.weights);
  Note(stream, p.dnn->Use(CudaStream::From(stream).handle()), "cudnnSetStream");
  Note(stream,
       cudnnConvolutionForward(p.dnn->handle(), &kOne, p.x.get(), op.x.data, p.w.get(), w,
                               p.convolution.get(), algo, scratch.workspace, p.workspace_bytes,
                               &kZero, p.y.get(), op.y.data),
       "convolution");
  if (op.bias) {
    LaunchAddBias(stream, op.y, op.bias.As<float>(), op.y, p.out_rows(), p.shape.out);
  }
}

void RunBackwardData(Stream& stream, const Problem& p, cudnnConvolutionBwdDataAlgo_t algo,
                     const ConvolutionBackwardData& op) {
  const Scratch scratch(p, stream);
  const void* w = ReorderWeights(stream, p, op.w, scratch.weights);
  Note(stream, p.dnn->Use(CudaStream::From(stream).handle()), "cudnnSetStream");
  Note(stream,
       cudnnConvolutionBackwardData(p.dnn->handle(), &kOne, p.w.get(), w, p.y.get(), op.dy.data,
                                    p.convolution.get(), algo, scratch.workspace, p.workspace_bytes,
                                    &kZero, p.x.get(), op.dx.data),
       "convolution data gradient");
}

void RunBackwardWeights(Stream& stream, const Problem& p, cudnnConvolutionBwdFilterAlgo_t algo,
                        const ConvolutionBackwardWeights& op) {
  const Scratch scratch(p, stream);
  Note(stream, p.dnn->Use(CudaStream::From(stream).handle()), "cudnnSetStream");
  Note(stream,
       cudnnConvolutionBackwardFilter(p.dnn->handle(), &kOne, p.x.get(), op.x.data, p.y.get(),
                                      op.dy.data, p.convolution.get(), algo, scratch.workspace,
                                      p.workspace_bytes, &kZero, p.w.get(), scratch.weights.data),
       "convolution weight gradient");
  LaunchTranspose(stream, scratch.weights, op.dw, p.shape.out, p.taps(), p.group_in(),
                  op.accumulate);
  if (op.dbias) {
    LaunchColumnSum(stream, op.dy, op.dbias.As<float>(), p.out_rows(), p.shape.out, op.accumulate,
                    scratch.more);
  }
}

// Choices common to the three: descriptors, then `choose`, then a kernel that calls `run`. The
// problem is shared because a std::function must be copyable.
template <typename Op, typename Algo>
absl::StatusOr<Kernel> Prepared(absl::StatusOr<Cudnn*> dnn, const Op& op, DType type, size_t more,
                                absl::StatusOr<Algo> (*choose)(Problem&),
                                void (*run)(Stream&, const Problem&, Algo, const Op&)) {
  if (!dnn.ok()) return dnn.status();
  const auto problem = std::make_shared<Problem>();
  const absl::Status described = Describe(*dnn, op.shape, type, *problem);
  if (!described.ok()) return described;
  const absl::StatusOr<Algo> algo = choose(*problem);
  if (!algo.ok()) return algo.status();
  return Kernel{.launch = [problem, algo = *algo, op,
                           run](Stream& stream) { run(stream, *problem, algo, op); },
                .scratch_bytes = problem->scratch_bytes(more)};
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const ConvolutionForward& op) {
  const DType type = op.x.dtype;
  absl::Status status =
      RequireTypes("convolution", {{"x", op.x, type},
                                   {"w", op.w, type},
                                   {.name = "bias", .buffer = op.bias, .optional = true},
                                   {"y", op.y, type}});
  status.Update(RequireElement("convolution", type));
  status.Update(CheckShape(op.shape));
  if (!status.ok()) return status;
  return Prepared(OpenCudnn(), op, type, 0, ChooseForward, RunForward);
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const ConvolutionBackwardData& op) {
  const DType type = op.dy.dtype;
  absl::Status status = RequireTypes("convolution data gradient",
                                     {{"dy", op.dy, type}, {"w", op.w, type}, {"dx", op.dx, type}});
  status.Update(RequireElement("convolution data gradient", type));
  status.Update(CheckShape(op.shape));
  if (!status.ok()) return status;
  return Prepared(OpenCudnn(), op, type, 0, ChooseBackwardData, RunBackwardData);
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const ConvolutionBackwardWeights& op) {
  const DType type = op.x.dtype;
  absl::Status status = RequireTypes("convolution weight gradient",
                                     {{"x", op.x, type},
                                      {"dy", op.dy, type},
                                      {"dw", op.dw},
                                      {.name = "dbias", .buffer = op.dbias, .optional = true}});
  status.Update(RequireElement("convolution weight gradient", type));
  status.Update(CheckShape(op.shape));
  if (!status.ok()) return status;
  const int64_t out_rows = op.shape.batch * op.shape.out_height() * op.shape.out_width();
  const size_t more = op.dbias ? ColumnSumScratch(out_rows, op.shape.out) : 0;
  return Prepared(OpenCudnn(), op, type, more, ChooseBackwardWeights, RunBackwardWeights);
}

}  // namespace trainyard::kernels::cuda
