// Vectors of the width that the instruction set has, a type that GCC and clang know.
#pragma once

#include "abi.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

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
  typedef A V __attribute__((vector_size(Bytes)));
  // The same where numbers are, at any address of theirs: so the compiler knows that to store them changes nothing else.
  typedef A InMemory __attribute__((vector_size(Bytes), aligned(alignof(A))));
  static PDECNN_INLINE V load(const A* p) { return *reinterpret_cast<const InMemory*>(p); }
  static PDECNN_INLINE void store(A* p, const V& v) { *reinterpret_cast<InMemory*>(p) = v; }
  static PDECNN_INLINE V all(A a) { return a - V{}; }  // exactly a, also for -0
  // Whether lanes can be put in another order, and the vector whose lane i is lane places[i] of v.
#if defined(__AVX512F__)
  static constexpr bool kTurns = Bytes == 64 && sizeof(A) == 4;
#elif defined(__AVX2__)
  static constexpr bool kTurns = Bytes == 32 && sizeof(A) == 4;
#else
  static constexpr bool kTurns = false;
#endif
  typedef int32_t Order __attribute__((vector_size(count * int(sizeof(int32_t)))));
  static PDECNN_INLINE V turn(const V& v, const Order& places) {
    (void)places;
    if constexpr (!kTurns) return v;
#if defined(__AVX512F__)
    else return V(_mm512_permutexvar_ps(__m512i(places), __m512(v)));
#elif defined(__AVX2__)
    else return V(_mm256_permutevar8x32_ps(__m256(v), __m256i(places)));
#endif
  }
  // By halves: the bits are those of no other order.
  static PDECNN_INLINE A sum(const V& v) {
    if constexpr (count == 1) return v[0];
    else {
      using Half = Lanes<A, Bytes / 2>;
      typename Half::V halves[2];
      std::memcpy(halves, &v, sizeof v);
      return Half::sum(halves[0] += halves[1]);
    }
  }
};

// Numbers from one storage type to another: bfloat16 is widened when it is read and rounded when it is written.
template <class To, class From>
PDECNN_INLINE void copy_numbers(To* PDECNN_RESTRICT to, const From* PDECNN_RESTRICT from, int64_t n) {
  PDECNN_VECTORIZE
  for (int64_t i = 0; i < n; ++i) narrow(widen(from[i]), to[i]);
}

// The same for rows of n numbers that are some way apart: whole vectors, the last of which begins so that it ends with the row.
template <class To, class From>
PDECNN_INLINE void copy_rows(To* to, int64_t to_stride, const From* from, int64_t from_stride, int64_t n, int64_t rows) {
  if constexpr (sizeof(To) == sizeof(From)) {
    auto by = [=](auto lanes) {
      using L = decltype(lanes);
      const int64_t last = n - L::count;
      To* row = to;
      const From* row_from = from;
      auto each = [&](auto&& copy) {
        for (int64_t r = 0; r < rows; ++r, row += to_stride, row_from += from_stride)
          copy(), L::store(row + last, L::load(row_from + last));
      };
      if (last == 0) each([] {});
      else if (last <= L::count) each([&] { L::store(row, L::load(row_from)); });
      else
        each([&] {
          for (int64_t i = 0; i < last; i += L::count) L::store(row + i, L::load(row_from + i));
        });
    };
    using Wide = Lanes<From, kVectorBytes>;
    using Narrow = Lanes<From, 16>;
    if (n >= Wide::count) return by(Wide{});
    if (n >= Narrow::count) return by(Narrow{});
  }
  for (int64_t r = 0; r < rows; ++r) copy_numbers(to + r * to_stride, from + r * from_stride, n);
}
template <class To, class From>
PDECNN_INLINE void copy_row(To* to, const From* from, int64_t n) {
  copy_rows(to, 0, from, 0, n, 1);
}

// The same for numbers that may be apart in memory, or all one.
template <class To, class From>
PDECNN_INLINE void copy_strided(To* to, int64_t to_stride, const From* from, int64_t from_stride, int64_t n) {
  if (to_stride == 1 && from_stride == 1) return copy_row(to, from, n);
  if (to_stride == 1 && from_stride == 0) {
    const auto value = widen(*from);
    for (int64_t i = 0; i < n; ++i) narrow(value, to[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) narrow(widen(from[i * from_stride]), to[i * to_stride]);
  }
}

// The widest vector that a row of W numbers fills: calls f with it.
template <class A, class F>
PDECNN_INLINE auto by_width(int64_t W, const F& f) {
  constexpr int kNarrow = kVectorBytes > 32 ? 32 : kVectorBytes;
  if (W * int64_t(sizeof(A)) <= kNarrow) return f(Lanes<A, kNarrow>{});
  return f(Lanes<A, kVectorBytes>{});
}

// Calls f with a number of the type that is stored.
template <class F>
Status by_dtype(int64_t dtype, const F& f) {
  switch (dtype) {
    case kFloat32: return f(float{});
    case kFloat64: return f(double{});
    case kBFloat16: return f(bfloat16{});
  }
  return kBadArgument;
}

}  // namespace PDECNN_NS
