// What every kernel shares: the C ABI, the instruction set's namespace, and the storage types.
//
// A kernel's sources are compiled once for each instruction set. All code lives in the namespace PDECNN_NS, which has
// the name of the instruction set in it, so that the linker never merges two builds of one inline function. For the same
// reason the standard library's templates stay out of these files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(_WIN32)
#define PDECNN_EXPORT extern "C" __declspec(dllexport)
#else
#define PDECNN_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#define PDECNN_CONCAT_(a, b) a##_##b
#define PDECNN_CONCAT(a, b) PDECNN_CONCAT_(a, b)
// pdecnn_foo -> pdecnn_foo_avx2
#define PDECNN_SYMBOL(name) PDECNN_CONCAT(name, PDECNN_ISA)
#define PDECNN_NS PDECNN_CONCAT(pdecnn, PDECNN_ISA)
// The exported function `name`, which takes the address of a Call: `compute` of it.
#define PDECNN_FUNCTION(name, Call, compute)                               \
  PDECNN_EXPORT int32_t PDECNN_SYMBOL(name)(const void* call) {            \
    return PDECNN_NS::compute(*static_cast<const PDECNN_NS::Call*>(call)); \
  }

#if defined(__clang__)
#define PDECNN_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define PDECNN_VECTORIZE _Pragma("GCC ivdep")
#endif

#define PDECNN_UNROLL _Pragma("GCC unroll 8")

#define PDECNN_PREFETCH(address) __builtin_prefetch(address)

#if defined(_MSC_VER)
#define PDECNN_RESTRICT __restrict
#define PDECNN_INLINE __forceinline
#define PDECNN_NOINLINE __declspec(noinline)
#else
#define PDECNN_RESTRICT __restrict__
#define PDECNN_INLINE inline __attribute__((always_inline))
#define PDECNN_NOINLINE __attribute__((noinline))
#endif

namespace PDECNN_NS {

// Error codes of the exported functions; Python turns them into exceptions.
enum Status : int32_t { kOk = 0, kOutOfMemory = 1, kThreadPool = 2, kBadArgument = 3 };

struct bfloat16 {
  uint16_t bits;
};

template <class T>
struct arithmetic {
  using type = T;
};
template <>
struct arithmetic<bfloat16> {
  using type = float;  // bfloat16 is storage only
};
template <class T>
using arithmetic_t = typename arithmetic<T>::type;

PDECNN_INLINE float widen(float x) { return x; }
PDECNN_INLINE double widen(double x) { return x; }
PDECNN_INLINE float widen(bfloat16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

PDECNN_INLINE void narrow(float x, float& y) { y = x; }
PDECNN_INLINE void narrow(double x, double& y) { y = x; }
PDECNN_INLINE void narrow(float x, bfloat16& y) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
  y.bits = uint16_t(x != x ? 0x7fc0u : rounded);
}

// A number as a type.
template <class T, T kValue>
struct Constant {
  static constexpr T value = kValue;
};

template <class I>
PDECNN_INLINE I min(I a, I b) {
  return a < b ? a : b;
}
template <class I>
PDECNN_INLINE I max(I a, I b) {
  return a > b ? a : b;
}
PDECNN_INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace PDECNN_NS
