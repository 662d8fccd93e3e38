// Between pixels that hold their channels side by side (channels_last) and planes: 16 or 8 channels at a time.
#pragma once

#include "lanes.h"

namespace PDECNN_NS {

constexpr int64_t kBlock = 16, kHalfBlock = 8;

template <class T>
inline constexpr bool is_float = false;
template <>
inline constexpr bool is_float<float> = true;

// Transposes a tile of 16 x 16 or 8 x 8 floats: four or three perfect shuffles of its rows.
template <int kSide>
PDECNN_INLINE void transpose_tile(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  static_assert(kSide == kBlock || kSide == kHalfBlock, "the shuffles are written out");
  constexpr int kHalf = kSide / 2;
  using L = Lanes<float, kSide* int(sizeof(float))>;
  using V = typename L::V;
  V a[kSide], b[kSide];
  for (int i = 0; i < kSide; ++i) a[i] = L::load(from + i * from_stride);
  for (int done = 1; done < kSide; done *= 2) {
    for (int i = 0; i < kHalf; ++i) {
      const V x = a[i], y = a[i + kHalf];
      if constexpr (kSide == kBlock) {
        b[2 * i] = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        b[2 * i + 1] = __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      } else {
        b[2 * i] = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
        b[2 * i + 1] = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
      }
    }
    for (int i = 0; i < kSide; ++i) a[i] = b[i];
  }
  for (int i = 0; i < kSide; ++i) L::store(to + i * to_stride, a[i]);
}

// Transposes as many tiles as fit and says in how many rows and columns; the rest is left to the caller.
template <int kSide>
PDECNN_INLINE void transpose_tiles(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t& rows,
                                   int64_t& columns) {
  rows = rows / kSide * kSide, columns = columns / kSide * kSide;
  for (int64_t i = 0; i < rows; i += kSide)
    for (int64_t j = 0; j < columns; j += kSide)
      transpose_tile<kSide>(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
}

// to[j][i] = from[i][j] for i < rows, j < columns; one of both may be bfloat16.
template <class From, class To>
void transpose(const From* from, int64_t from_stride, To* to, int64_t to_stride, int64_t rows, int64_t columns) {
  int64_t tiled_rows = 0, tiled_columns = 0;
  if constexpr (is_float<From> && is_float<To>) {
    tiled_rows = rows, tiled_columns = columns;
    if (rows >= kBlock && columns >= kBlock)
      transpose_tiles<kBlock>(from, from_stride, to, to_stride, tiled_rows, tiled_columns);
    else transpose_tiles<kHalfBlock>(from, from_stride, to, to_stride, tiled_rows, tiled_columns);
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < tiled_rows ? tiled_columns : 0; j < columns; ++j)
      narrow(widen(from[i * from_stride + j]), to[j * to_stride + i]);
}

}  // namespace PDECNN_NS
