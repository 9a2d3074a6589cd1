#pragma once

// Packs: neighbouring elements that one memory access of 8 or 16 bytes reads or writes. A kernel
// that reads several packs issues all loads before it uses a value or writes: behind a store that
// may change what is read, and behind a branch on what was read, the next load waits for the last
// one.

#include <initializer_list>

#include "kernels/cuda/element.cuh"

namespace trainyard::kernels::cuda {

inline constexpr size_t kPackBytes = 16;  // the widest access
template <typename T>
inline constexpr int kPack = kPackBytes / sizeof(T);

// Whether each of `places` is aligned to `bytes`; null counts as aligned.
inline bool Aligned(size_t bytes, std::initializer_list<const void*> places) {
  for (const void* place : places) {
    if (reinterpret_cast<uintptr_t>(place) % bytes != 0) return false;
  }
  return true;
}

// Two elements as memory holds them.
template <typename T>
__device__ uint32_t PairOf(T low, T high) {
  return low.bits | uint32_t{high.bits} << 16;
}
template <typename T>
__device__ uint32_t RoundedPair(float low, float high);
template <>
__device__ inline uint32_t RoundedPair<BFloat16>(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return PairOf(BFloat16{__bfloat16_as_ushort(both.x)}, BFloat16{__bfloat16_as_ushort(both.y)});
}
template <>
__device__ inline uint32_t RoundedPair<Float16>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return PairOf(Float16{__half_as_ushort(both.x)}, Float16{__half_as_ushort(both.y)});
}

#if defined(__CUDACC__)  // the emulator of tests/gpu brings its own
template <typename Words>
__device__ Words LoadWhole(const void* at) {
  return *static_cast<const Words*>(at);
}
template <typename Word>
__device__ void StoreWhole(void* at, const Word& word) {
  *static_cast<Word*>(at) = word;
}
// One store: the compiler does not combine assignments of single words.
__device__ inline void StoreWhole(void* at, const uint4& words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ inline void StoreWhole(void* at, const uint2& words) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at)), "r"(words.x),
               "r"(words.y)
               : "memory");
}
#endif

// kCount elements in registers, as memory holds them; zeros to begin with.
template <typename T, int kCount>
class Pack {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(T)) / 4;
  static_assert(kWords == 2 || kWords == 4);

 public:
  // `at` is aligned to the pack.
  __device__ void Load(const T* at) {
    if constexpr (kWords == 4) {
      const auto read = LoadWhole<uint4>(at);
      words_[0] = read.x, words_[1] = read.y, words_[2] = read.z, words_[3] = read.w;
    } else {
      const auto read = LoadWhole<uint2>(at);
      words_[0] = read.x, words_[1] = read.y;
    }
  }
  __device__ void Store(T* at) const {
    if constexpr (kWords == 4) {
      StoreWhole(at, uint4{words_[0], words_[1], words_[2], words_[3]});
    } else {
      StoreWhole(at, uint2{words_[0], words_[1]});
    }
  }

  // Element by element, wherever `at` lies.
  __device__ void Gather(const T* at) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (sizeof(T) == sizeof(float)) {
        words_[w] = WordOf(at[w]);
      } else {
        words_[w] = PairOf(at[2 * w], at[2 * w + 1]);
      }
    }
  }
  __device__ void Scatter(T* at) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) at[i] = FromFloat<T>((*this)[i]);
  }

  __device__ void Fill(float value) {
    float all[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) all[i] = value;
    Set(all);
  }

  __device__ float operator[](int i) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      float value;
      memcpy(&value, &words_[i], sizeof(value));
      return value;
    } else {
      return ToFloat(T{static_cast<uint16_t>(words_[i / 2] >> 16 * (i % 2))});
    }
  }
  __device__ void Set(const float (&v)[kCount]) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (sizeof(T) == sizeof(float)) {
        words_[w] = WordOf(v[w]);
      } else {
        words_[w] = RoundedPair<T>(v[2 * w], v[2 * w + 1]);
      }
    }
  }

 private:
  __device__ static uint32_t WordOf(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof(word));
    return word;
  }

  uint32_t words_[kWords] = {};
};

// A pack of one element, for memory that is not aligned to larger ones.
template <typename T>
class Pack<T, 1> {
 public:
  __device__ void Load(const T* at) { value_ = *at; }
  __device__ void Store(T* at) const { *at = value_; }
  __device__ void Gather(const T* at) { value_ = *at; }
  __device__ void Scatter(T* at) const { *at = value_; }
  __device__ float operator[](int) const { return ToFloat(value_); }
  __device__ void Set(const float (&v)[1]) { value_ = FromFloat<T>(v[0]); }
  __device__ void Fill(float value) { value_ = FromFloat<T>(value); }

 private:
  T value_ = {};
};

// How many columns of [rows, cols] a pack holds so that every row begins at a pack.
template <typename T>
int PackOf(int64_t cols) {
  return cols % kPack<T> == 0 ? kPack<T> : 1;
}

// launch.operator()<kPackSize>() with PackOf<T>(cols).
template <typename T, typename F>
void WithPack(int64_t cols, const F& launch) {
  if (PackOf<T>(cols) == 1) return launch.template operator()<1>();
  launch.template operator()<kPack<T>>();
}

template <int kCount>
struct PackSize {
  static constexpr int value = kCount;
};

// Goes over elements [0, n), kStepPack per thread: calls f(PackSize, at) for each pack of this
// thread. Packs are of one element where a block's tile is not whole, and everywhere unless
// `by_packs`.
inline constexpr int kStepPack = 4;
inline constexpr int64_t kStepTile = int64_t{kThreads} * kStepPack;

template <typename F>
__device__ void EachStep(int64_t n, bool by_packs, F f) {
  const int64_t first = blockIdx.x * kStepTile;
  if (by_packs && first + kStepTile <= n) {
    f(PackSize<kStepPack>(), first + static_cast<int>(threadIdx.x) * kStepPack);
    return;
  }
  const int64_t end = min(n, first + kStepTile);
#pragma unroll 1
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) f(PackSize<1>(), i);
}
inline dim3 StepBlocks(int64_t n) { return Blocks(CeilDiv(n, kStepTile)); }

// Splits i = row * cols + col. Divides in 32 bits where both fit, at a third of the cost of 64.
struct RowAndCol {
  int64_t row, col;
};
__device__ inline RowAndCol RowAndColOf(int64_t i, int64_t cols) {
  if (static_cast<uint64_t>(i | cols) >> 32 == 0) {
    const auto place = static_cast<uint32_t>(i), each = static_cast<uint32_t>(cols);
    return {place / each, place % each};
  }
  return {i / cols, i % cols};
}

}  // namespace trainyard::kernels::cuda
