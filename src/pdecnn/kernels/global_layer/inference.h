// A whole layer in inference: coefficients, K steps, output affine, activation and residual.
//
// Nothing in it mixes channels, so a plane is read once, all is done in cache, and it is written once.
#pragma once

#include "training.h"

namespace PDECNN_NS {
namespace global_training {

// The layer without norms. Maps are dense, all in the order of h.
inline Layer layer_of(const LayerCall& c) {
  auto data = [](const Map& m) { return static_cast<const float*>(m.data); };
  const bool interleaved = c.C > 1 && c.h.sc == 1 && c.h.sx == c.C;
  const double sign = double(c.flow_sign);  // axes that run against the index: negative velocities
  return {
      {c.N, c.C, c.H, c.W, c.maps, c.side, interleaved, c.coefficient_act, {}, data(c.h), c.weight, c.bias, nullptr, nullptr},
      c.K,
      c.dt,
      sign * c.dx,
      sign * c.dy,
      c.D_x,
      c.D_y,
      c.x.data == c.h.data ? nullptr : data(c.x),
      c.has_source,
      c.previous_is_input};
}

template <class L, int K, int M>
Status infer(const LayerCall& call, const Layer& layer) {
  const depthwise_norm::Problem& p = layer.problem;
  const depthwise_norm::Clamp<L> clamp(p);
  const Limits limits(call.output_act);
  const int64_t plane = p.plane(), planes_of_task = depthwise_norm::Tasks(p).channels * depthwise_norm::Tasks(p).samples;
  auto make = [&](Planes<M>& planes, int64_t c, const float* h) {
    float start[M];
    for (int m = 0; m < M; ++m) start[m] = -float(p.bias_at(m, c));
    planes.template make_coefficients<L, false>(depthwise_norm::centred<K, M>(p, c, start), clamp, h);
  };
  auto finish = [&](int64_t c, const float* PDECNN_RESTRICT x, float* PDECNN_RESTRICT out) {
    const float scale = call.scale[c], shift = call.shift[c], low = limits.low, high = limits.high;
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < plane; ++i) {
      const float y = scale * out[i] + shift, above = y <= low ? low : y;
      out[i] = above >= high ? high : above;
    }
    if (call.output_act == kTanh) apply_tanh(out, plane);
    if (!call.residual) return;
    PDECNN_VECTORIZE
    for (int64_t i = 0; i < plane; ++i) out[i] += x[i];
  };
  const int64_t grain = max<int64_t>(1, 32768 / (plane * (call.K + 8) * planes_of_task));
  const Solver solver = Solver::of(layer, call.boundary);
  return advance<M>(layer, call.boundary, solver, static_cast<float*>(call.out.data), grain, make, finish);
}

}  // namespace global_training
}  // namespace PDECNN_NS
