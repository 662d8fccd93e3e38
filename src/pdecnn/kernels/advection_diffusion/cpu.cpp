// K steps of advection-diffusion and their adjoint on the CPU. The C ABI is at the end; cpu.py calls it.
#include "march.h"
#include "resident.h"

namespace PDECNN_NS {
namespace {

// Channels that lie side by side and are solved together: as many as a vector holds.
template <class A>
int64_t lanes_of(const Problem& p) {
  return p.interleaved ? min<int64_t>(p.C, Lanes<A, kVectorBytes>::count) : 1;
}

template <class A, class Call>
Status solve_planes(const Call& call, const Storage<A>& storage, const PlaneSolver<A>& widest) {
  const Problem& p = call.problem;
  const int64_t most = lanes_of<A>(p), blocks = (p.C + most - 1) / most;
  const size_t bytes = size_t(widest.numbers(is_backward<Call>)) * sizeof(A);
  return parallel_for(p.N * blocks, grain(most * p.D * p.H * p.W * p.K), bytes, [&](int64_t begin, int64_t end, char* to) {
    for (; begin < end; ++begin) {
      Group g;
      g.n[0] = begin / blocks, g.c[0] = begin % blocks * most;
      const int64_t lanes = min(most, p.C - g.c[0]);
      if (lanes == most) widest.solve(call, g, reinterpret_cast<A*>(to));
      else PlaneSolver<A>(p, storage, lanes).solve(call, g, reinterpret_cast<A*>(to));
    }
  });
}

// Planes whose scratch stays in cache are solved whole, as are volumes; others row by row.
template <class Call>
Status solve(const Call& call) {
  const Problem& p = call.problem;
  return by_dtype(p.dtype, [&](auto t) {
    using A = arithmetic_t<decltype(t)>;
    if (p.N * p.C == 0) return kOk;
    const Storage<A>& storage = kStorage<decltype(t)>;
    const PlaneSolver<A> solver(p, storage, lanes_of<A>(p));
    if (p.w.data != nullptr || solver.fits(is_backward<Call>)) return solve_planes(call, storage, solver);
    const March<A> march(p, storage, is_backward<Call>);
    return parallel_for(march.groups(), grain(march.work()), march.bytes(), [&](int64_t begin, int64_t end, char* memory) {
      for (; begin < end; ++begin) march.solve(call, begin, memory);
    });
  });
}

}  // namespace

template class March<float>;
template class March<double>;

}  // namespace PDECNN_NS

PDECNN_FUNCTION(pdecnn_advection_diffusion_forward, ForwardCall, solve)
PDECNN_FUNCTION(pdecnn_advection_diffusion_backward, BackwardCall, solve)
