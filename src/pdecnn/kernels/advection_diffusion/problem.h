// The arguments of the exported functions, laid out as cpu.py packs them: 8-byte fields only.
#pragma once

#include "rows.h"

namespace PDECNN_NS {

struct Problem {
  int64_t dtype, N, C, H, W, K, boundary, interleaved;
  double dt, dx, dy;
  Map h, h_prev, u, v, D_x, D_y, f;
};

struct ForwardCall {
  Problem problem;
  Map out;
};

// A gradient is a map, or one number for each plane (then `sums` is the address of N*C doubles), or not wanted.
struct Gradient {
  Map map;
  void* sums;
};

struct BackwardCall {
  Problem problem;
  Map grad_out;
  Gradient h, h_prev, u, v, D_x, D_y, f;
};

}  // namespace PDECNN_NS
