// Periodic planes of the usual widths that stay in cache whole, in single precision: how they are found and run over.
#pragma once

#include "formulas.h"

namespace PDECNN_NS {

// Plane (n, c), and how far in n and c the one is that follows it.
struct PlaneIndex {
  int64_t n, c, next_n, next_c;
};

// Solves one plane of one width. Columns of its maps lie side by side, or are all one.
struct PlaneSolver {
  int64_t row;  // numbers that a row takes in scratch memory
  void (*forward)(const ForwardCall&, const Scheme<float>&, const PlaneIndex&, float* scratch);
  void (*backward)(const BackwardCall&, const Scheme<float>&, const PlaneIndex&, float* scratch);

  void solve(const ForwardCall& c, const Scheme<float>& q, const PlaneIndex& i, float* to) const { forward(c, q, i, to); }
  void solve(const BackwardCall& c, const Scheme<float>& q, const PlaneIndex& i, float* to) const { backward(c, q, i, to); }

  // Numbers of scratch: seven weights and two states; backward the eighth weight, three sums, the states from h^{-1} on,
  // their gradients, and a row of zeros.
  template <class Call>
  int64_t numbers(int64_t H, int64_t K) const {
    return is_backward<Call> ? (8 + 3 + (K + 2) + (K + 1)) * H * row + row : 9 * H * row;
  }
  // Whether they, and `more` of the caller, stay in cache.
  template <class Call>
  bool fits(int64_t H, int64_t K, int64_t more = 0) const {
    return (numbers<Call>(H, K) + more) * int64_t(sizeof(float)) <= (is_backward<Call> ? 3 << 19 : 1 << 19);
  }
};

// The solver of planes of W columns; null: the march must do it.
const PlaneSolver* plane_solver(int64_t W);

// Solves all planes of a call, by whichever way is the fastest.
Status advection_diffusion(const ForwardCall& call);

// Whether the columns of a map are side by side or all one.
inline bool has_rows(const Map& m) { return m.data == nullptr || m.sx == 1 || m.sx == 0; }
inline bool has_rows(const Gradient& g) { return has_rows(g.map); }

// Runs `solve(plane, scratch)` over all planes with one scratch of `numbers` per thread.
template <class Solve>
Status for_each_plane(const Problem& p, int64_t numbers, const Solve& solve) {
  return parallel_for(p.N * p.C, grain(p.H * p.W * p.K), size_t(numbers) * sizeof(float),
                      [&](int64_t begin, int64_t end, char* to) {
                        PlaneIndex i{begin / p.C, begin % p.C, 0, 0};
                        for (; begin < end; ++begin) {
                          const bool wraps = i.c + 1 == p.C, last = begin + 1 == end;
                          i.next_n = !last && wraps ? 1 : 0;
                          i.next_c = last ? 0 : wraps ? 1 - p.C : 1;
                          solve(i, reinterpret_cast<float*>(to));
                          i.n += i.next_n, i.c += i.next_c;
                        }
                      });
}

}  // namespace PDECNN_NS
