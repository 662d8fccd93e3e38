// Between pixels that hold their channels side by side (channels_last) and planes: 16 channels at a time.
#pragma once

#include "vector_row.h"

namespace PDECNN_NS {

constexpr int64_t kBlock = 16;

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
#endif

// to[j][i] = from[i][j] for i < rows, j < columns.
template <class T>
void transpose(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows, int64_t columns) {
  int64_t tiled_rows = 0, tiled_columns = 0;
#if defined(__GNUC__)
  if constexpr (is_float<T>) {
    tiled_rows = rows / kBlock * kBlock, tiled_columns = columns / kBlock * kBlock;
    for (int64_t i = 0; i < tiled_rows; i += kBlock)
      for (int64_t j = 0; j < tiled_columns; j += kBlock)
        transpose_tile(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
  }
#endif
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < tiled_rows ? tiled_columns : 0; j < columns; ++j) to[j * to_stride + i] = from[i * from_stride + j];
}

}  // namespace PDECNN_NS
