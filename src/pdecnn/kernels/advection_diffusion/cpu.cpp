// K steps of advection-diffusion and their adjoint on the CPU. The C ABI is at the end; cpu.py calls it.
#include "channels_last.h"
#include "march.h"

namespace PDECNN_NS {
namespace {

template <class Call>
Status solve(const Call& call) {
  const Problem& p = call.problem;
  // Planes that are covered and whose scratch stays in cache are solved whole, others row by row.
  const PlaneSolver* solver = p.dtype == kFloat64 || p.boundary != kPeriodic ? nullptr : plane_solver(p.W);
  if (solver == nullptr || !solver->fits<Call>(p.H, p.K))
    return by_dtype(p.dtype, [&](auto t) {
      using A = arithmetic_t<decltype(t)>;
      return March<A>(p, {load_row<decltype(t), A>, store_row<decltype(t), A>}, is_backward<Call>).solve(call);
    });
  if (p.dtype == kBFloat16) return solve_blocks<bfloat16>(call, *solver);
  bool in_rows = true;
  auto check = [&](const auto& m) { in_rows = in_rows && has_rows(m); };
  each_input(check, call), each_result(check, call);
  if (!in_rows) return solve_blocks<float>(call, *solver);
  const Scheme<float> q(p);
  return for_each_plane(p, solver->numbers<Call>(p.H, p.K),
                        [&](const PlaneIndex& i, float* to) { solver->solve(call, q, i, to); });
}

}  // namespace

Status advection_diffusion(const ForwardCall& call) { return solve(call); }

}  // namespace PDECNN_NS

PDECNN_FUNCTION(pdecnn_advection_diffusion_forward, ForwardCall, solve)
PDECNN_FUNCTION(pdecnn_advection_diffusion_backward, BackwardCall, solve)
