// Vectors of the width that the instruction set has. GCC and clang know them as a type; elsewhere they are an array.
#pragma once

#include "parallel.h"

namespace PDECNN_NS {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class A, int Bytes>
struct Lanes {
  static constexpr int64_t count = Bytes / int(sizeof(A));
#if defined(__GNUC__)
  typedef A V __attribute__((vector_size(Bytes)));
#else
  struct V {
    A x[count];
    friend V operator*(const V& a, const V& b) {
      V c;
      for (int i = 0; i < count; ++i) c.x[i] = a.x[i] * b.x[i];
      return c;
    }
    V& operator+=(const V& b) {
      for (int i = 0; i < count; ++i) x[i] += b.x[i];
      return *this;
    }
    A operator[](int64_t i) const { return x[i]; }
  };
#endif
  static PDECNN_INLINE V load(const A* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static PDECNN_INLINE void store(A* p, const V& v) { std::memcpy(p, &v, sizeof v); }
  static PDECNN_INLINE V all(A a) {
#if defined(__GNUC__)
    return a - V{};  // exactly a, also for -0
#else
    V v;
    for (int i = 0; i < count; ++i) v.x[i] = a;
    return v;
#endif
  }
  static PDECNN_INLINE A sum(const V& v) {
    A s = 0;
    for (int64_t i = 0; i < count; ++i) s += v[i];
    return s;
  }
};

// bfloat16 is widened when it is read and rounded when it is written.
template <class T, class A>
PDECNN_INLINE void read_numbers(A* PDECNN_RESTRICT to, const T* PDECNN_RESTRICT from, int64_t n) {
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}
template <class T, class A>
PDECNN_INLINE void write_numbers(T* PDECNN_RESTRICT to, const A* PDECNN_RESTRICT from, int64_t n) {
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) narrow(from[i], to[i]);
}

// A row of numbers that are `stride` apart in memory; the usual widths are known to the compiler.
template <class T, class A>
PDECNN_INLINE void read_strided(A* to, const T* from, int64_t stride, int64_t n) {
  if (stride != 1)
    for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i * stride]);
  else if (n == 8) read_numbers(to, from, 8);
  else if (n == 16) read_numbers(to, from, 16);
  else if (n == 32) read_numbers(to, from, 32);
  else read_numbers(to, from, n);
}
template <class T, class A>
PDECNN_INLINE void write_strided(T* to, int64_t stride, const A* from, int64_t n) {
  if (stride != 1)
    for (int64_t i = 0; i < n; ++i) narrow(from[i], to[i * stride]);
  else if (n == 8) write_numbers(to, from, 8);
  else if (n == 16) write_numbers(to, from, 16);
  else if (n == 32) write_numbers(to, from, 32);
  else write_numbers(to, from, n);
}

}  // namespace PDECNN_NS
