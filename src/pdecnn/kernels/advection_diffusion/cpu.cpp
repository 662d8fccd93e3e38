// K steps of advection-diffusion and their adjoint on the CPU. The C ABI is at the end; cpu.py calls it.
#include "channels_last.h"
#include "march.h"

namespace PDECNN_NS {
namespace {

// The solver of planes, if it covers the problem and its scratch stays in cache.
const PlaneSolver* find_solver(const Problem& p, bool adjoint) {
  if (p.dtype == kFloat64 || p.boundary != kPeriodic) return nullptr;
  const PlaneSolver* solver = plane_solver(p.W);
  if (solver == nullptr) return nullptr;
  const int64_t numbers = adjoint ? solver->backward_numbers(p.H, p.K) : solver->forward_numbers(p.H);
  return numbers * int64_t(sizeof(float)) <= (adjoint ? kBackwardBytes : kForwardBytes) ? solver : nullptr;
}

bool in_rows(const Problem& p) {
  const Map* maps[] = {&p.h, &p.h_prev, &p.u, &p.v, &p.D_x, &p.D_y, &p.f};
  bool all = p.dtype == kFloat32;
  for (const Map* m : maps) all = all && has_rows(*m);
  return all;
}

template <class T>
Problem planar(Problem p, PlanarBlock<T>& block, int64_t channels) {
  p.N = 1, p.C = channels;
  Map* maps[] = {&p.h, &p.h_prev, &p.u, &p.v, &p.D_x, &p.D_y, &p.f};
  for (Map* m : maps) *m = block.read(*m);
  return p;
}

template <class T>
Status forward_blocks(const ForwardCall& call, const PlaneSolver& solver) {
  const Problem& p = call.problem;
  const Scheme<float> q(p);
  return for_each_block<T>(p, 8, solver.forward_numbers(p.H), [&](PlanarBlock<T>& block, int64_t channels, float* to) {
    const ForwardCall part{planar(p, block, channels), block.write(call.out)};
    for (int64_t c = 0; c < channels; ++c) solver.forward(part, q, PlaneIndex{0, c, 0, c + 1 < channels}, to);
    block.take(part.out, call.out);
  });
}

template <class T>
Status backward_blocks(const BackwardCall& call, const PlaneSolver& solver) {
  const Problem& p = call.problem;
  const Scheme<float> q(p);
  const int64_t numbers = solver.backward_numbers(p.H, p.K);
  return for_each_block<T>(p, 15, numbers, [&](PlanarBlock<T>& block, int64_t channels, float* to) {
    BackwardCall part = call;
    part.problem = planar(p, block, channels);
    part.grad_out = block.read(call.grad_out);
    Gradient* made[] = {&part.h, &part.h_prev, &part.u, &part.v, &part.D_x, &part.D_y, &part.f};
    const Gradient* wanted[] = {&call.h, &call.h_prev, &call.u, &call.v, &call.D_x, &call.D_y, &call.f};
    for (int i = 0; i < 7; ++i) *made[i] = block.write(*wanted[i], p.C);
    for (int64_t c = 0; c < channels; ++c) solver.backward(part, q, PlaneIndex{0, c, 0, c + 1 < channels}, to);
    for (int i = 0; i < 7; ++i) block.take(made[i]->map, wanted[i]->map);
  });
}

// Calls f with how the rows of the problem are stored.
template <class F>
Status by_dtype(int64_t dtype, const F& f) {
  switch (dtype) {
    case kFloat32: return f(Storage<float>{load_row<float, float>, store_row<float, float>});
    case kFloat64: return f(Storage<double>{load_row<double, double>, store_row<double, double>});
    case kBFloat16: return f(Storage<float>{load_row<bfloat16, float>, store_row<bfloat16, float>});
  }
  return kBadArgument;
}

template <class A>
Status march_forward(const ForwardCall& call, const Storage<A>& storage) {
  const March<A> march(call.problem, storage, false);
  return march.each_group(
      [&](const Group& g, const RowLayout& l, const Kept<A>& kept) { march.forward(g, l, kept, call.out); });
}

template <class A>
Status march_backward(const BackwardCall& call, const Storage<A>& storage) {
  const March<A> march(call.problem, storage, true);
  return march.each_group([&](const Group& g, const RowLayout& l, const Kept<A>& kept) { march.backward(g, l, kept, call); });
}

}  // namespace

Status advection_diffusion(const ForwardCall& call) {
  const Problem& p = call.problem;
  if (const PlaneSolver* solver = find_solver(p, false)) {
    if (p.dtype == kBFloat16) return forward_blocks<bfloat16>(call, *solver);
    if (!in_rows(p) || call.out.sx != 1) return forward_blocks<float>(call, *solver);
    const Scheme<float> q(p);
    return for_each_plane(p, solver->forward_numbers(p.H),
                          [&](const PlaneIndex& i, float* to) { solver->forward(call, q, i, to); });
  }
  return by_dtype(p.dtype, [&](const auto& storage) { return march_forward(call, storage); });
}

Status advection_diffusion_backward(const BackwardCall& call) {
  const Problem& p = call.problem;
  if (const PlaneSolver* solver = find_solver(p, true)) {
    if (p.dtype == kBFloat16) return backward_blocks<bfloat16>(call, *solver);
    const Gradient* gradients[] = {&call.h, &call.h_prev, &call.u, &call.v, &call.D_x, &call.D_y, &call.f};
    bool rows = in_rows(p) && has_rows(call.grad_out);
    for (const Gradient* g : gradients) rows = rows && has_rows(g->map);
    if (!rows) return backward_blocks<float>(call, *solver);
    const Scheme<float> q(p);
    const int64_t numbers = solver->backward_numbers(p.H, p.K);
    return for_each_plane(p, numbers, [&](const PlaneIndex& i, float* to) { solver->backward(call, q, i, to); });
  }
  return by_dtype(p.dtype, [&](const auto& storage) { return march_backward(call, storage); });
}

}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_advection_diffusion_forward)(const void* call) {
  return PDECNN_NS::advection_diffusion(*static_cast<const PDECNN_NS::ForwardCall*>(call));
}

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_advection_diffusion_backward)(const void* call) {
  return PDECNN_NS::advection_diffusion_backward(*static_cast<const PDECNN_NS::BackwardCall*>(call));
}
