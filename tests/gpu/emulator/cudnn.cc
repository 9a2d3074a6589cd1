// The functions of cuDNN that kernels/cuda calls, in plain loops: convolutions of NHWC activations
// with weights in [out, height, width, in], all of one type, fp32, bf16 or fp16. The ranking of
// algorithms starts with one that is not deterministic and one that wants too much workspace: a
// caller that takes either is refused.

#include <cudnn.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "element.h"
#include "tests/gpu/emulator/stream.h"

using trainyard::emulator::Element;
using trainyard::emulator::Get;
using trainyard::emulator::Put;

struct cudnnContext {
  cudaStream_t stream = nullptr;
};
struct cudnnTensorStruct {
  Element type;
  int n, c, h, w;
  int64_t At(int in, int ih, int iw, int ic) const {
    return ((int64_t{in} * h + ih) * w + iw) * c + ic;
  }
};
struct cudnnFilterStruct {
  Element type;
  int k, c, h, w;
  int64_t At(int ik, int ih, int iw, int ic) const {
    return ((int64_t{ik} * h + ih) * w + iw) * c + ic;
  }
  int64_t size() const { return int64_t{k} * c * h * w; }
};
struct cudnnConvolutionStruct {
  int pad = 0, stride = 1, groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

constexpr size_t kWorkspace = 1000;
constexpr size_t kTooMuch = size_t{8} << 30;

template <typename Made>
cudnnStatus_t New(Made** to) {
  *to = new Made;
  return CUDNN_STATUS_SUCCESS;
}
template <typename Made>
cudnnStatus_t Delete(Made* made) {
  delete made;
  return CUDNN_STATUS_SUCCESS;
}

bool Fits(const cudnnTensorStruct& x, const cudnnFilterStruct& w, const cudnnConvolutionStruct& s,
          const cudnnTensorStruct& y) {
  const bool narrow = x.type != Element::kF32;
  return x.type == w.type && x.type == y.type &&
         s.math == (narrow ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH) && x.n == y.n &&
         x.c == w.c * s.groups && y.c == w.k && w.k % s.groups == 0 &&
         y.h == (x.h + 2 * s.pad - w.h) / s.stride + 1 &&
         y.w == (x.w + 2 * s.pad - w.w) / s.stride + 1;
}

// Calls f(x offset, w offset, y offset) for every product of a convolution.
void EachProduct(const cudnnTensorStruct& x, const cudnnFilterStruct& w,
                 const cudnnConvolutionStruct& s, const cudnnTensorStruct& y,
                 const std::function<void(int64_t, int64_t, int64_t)>& f) {
  for (int n = 0; n < y.n; ++n) {
    for (int oh = 0; oh < y.h; ++oh) {
      for (int ow = 0; ow < y.w; ++ow) {
        for (int r = 0; r < w.h; ++r) {
          for (int q = 0; q < w.w; ++q) {
            const int ih = oh * s.stride - s.pad + r, iw = ow * s.stride - s.pad + q;
            if (ih < 0 || ih >= x.h || iw < 0 || iw >= x.w) continue;
            for (int k = 0; k < w.k; ++k) {
              const int first = k / (w.k / s.groups) * w.c;  // of the group's inputs
              for (int c = 0; c < w.c; ++c)
                f(x.At(n, ih, iw, first + c), w.At(k, r, q, c), y.At(n, oh, ow, k));
            }
          }
        }
      }
    }
  }
}

template <typename Ranked, typename Algo>
cudnnStatus_t Rank(int wanted, int* count, Ranked* ranked, Algo loose, Algo large, Algo good) {
  if (wanted < 3) return CUDNN_STATUS_BAD_PARAM;
  *count = 3;
  ranked[0] = {loose, CUDNN_STATUS_SUCCESS, 1, 0, CUDNN_NON_DETERMINISTIC, CUDNN_FMA_MATH, {}};
  ranked[1] = {large, CUDNN_STATUS_SUCCESS, 2, kTooMuch, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH, {}};
  ranked[2] = {good, CUDNN_STATUS_SUCCESS, 3, kWorkspace, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH, {}};
  return CUDNN_STATUS_SUCCESS;
}

template <typename Algo>
cudnnStatus_t WorkspaceOf(bool fits, Algo algo, Algo large, size_t* bytes) {
  if (!fits) return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = algo == large ? kTooMuch : kWorkspace;
  return CUDNN_STATUS_SUCCESS;
}

bool Runs(bool fits, bool good, size_t bytes, const void* alpha, const void* beta) {
  return fits && good && bytes >= kWorkspace && *static_cast<const float*>(alpha) == 1 &&
         *static_cast<const float*>(beta) == 0;
}

// `code` tells the directions apart.
template <typename F>
cudnnStatus_t Start(cudnnHandle_t handle, const char& code, void* workspace, const F& convolve) {
  const auto work = [workspace, convolve] {
    std::memset(workspace, 0xff, kWorkspace);
    convolve();
  };
  return trainyard::emulator::Enqueue(handle->stream, &code, work) == cudaSuccess
             ? CUDNN_STATUS_SUCCESS
             : CUDNN_STATUS_EXECUTION_FAILED;
}

// Sums in fp32, rounded to the type of the result at the end.
void Store(Element type, const std::vector<float>& sums, void* to) {
  for (size_t i = 0; i < sums.size(); ++i) Put(type, to, static_cast<int64_t>(i), sums[i]);
}

bool ElementOf(cudnnDataType_t type, Element& to) {
  to = type == CUDNN_DATA_BFLOAT16 ? Element::kBF16
       : type == CUDNN_DATA_HALF   ? Element::kF16
                                   : Element::kF32;
  return type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_HALF || type == CUDNN_DATA_FLOAT;
}

}  // namespace

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return New(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return Delete(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t) { return "emulated"; }

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* d) { return New(d); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return Delete(d); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* d) { return New(d); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d) { return Delete(d); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* d) { return New(d); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d) {
  return Delete(d);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  Element element;
  if (format != CUDNN_TENSOR_NHWC || !ElementOf(type, element)) return CUDNN_STATUS_NOT_SUPPORTED;
  *d = {element, n, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  Element element;
  if (format != CUDNN_TENSOR_NHWC || !ElementOf(type, element)) return CUDNN_STATUS_NOT_SUPPORTED;
  *d = {element, k, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t type) {
  if (pad_h != pad_w || stride_h != stride_w || dilation_h * dilation_w != 1 ||
      mode != CUDNN_CROSS_CORRELATION || type != CUDNN_DATA_FLOAT) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  d->pad = pad_h;
  d->stride = stride_h;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups) {
  d->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
  d->math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnTensorDescriptor_t, int wanted, int* count, cudnnConvolutionFwdAlgoPerf_t* ranked) {
  return Rank(wanted, count, ranked, CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
              CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t s,
                                                      cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algo,
                                                      size_t* bytes) {
  return WorkspaceOf(Fits(*x, *w, *s, *y), algo, CUDNN_CONVOLUTION_FWD_ALGO_FFT, bytes);
}
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      cudnnTensorDescriptor_t x, const void* x_data,
                                      cudnnFilterDescriptor_t w, const void* w_data,
                                      cudnnConvolutionDescriptor_t s,
                                      cudnnConvolutionFwdAlgo_t algo, void* workspace, size_t bytes,
                                      const void* beta, cudnnTensorDescriptor_t y, void* y_data) {
  if (!Runs(Fits(*x, *w, *s, *y), algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, bytes, alpha,
            beta)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  static const char kCode = 0;
  return Start(handle, kCode, workspace, [=, x = *x, w = *w, s = *s, y = *y] {
    std::vector<float> sums(int64_t{y.n} * y.c * y.h * y.w);
    EachProduct(x, w, s, y, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
      sums[at_y] += Get(x.type, x_data, at_x) * Get(w.type, w_data, at_w);
    });
    Store(y.type, sums, y_data);
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnTensorDescriptor_t, int wanted, int* count, cudnnConvolutionBwdDataAlgoPerf_t* ranked) {
  return Rank(wanted, count, ranked, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
              CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t y,
                                                           cudnnConvolutionDescriptor_t s,
                                                           cudnnTensorDescriptor_t x,
                                                           cudnnConvolutionBwdDataAlgo_t algo,
                                                           size_t* bytes) {
  return WorkspaceOf(Fits(*x, *w, *s, *y), algo, CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           cudnnFilterDescriptor_t w, const void* w_data,
                                           cudnnTensorDescriptor_t y, const void* dy_data,
                                           cudnnConvolutionDescriptor_t s,
                                           cudnnConvolutionBwdDataAlgo_t algo, void* workspace,
                                           size_t bytes, const void* beta,
                                           cudnnTensorDescriptor_t x, void* dx_data) {
  if (!Runs(Fits(*x, *w, *s, *y), algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, bytes, alpha, beta)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  static const char kCode = 0;
  return Start(handle, kCode, workspace, [=, x = *x, w = *w, s = *s, y = *y] {
    std::vector<float> sums(int64_t{x.n} * x.c * x.h * x.w);
    EachProduct(x, w, s, y, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
      sums[at_x] += Get(y.type, dy_data, at_y) * Get(w.type, w_data, at_w);
    });
    Store(x.type, sums, dx_data);
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnFilterDescriptor_t, int wanted, int* count, cudnnConvolutionBwdFilterAlgoPerf_t* ranked) {
  return Rank(wanted, count, ranked, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
              CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y,
    cudnnConvolutionDescriptor_t s, cudnnFilterDescriptor_t w, cudnnConvolutionBwdFilterAlgo_t algo,
    size_t* bytes) {
  return WorkspaceOf(Fits(*x, *w, *s, *y), algo, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             cudnnTensorDescriptor_t x, const void* x_data,
                                             cudnnTensorDescriptor_t y, const void* dy_data,
                                             cudnnConvolutionDescriptor_t s,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void* workspace,
                                             size_t bytes, const void* beta,
                                             cudnnFilterDescriptor_t w, void* dw_data) {
  if (!Runs(Fits(*x, *w, *s, *y), algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, bytes, alpha,
            beta)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  static const char kCode = 0;
  return Start(handle, kCode, workspace, [=, x = *x, w = *w, s = *s, y = *y] {
    std::vector<float> sums(w.size());
    EachProduct(x, w, s, y, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
      sums[at_w] += Get(x.type, x_data, at_x) * Get(y.type, dy_data, at_y);
    });
    Store(w.type, sums, dw_data);
  });
}
