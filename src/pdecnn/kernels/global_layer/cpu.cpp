// The exported functions of a Global layer: in inference, in training, and its norms alone.
#include "abi.h"

#if defined(__GNUC__)
#include "inference.h"
#include "norm.h"

namespace PDECNN_NS {

// Calls f with a vector that a row fills, the side of the stencils and their number.
template <class F>
Status by_layer(const global_training::Layer& layer, const F& f) {
  using depthwise_norm::Constant;
  const auto& p = layer.problem;
  if (p.side == 1 && p.maps == 2) return by_width(p, Constant<1>{}, Constant<2>{}, f);
  if (p.side == 1 && p.maps == 4) return by_width(p, Constant<1>{}, Constant<4>{}, f);
  return by_stencils(p, f);
}

// The same in training; there, planes must be of a width that stays in registers, or it is a bad argument.
template <class F>
Status by_solver(const global_training::Layer& layer, const F& f) {
  global_training::Solver solver;
  if (!global_training::Solver::find(layer, solver)) return kBadArgument;
  return by_stencils(layer.problem, [&](auto lanes, auto side, auto maps) { return f(solver, lanes, side, maps); });
}

// The same for norms: the stencils, or the map that is h itself, in one long row.
template <class F>
Status by_norm(const depthwise_norm::Problem& p, const F& f) {
  using depthwise_norm::Constant;
  if (p.side == 1 && p.maps == 1 && p.H == 1) return by_width(p, Constant<1>{}, Constant<1>{}, f);
  return by_stencils(p, f);
}

}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_layer)(const void* call) {
  using namespace PDECNN_NS;
  const auto& c = *static_cast<const LayerCall*>(call);
  const global_training::Layer layer = global_training::layer_of(c);
  return by_layer(layer, [&](auto lanes, auto side, auto maps) {
    return global_training::infer<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c, layer);
  });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_training_forward)(const void* call) {
  using namespace PDECNN_NS;
  const auto& c = *static_cast<const global_training::ForwardCall*>(call);
  return by_solver(c.layer, [&](const auto& solver, auto lanes, auto side, auto maps) {
    return global_training::forward<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c, solver);
  });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_training_backward)(const void* call) {
  using namespace PDECNN_NS;
  const auto& c = *static_cast<const global_training::BackwardCall*>(call);
  return by_solver(c.layer, [&](const auto& solver, auto lanes, auto side, auto maps) {
    return global_training::backward<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c, solver);
  });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_depthwise_norm_forward)(const void* call) {
  using namespace PDECNN_NS;
  const auto& c = *static_cast<const depthwise_norm::ForwardCall*>(call);
  return by_norm(c.problem, [&](auto lanes, auto side, auto maps) {
    return depthwise_norm::forward<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c);
  });
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_depthwise_norm_backward)(const void* call) {
  using namespace PDECNN_NS;
  const auto& c = *static_cast<const depthwise_norm::BackwardCall*>(call);
  return by_norm(c.problem, [&](auto lanes, auto side, auto maps) {
    return depthwise_norm::backward<decltype(lanes), decltype(side)::value, decltype(maps)::value>(c);
  });
}
#else
// Written with the vectors of GCC and clang: elsewhere the layer goes operator by operator.
PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_layer)(const void*) { return PDECNN_NS::kBadArgument; }
#endif
