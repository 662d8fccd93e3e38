// A row of W columns in registers. The neighbours in x come from rotating the registers: no halos, no unaligned reads.
#pragma once

#include "lanes.h"

namespace PDECNN_NS {

// The widest vector that pays, in bytes; narrower machines split it.
constexpr int kRowVectorBytes = 64;

constexpr int power_of_two_from(int n) { return n <= 4 ? 4 : 2 * power_of_two_from((n + 1) / 2); }

template <class A, int W>
struct VectorRow {
  static constexpr int kMost = kRowVectorBytes / int(sizeof(A));
  static constexpr int kLanes = W >= kMost ? kMost : power_of_two_from(W);
  static constexpr int kVectors = (W + kLanes - 1) / kLanes;
  static constexpr int kStride = kVectors * kLanes;  // numbers that a row takes in scratch memory
  static constexpr int kLast = (W - 1) % kLanes;     // the lane of the last column
  using L = Lanes<A, kLanes* int(sizeof(A))>;
  using V = typename L::V;
  V v[kVectors];

  // Vector i of the row at p; the vector after (before) each of its places, around the border; and putting one there.
  PDECNN_INLINE static V vector(const A* p, int i) { return L::load(p + i * kLanes); }
  PDECNN_INLINE static V next(const A* p, int i) {
    V v = after(vector(p, i), vector(p, (i + 1) % kVectors));
    if (kLast != kLanes - 1 && i == kVectors - 1) v[kLast] = p[0];
    return v;
  }
  PDECNN_INLINE static V previous(const A* p, int i) {
    V v = before(vector(p, (i + kVectors - 1) % kVectors), vector(p, i));
    if (kLast != kLanes - 1 && i == 0) v[0] = p[W - 1];
    return v;
  }
  PDECNN_INLINE static void put(A* p, int i, const V& v) { L::store(p + i * kLanes, v); }

  PDECNN_INLINE static VectorRow load(const A* p) {
    VectorRow r;
    for (int i = 0; i < kVectors; ++i) r.v[i] = vector(p, i);
    return r;
  }
  PDECNN_INLINE void store(A* p) const {
    for (int i = 0; i < kVectors; ++i) put(p, i, v[i]);
  }
  PDECNN_INLINE static VectorRow all(A value) {
    VectorRow r;
    for (int i = 0; i < kVectors; ++i) r.v[i] = L::all(value);
    return r;
  }
  // W columns from and to memory of the storage type; lanes beyond the last column are zero.
  template <class T>
  PDECNN_INLINE static VectorRow read(const T* p) {
    A row[kStride] = {};
    for (int x = 0; x < W; ++x) row[x] = widen(p[x]);
    return load(row);
  }
  template <class T>
  PDECNN_INLINE void write(T* p) const {
    A row[kStride];
    store(row);
    for (int x = 0; x < W; ++x) narrow(row[x], p[x]);
  }
  PDECNN_INLINE double sum() const {
    double total = 0;
    for (int x = 0; x < W; ++x) total += double(v[x / kLanes][x % kLanes]);
    return total;
  }

  // The row moved so that place x holds what was at x+1 (at x-1), around the border.
  PDECNN_INLINE VectorRow next() const {
    VectorRow r;
    for (int i = 0; i < kVectors; ++i) r.v[i] = after(v[i], v[(i + 1) % kVectors]);
    if constexpr (kLast != kLanes - 1) r.v[kVectors - 1][kLast] = v[0][0];
    return r;
  }
  PDECNN_INLINE VectorRow previous() const {
    VectorRow r;
    for (int i = 0; i < kVectors; ++i) r.v[i] = before(v[(i + kVectors - 1) % kVectors], v[i]);
    if constexpr (kLast != kLanes - 1) r.v[0][0] = v[kVectors - 1][kLast];
    return r;
  }

  friend PDECNN_INLINE VectorRow operator*(const VectorRow& a, const VectorRow& b) {
    VectorRow r;
    for (int i = 0; i < kVectors; ++i) r.v[i] = a.v[i] * b.v[i];
    return r;
  }

 private:
  PDECNN_INLINE static V after(V a, V b) {
    if constexpr (kLanes == 4) return __builtin_shufflevector(a, b, 1, 2, 3, 4);
    else if constexpr (kLanes == 8) return __builtin_shufflevector(a, b, 1, 2, 3, 4, 5, 6, 7, 8);
    else return __builtin_shufflevector(a, b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16);
  }
  PDECNN_INLINE static V before(V a, V b) {
    if constexpr (kLanes == 4) return __builtin_shufflevector(a, b, 3, 4, 5, 6);
    else if constexpr (kLanes == 8) return __builtin_shufflevector(a, b, 7, 8, 9, 10, 11, 12, 13, 14);
    else return __builtin_shufflevector(a, b, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30);
  }
};

}  // namespace PDECNN_NS
