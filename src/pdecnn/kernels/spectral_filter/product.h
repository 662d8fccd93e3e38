// C = A B for matrices that stay in cache. Rows of B and C are whole vectors long.
#pragma once

#include "lanes.h"

namespace PDECNN_NS {
namespace spectral_filter {

// Rows [0, MR) of C, NV vectors wide: MR * NV sums live in registers.
template <class L, int MR, int NV, class A>
PDECNN_INLINE void product_block(const A* a, int64_t a_stride, const A* b, int64_t b_stride, A* c, int64_t c_stride,
                                 int64_t inner) {
  typename L::V sum[MR][NV] = {};
  for (int64_t j = 0; j < inner; ++j) {
    typename L::V row[NV];
    for (int v = 0; v < NV; ++v) row[v] = L::load(b + j * b_stride + v * L::count);
    for (int i = 0; i < MR; ++i) {
      const auto factor = L::all(a[i * a_stride + j]);
      for (int v = 0; v < NV; ++v) sum[i][v] += factor * row[v];
    }
  }
  for (int i = 0; i < MR; ++i)
    for (int v = 0; v < NV; ++v) L::store(c + i * c_stride + v * L::count, sum[i][v]);
}

template <class L, int MR, int NV, class A>
PDECNN_INLINE void product_some_rows(const A* a, int64_t a_stride, const A* b, int64_t b_stride, A* c, int64_t c_stride,
                                     int64_t rows, int64_t inner) {
  if (rows == MR) return product_block<L, MR, NV>(a, a_stride, b, b_stride, c, c_stride, inner);
  if constexpr (MR > 1) product_some_rows<L, MR - 1, NV>(a, a_stride, b, b_stride, c, c_stride, rows, inner);
}

// Blocks of at most MR rows, as even as they can be: a thin last block would wait for its own sums.
template <class L, int MR, int NV, class A>
PDECNN_INLINE void product_rows(const A* a, int64_t a_stride, const A* b, int64_t b_stride, A* c, int64_t c_stride,
                                int64_t rows, int64_t inner) {
  const int64_t blocks = (rows + MR - 1) / MR;
  for (int64_t block = 0, i = 0; block < blocks; ++block) {
    const int64_t many = (rows - i + blocks - block - 1) / (blocks - block);
    product_some_rows<L, MR, NV>(a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride, many, inner);
    i += many;
  }
}

// (rows, inner) times (inner, columns); columns is a multiple of the vector.
template <class L, class A>
void product(const A* a, int64_t a_stride, const A* b, int64_t b_stride, A* c, int64_t c_stride, int64_t rows, int64_t inner,
             int64_t columns) {
  int64_t k = 0;
#if defined(__AVX512F__)  // 32 registers
  for (; k + 4 * L::count <= columns; k += 4 * L::count)
    product_rows<L, 6, 4>(a, a_stride, b + k, b_stride, c + k, c_stride, rows, inner);
#endif
  for (; k + 2 * L::count <= columns; k += 2 * L::count)
    product_rows<L, 4, 2>(a, a_stride, b + k, b_stride, c + k, c_stride, rows, inner);
  for (; k < columns; k += L::count) product_rows<L, 8, 1>(a, a_stride, b + k, b_stride, c + k, c_stride, rows, inner);
}

}  // namespace spectral_filter
}  // namespace PDECNN_NS
