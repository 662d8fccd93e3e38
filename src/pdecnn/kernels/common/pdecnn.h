// What every kernel shares: the C ABI, the instruction set's namespace, threads, and the storage types.
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

#if defined(__clang__)
#define PDECNN_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define PDECNN_VECTORIZE _Pragma("GCC ivdep")
#else
#define PDECNN_VECTORIZE
#endif

#if defined(_MSC_VER)
#define PDECNN_RESTRICT __restrict
#define PDECNN_INLINE __forceinline
#else
#define PDECNN_RESTRICT __restrict__
#define PDECNN_INLINE inline __attribute__((always_inline))
#endif

// torch's own thread pool, handed over when the library is loaded; null means serial. Returns 0 on success.
using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void*);
extern "C" ParallelFor pdecnn_parallel_for;

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

template <class I>
PDECNN_INLINE I min(I a, I b) {
  return a < b ? a : b;
}
template <class I>
PDECNN_INLINE I max(I a, I b) {
  return a > b ? a : b;
}
PDECNN_INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Zeroed memory at a multiple of 64 bytes, released at the end of its scope; one per thread and call.
class Arena {
 public:
  explicit Arena(size_t bytes) : raw_(std::calloc(bytes + 64, 1)) {}
  ~Arena() { std::free(raw_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  bool ok() const { return raw_ != nullptr; }
  char* data() const { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(raw_) + 63) / 64 * 64); }

 private:
  void* raw_;
};

// Calls body(begin, end) over [0, n) in parts. How it is split depends on the threads: body must not.
template <class F>
Status parallel_for(int64_t n, int64_t grain, const F& body) {
  if (n == 0) return kOk;
  if (pdecnn_parallel_for == nullptr || n <= grain) {
    body(int64_t(0), n);
    return kOk;
  }
  auto call = [](int64_t begin, int64_t end, void* f) { (*static_cast<const F*>(f))(begin, end); };
  int32_t error = pdecnn_parallel_for(0, n, grain, call, const_cast<void*>(static_cast<const void*>(&body)));
  return error == 0 ? kOk : kThreadPool;
}

}  // namespace PDECNN_NS
