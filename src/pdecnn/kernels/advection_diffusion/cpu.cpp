// K steps of advection-diffusion and their adjoint on the CPU. The C ABI is at the end; cpu.py calls it.
#include "march.h"
#include "resident.h"

namespace PDECNN_NS {
namespace {

template <class A, class Call>
Status solve_planes(const Call& call, const Storage<A>& storage, const PlaneSolver<A>& most) {
  const Problem& p = call.problem;
  const Grouping grouping(p.N, p.C, p.interleaved != 0, PlaneSolver<A>::together(p));
  const size_t bytes = size_t(most.numbers(is_backward<Call>)) * sizeof(A);
  const int64_t work = grouping.together * p.D * p.H * p.W * p.K;
  return parallel_for(grouping.count, grain(work), bytes, [&](int64_t begin, int64_t end, char* memory) {
    A* scratch = reinterpret_cast<A*>(memory);
    for (; begin < end; ++begin) {
      Group g;
      const int64_t many = grouping.group(begin, g);
      if (many == grouping.together) most.solve(call, g, scratch);
      else PlaneSolver<A>(p, storage, many).solve(call, g, scratch);
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
    const PlaneSolver<A> solver(p, storage, PlaneSolver<A>::together(p));
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
