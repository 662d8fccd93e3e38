// Planes and volumes that stay in cache whole: every step goes over all of some before the next step begins.
#pragma once

#include "formulas.h"

namespace PDECNN_NS {

// Solves some planes of any width together, or some volumes: side by side in a row, as `rows.h` tells, so that no loop knows
// of borders in x, and short rows do not cost more than long ones. Borders in y and z are told by strips.
template <class A>
class PlaneSolver {
 public:
  // How many planes, or channels that lie side by side, are best solved together; by the shape alone.
  static int64_t together(const Problem& p);
  PlaneSolver(const Problem& p, const Storage<A>& storage, int64_t planes);

  // Numbers of scratch memory, and whether they, and `more` of the caller, stay in cache.
  int64_t numbers(bool adjoint) const { return planes(adjoint) * plane_ + 64; }
  bool fits(bool adjoint, int64_t more = 0) const {
    return (numbers(adjoint) + more) * int64_t(sizeof(A)) <= (adjoint ? 5 << 18 : 3 << 17);
  }

  // Solve the planes of a group of a call, whose sizes and steps are those of the solver's problem.
  void solve(const ForwardCall& call, const Group& g, A* scratch) const;
  void solve(const BackwardCall& call, const Group& g, A* scratch) const;

 private:
  using L = Lanes<A, kVectorBytes>;
  using V = typename L::V;
  template <int kAxes, bool kTurned>
  struct Work;
  template <bool kAdjoint, class Call>
  void solve_as(const Call& call, const Group& g, A* scratch) const;

  static bool turns(const Problem& p);
  static RowLayout layout(const Problem& p, int64_t planes);
  int64_t planes(bool adjoint) const {
    const int64_t weights = 3 + 2 * axes_;
    return axes_ + weights + (adjoint ? 1 + 2 * (p_.K + 2) : 2);
  }

  const Problem p_;
  const Scheme<A> q_;
  const Storage<A> storage_;
  const int64_t axes_;
  const bool is_turned_;
  const RowLayout layout_;
  typename L::Order next_ = {}, previous_ = {};  // lanes of a vector of turned rows in the order of their neighbours
  int64_t length_;                               // numbers of a row that loops go over
  int64_t row_;                                  // numbers from one row to the next
  int64_t front_;                                // zeros before a plane: what is beyond a border
  int64_t plane_;                                // numbers from one plane to the next
};

extern template class PlaneSolver<float>;
extern template class PlaneSolver<double>;

}  // namespace PDECNN_NS
