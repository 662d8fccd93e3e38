// Between pixels that hold their channels side by side (channels_last) and planes: 16 or 8 channels at a time.
#pragma once

#include "vector_row.h"

namespace PDECNN_NS {

constexpr int64_t kBlock = 16, kHalfBlock = 8;

template <class T>
constexpr bool is_float = false;
template <>
constexpr bool is_float<float> = true;

#if defined(__GNUC__)
// Transposes a tile of 16 x 16 floats: four perfect shuffles of its rows.
PDECNN_INLINE void transpose_tile(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  typedef float V __attribute__((vector_size(64)));
  V a[16], b[16];
  for (int i = 0; i < 16; ++i) std::memcpy(&a[i], from + i * from_stride, sizeof(V));
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < 16; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 16; ++i) std::memcpy(to + i * to_stride, &a[i], sizeof(V));
}
// The same for 8 x 8: three shuffles.
PDECNN_INLINE void transpose_half_tile(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  typedef float V __attribute__((vector_size(32)));
  V a[8], b[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&a[i], from + i * from_stride, sizeof(V));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 8; ++i) std::memcpy(to + i * to_stride, &a[i], sizeof(V));
}

// Cuts a matrix into tiles, as many as fit; the rest is left to the caller.
template <int64_t kSide, class Tile>
PDECNN_INLINE void transpose_tiles(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                                   int64_t columns, const Tile& tile) {
  for (int64_t i = 0; i + kSide <= rows; i += kSide)
    for (int64_t j = 0; j + kSide <= columns; j += kSide)
      tile(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
}
#endif

// to[j][i] = from[i][j] for i < rows, j < columns.
template <class T>
void transpose(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows, int64_t columns) {
  int64_t tiled_rows = 0, tiled_columns = 0;
#if defined(__GNUC__)
  if constexpr (is_float<T>) {
    if (rows >= kBlock && columns >= kBlock) {
      tiled_rows = rows / kBlock * kBlock, tiled_columns = columns / kBlock * kBlock;
      transpose_tiles<kBlock>(from, from_stride, to, to_stride, rows, columns, transpose_tile);
    } else {
      tiled_rows = rows / kHalfBlock * kHalfBlock, tiled_columns = columns / kHalfBlock * kHalfBlock;
      transpose_tiles<kHalfBlock>(from, from_stride, to, to_stride, rows, columns, transpose_half_tile);
    }
  }
#endif
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < tiled_rows ? tiled_columns : 0; j < columns; ++j) to[j * to_stride + i] = from[i * from_stride + j];
}

}  // namespace PDECNN_NS
