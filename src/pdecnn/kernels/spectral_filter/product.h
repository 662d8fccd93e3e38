// C = A B for matrices that stay in cache. Rows of B and C are whole vectors long.
#pragma once

#include "lanes.h"

namespace PDECNN_NS {
namespace {

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
PDECNN_INLINE void product_rows(const A* a, int64_t a_stride, const A* b, int64_t b_stride, A* c, int64_t c_stride, int64_t rows,
                  int64_t inner) {
  int64_t i = 0;
  for (; i + MR <= rows; i += MR)
    product_block<L, MR, NV>(a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride, inner);
  for (; i + 2 <= rows; i += 2)
    product_block<L, 2, NV>(a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride, inner);
  for (; i < rows; ++i)
    product_block<L, 1, NV>(a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride, inner);
}

// (rows, inner) times (inner, columns); columns is a multiple of the vector.
template <class L, class A>
PDECNN_INLINE void product_of(const A* a, int64_t a_stride, const A* b, int64_t b_stride, A* c, int64_t c_stride, int64_t rows,
             int64_t inner, int64_t columns) {
  int64_t k = 0;
#if defined(__AVX512F__)  // 32 registers
  for (; k + 4 * L::count <= columns; k += 4 * L::count)
    product_rows<L, 6, 4>(a, a_stride, b + k, b_stride, c + k, c_stride, rows, inner);
#endif
  for (; k + 2 * L::count <= columns; k += 2 * L::count)
    product_rows<L, 4, 2>(a, a_stride, b + k, b_stride, c + k, c_stride, rows, inner);
  for (; k < columns; k += L::count)
    product_rows<L, 8, 1>(a, a_stride, b + k, b_stride, c + k, c_stride, rows, inner);
}

// The same; sizes that are common are known to the compiler.
template <class L, class A>
void product(const A* a, int64_t a_stride, const A* b, int64_t b_stride, A* c, int64_t c_stride, int64_t rows,
             int64_t inner, int64_t columns) {
  if (rows == 8 && inner == 8 && columns == 8) product_of<L>(a, 8, b, 8, c, 8, 8, 8, 8);
  else if (rows == 16 && inner == 16 && columns == 16) product_of<L>(a, 16, b, 16, c, 16, 16, 16, 16);
  else product_of<L>(a, a_stride, b, b_stride, c, c_stride, rows, inner, columns);
}

}  // namespace
}  // namespace PDECNN_NS
