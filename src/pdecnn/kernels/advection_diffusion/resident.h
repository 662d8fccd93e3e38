// Planes and volumes that stay in cache whole: every step goes over all of one before the next step begins.
#pragma once

#include "formulas.h"

namespace PDECNN_NS {

// A row that is one vector has no halos: its neighbours in x are its lanes in another order.
struct Turn {
  bool is_on;
  int32_t next[16], previous[16];
};

// One plane of any width, or some that lie side by side in memory (lanes), or a volume. Where it is in scratch memory, a row
// has `lanes` numbers more on each side, so that no loop knows of borders in x; those in y and z are told by strips.
template <class A>
class PlaneSolver {
 public:
  PlaneSolver(const Problem& p, const Storage<A>& storage, int64_t lanes);

  // Numbers of scratch memory, and whether they, and `more` of the caller, stay in cache.
  int64_t numbers(bool adjoint) const { return planes(adjoint) * plane_ + 64; }
  bool fits(bool adjoint, int64_t more = 0) const {
    return (numbers(adjoint) + more) * int64_t(sizeof(A)) <= (adjoint ? 3 << 19 : 1 << 19);
  }

  // Solve the planes of a group of a call, whose sizes and steps are those of the solver's problem.
  void solve(const ForwardCall& call, const Group& g, A* scratch) const;
  void solve(const BackwardCall& call, const Group& g, A* scratch) const;

 private:
  template <int kAxes>
  struct Work;

  int64_t planes(bool adjoint) const {
    const int64_t fields = 2 * axes_ + 1, weights = 4 + 2 * axes_;
    return fields + weights + (adjoint ? 2 * (p_.K + 2) : 3);
  }

  const Problem p_;
  const Scheme<A> q_;
  const Storage<A> storage_;
  const RowLayout layout_;
  const int64_t axes_;
  bool is_flat_;  // rows follow each other without a gap, and are gone over as one
  Turn turn_;
  int64_t row_;    // numbers from one row to the next
  int64_t front_;  // zeros before a plane: what is beyond a border
  int64_t plane_;  // numbers from one plane to the next
};

extern template class PlaneSolver<float>;
extern template class PlaneSolver<double>;

}  // namespace PDECNN_NS
