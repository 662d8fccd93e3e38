// Solves planes in cache. README.md tells the layout in "Planes that stay whole".
#include "resident.h"

namespace PDECNN_NS {

// Rows without halos where a vector holds them: even with half of its lanes idle they take less time.
template <class A>
bool PlaneSolver<A>::turns(const Problem& p) {
  return L::kTurns && p.boundary == kPeriodic && !p.interleaved && p.W <= L::count;
}

template <class A>
int64_t PlaneSolver<A>::together(const Problem& p) {
  constexpr int64_t kNumbers = 512;  // enough to pay for the set-up of a step, few enough to stay near
  const int64_t fit = max<int64_t>(1, kNumbers / max<int64_t>(1, p.D * p.H * p.W));
  if (p.interleaved) return min(p.C, max(L::count, fit / L::count * L::count));
  return min(min(kMaxSegments, turns(p) ? round_up(fit, L::count / p.W) : fit), max<int64_t>(1, p.N * p.C));
}

template <class A>
RowLayout PlaneSolver<A>::layout(const Problem& p, int64_t planes) {
  if (turns(p)) return RowLayout::turned(p.W, planes, L::count);
  return RowLayout(p.W, p.interleaved ? 1 : planes, p.interleaved ? planes : 1, sizeof(A));
}

template <class A>
PlaneSolver<A>::PlaneSolver(const Problem& p, const Storage<A>& storage, int64_t planes)
    : p_(p), q_(p), storage_(storage), axes_(p.w.data == nullptr ? 2 : 3), is_turned_(turns(p)), layout_(layout(p, planes)) {
  const int64_t e = layout_.lanes, dense = layout_.segments * layout_.segment;
  for (int64_t i = 0; i < L::count && is_turned_; ++i) {
    const int64_t x = i % p.W, first = i - x;
    const bool is_idle = first + p.W > L::count;
    next_[i] = int32_t(is_idle ? i : x + 1 == p.W ? first : i + 1);
    previous_[i] = int32_t(is_idle ? i : x == 0 ? first + p.W - 1 : i - 1);
  }
  length_ = is_turned_ ? layout_.length : round_up(dense - 2 * e, L::count);
  row_ = is_turned_ ? length_ : round_up(max(dense, length_), L::count);
  if (10 * row_ <= 11 * length_) length_ = row_;  // then rows are gone over as one, halos and all
  front_ = round_up((q_.periodic() ? 0 : axes_ == 3 ? p.H : 1) * row_ + e, 16);
  plane_ = front_ + round_up(p.D * p.H * row_ + L::count, 16);
  if (plane_ * int64_t(sizeof(A)) % 1024 == 0) plane_ += 16;  // else planes would fall into the same sets of the cache
}

// Rows one after another that have their neighbours in y and z at the same distances.
template <int kAxes, class A>
struct Strip {
  int64_t begin, rows, row, length;  // its first number, how many rows, their distance, and their numbers
  int64_t plus[kAxes], minus[kAxes];
  bool first[kAxes], last[kAxes];  // whether a border is there that is not periodic
};

// The solver's work on one group.
template <class A>
template <int kAxes, bool kTurned>
struct PlaneSolver<A>::Work {
  using Strip = PDECNN_NS::Strip<kAxes, A>;
  const PlaneSolver& s;
  const Problem& p;
  const Group& g;
  const int64_t rows, n, e;
  const typename L::Order next, previous;
  A *u[kAxes], *D[kAxes], *f, *states;
  Weights<kAxes, A*> w{};

  Work(const PlaneSolver& s, const Problem& p, const Group& g, A* scratch, bool adjoint)
      : s(s), p(p), g(g), rows(p.D * p.H), n(s.row_), e(s.layout_.lanes), next(s.next_), previous(s.previous_) {
    A* next_plane = scratch + s.front_;
    auto take = [&] { return (next_plane += s.plane_) - s.plane_; };
    for (A*& plane : u) plane = take();
    w.a = take(), w.b = take(), w.s = take();
    for (A*& plane : w.plus) plane = take();
    for (A*& plane : w.minus) plane = take();
    // A weight takes the place of a field that is read at its own pixel alone.
    f = w.s;
    for (int j = 0; j < kAxes; ++j) D[j] = w.minus[j];
    if (adjoint) w.r = take();
    states = take();
    // What is beyond a border, where the planes of another group may have been.
    for (int64_t i = 0; i < s.planes(adjoint) && !s.q_.periodic(); ++i)
      std::memset(scratch + i * s.plane_, 0, size_t(s.front_) * sizeof(A));
  }
  A* state(int64_t i) const { return states + i * s.plane_; }

  // Calls f with every strip. Beyond a border that is not periodic is the border itself, or `zero`.
  template <class F>
  PDECNN_INLINE void each_strip(bool zero, bool by_row, const F& f) const {
    const int64_t H = p.H;
    const bool wraps = s.q_.periodic();
    for (int64_t z = 0; z < p.D; ++z)
      for (int64_t y = 0, many; y < H; y += many) {
        many = by_row || y == 0 || y == H - 1 ? 1 : H - 2;
        Strip strip{(z * H + y) * n, many, n, s.length_, {e}, {-e}, {}, {}};
        if (s.length_ == n) strip.length = many * n, strip.rows = 1;
        auto place = [&](int axis, int64_t i, int64_t size, int64_t distance) {
          const int64_t beyond = zero ? -(strip.begin + s.front_) : 0, around = (size - 1) * distance;
          const bool last = i + 1 == size, first = i == 0;
          strip.plus[axis] = !last ? distance : wraps ? -around : beyond;
          strip.minus[axis] = !first ? -distance : wraps ? around : beyond;
          strip.last[axis] = last && !wraps, strip.first[axis] = first && !wraps;
        };
        place(1, y, H, n);
        if (many > 1) strip.plus[1] = n, strip.last[1] = false;
        if constexpr (kAxes == 3) place(2, z, p.D, H * n);
        f(strip);
      }
  }
  template <class F>
  PDECNN_INLINE static void each_vector(const Strip& strip, const F& f) {
    for (int64_t r = 0, i = strip.begin; r < strip.rows; ++r, i += strip.row)
      for (int64_t j = i; j < i + strip.length; j += L::count) f(j);
  }
  bool beyond_is_zero() const { return s.q_.boundary == kDirichlet; }
  // The numbers after (before) those at p along an axis.
  PDECNN_INLINE V after(const A* p, int axis, const Strip& strip) const {
    return axis == 0 && kTurned ? L::turn(L::load(p), next) : L::load(p + strip.plus[axis]);
  }
  PDECNN_INLINE V before(const A* p, int axis, const Strip& strip) const {
    return axis == 0 && kTurned ? L::turn(L::load(p), previous) : L::load(p + strip.minus[axis]);
  }
  PDECNN_INLINE Around<kAxes, V> around(const A* h, const Strip& strip) const {
    Around<kAxes, V> n{L::load(h), {}, {}};
    for (int j = 0; j < kAxes; ++j) n.plus[j] = after(h, j, strip), n.minus[j] = before(h, j, strip);
    return n;
  }

  void load(A* plane, const Map& m) const { s.storage_.load_rows(plane - e, n, m, g, s.layout_, 0, rows); }
  void store(const A* plane, const Map& m) const { s.storage_.store_rows(plane - e, n, m, g, s.layout_, 0, rows); }
  // Call into cache, some maps in each step, while the memory has nothing else to do: what the next group reads, and what
  // this one will write.
  template <class Call>
  void call_inputs(const Call& call, int64_t k) const {
    int64_t i = 0;
    each_input([&](const Map& m) { this->call(m, i++ % p.K == k % p.K, true); }, call);
  }
  template <class Call>
  void call_results(const Call& call, int64_t k) const {
    int64_t i = 0;
    each_result([&](const auto& to) { this->call(map_of(to), i++ % p.K == k % p.K, false); }, call);
  }
  static const Map& map_of(const Map& m) { return m; }
  static const Map& map_of(const Gradient& g) { return g.map; }
  void call(const Map& m, bool is_now, bool is_next) const {
    if (is_now && m.data != nullptr) s.storage_.call_rows(m, g, s.layout_, 0, rows, is_next);
  }
  void halos(A* plane, A parity) const {
    if (!kTurned) set_halos(plane - e, n, rows, s.layout_, s.q_.periodic(), parity);
  }

  // The weights, h^{-1} and h^0; the latter are `state(0)` and `state(1)`.
  void read(bool adjoint) const {
    const Map *velocity[3] = {&p.u, &p.v, &p.w}, *diffusivity[3] = {&p.D_x, &p.D_y, &p.D_z};
    load(state(1), p.h);
    halos(state(1), s.q_.state_parity());
    if (p.h_prev.data == nullptr) std::memcpy(state(0) - e, state(1) - e, size_t(rows * n + e) * sizeof(A));
    else load(state(0), p.h_prev), halos(state(0), s.q_.state_parity());
    for (int j = 0; j < kAxes; ++j) load(u[j], *velocity[j]), load(D[j], *diffusivity[j]);
    halos(u[0], s.q_.velocity_parity());
    if (p.f.data != nullptr) load(f, p.f);
    else std::memset(f, 0, size_t(rows * n) * sizeof(A));
    const Scheme<A> q = s.q_;
    each_strip(false, false, [&](const Strip& strip) {
      V sign_plus[kAxes], sign_minus[kAxes];
      for (int j = 0; j < kAxes; ++j) {
        sign_plus[j] = L::all(strip.last[j] ? q.velocity_parity() : A(1));
        sign_minus[j] = L::all(strip.first[j] ? q.velocity_parity() : A(1));
      }
      each_vector(strip, [&](int64_t i) {
        Along<V> along[kAxes];
        for (int j = 0; j < kAxes; ++j) {
          const A* at = u[j] + i;
          along[j] = {L::load(at), after(at, j, strip), before(at, j, strip), L::load(D[j] + i)};
          if (j > 0) along[j].u_plus = sign_plus[j] * along[j].u_plus, along[j].u_minus = sign_minus[j] * along[j].u_minus;
        }
        const Weights<kAxes, V> made = weights(q, along, L::load(f + i));
        L::store(w.a + i, made.a), L::store(w.b + i, made.b), L::store(w.s + i, made.s);
        if (adjoint) L::store(w.r + i, made.r);
        for (int j = 0; j < kAxes; ++j) L::store(w.plus[j] + i, made.plus[j]), L::store(w.minus[j] + i, made.minus[j]);
      });
    });
    fold();
    if (!adjoint) return;
    halos(w.plus[0], 0), halos(w.minus[0], 0);
  }

  // What is beyond a border that is not periodic is a multiple of what is inside: its weight moves to the centre.
  void fold() const {
    if (s.q_.periodic()) return;
    const A parity = s.q_.state_parity();
    const RowLayout& l = s.layout_;
    each_strip(false, true, [&](const Strip& strip) {
      auto edge = [&](A* weight, int64_t from, int64_t to) {
        for (int64_t i = strip.begin + from; i < strip.begin + to; ++i) w.b[i] += parity * weight[i], weight[i] = 0;
      };
      for (int64_t k = 0; k < l.segments; ++k) {
        const int64_t begin = l.pixel0(k) - e, end = begin + p.W * e;
        edge(w.minus[0], begin, begin + e), edge(w.plus[0], end - e, end);
        for (int j = 1; j < kAxes; ++j) {
          if (strip.first[j]) edge(w.minus[j], begin, end);
          if (strip.last[j]) edge(w.plus[j], begin, end);
        }
      }
    });
  }

  // One step of all planes, whose result may take the place of h_prev, or of the adjoint: there a neighbour passes on its own
  // weights, and there is no source.
  template <bool kAdjoint>
  PDECNN_NOINLINE void advance(const A* h_prev, const A* h, A* to) const {
    const Weights<kAxes, A*> w = this->w;
    each_strip(kAdjoint || beyond_is_zero(), false, [&](const Strip& strip) {
      each_vector(strip, [&](int64_t i) {
        Weights<kAxes, V> at{L::load(w.a + i), L::load(w.b + i), kAdjoint ? V{} : L::load(w.s + i), V{}, {}, {}};
        for (int j = 0; j < kAxes; ++j) {
          at.plus[j] = kAdjoint ? after(w.minus[j] + i, j, strip) : L::load(w.plus[j] + i);
          at.minus[j] = kAdjoint ? before(w.plus[j] + i, j, strip) : L::load(w.minus[j] + i);
        }
        L::store(to + i, step(at, L::load(h_prev + i), around(h + i, strip)));
      });
    });
    halos(to, kAdjoint ? A(0) : s.q_.state_parity());
  }

  void solve(const ForwardCall& call) const {
    const int64_t K = p.K;
    read(false);
    for (int64_t k = 1; k <= K; ++k) {
      call_inputs(call, k), call_results(call, k);
      advance<false>(state((k + 1) % 2), state(k % 2), state((k + 1) % 2));
    }
    store(state((K + 1) % 2), call.out);
  }

  void solve(const BackwardCall& call) const {
    const int64_t K = p.K;
    auto h = [&](int64_t k) { return state(k + 1); };
    auto G = [&](int64_t k) { return state(K + 2 + k); };
    read(true);
    for (int64_t k = 1; k <= K; ++k) {
      call_inputs(call, k);
      advance<false>(h(k - 2), h(k - 1), h(k));
    }
    load(G(K), call.grad_out);
    halos(G(K), 0);
    std::memset(G(K + 1), 0, size_t(rows * n) * sizeof(A));
    for (int64_t k = K - 1; k >= 0; --k) {
      call_results(call, k);
      advance<true>(G(k + 2), G(k + 1), G(k));
    }

    // Results take the place of the fields and of weights that are not read again.
    A *of_h = w.b, *of_h_prev = w.plus[1], *of_f = f, *P = w.plus[0];
    const bool one_start = p.h_prev.data == nullptr;
    add_up(G(0), h(K - 1), of_h, of_h_prev, P, one_start);
    const Gradient *velocity[3] = {&call.u, &call.v, &call.w}, *diffusivity[3] = {&call.D_x, &call.D_y, &call.D_z};
    write(call.h, of_h), write(call.h_prev, of_h_prev), write(call.f, of_f);
    for (int j = 0; j < kAxes; ++j) write(*diffusivity[j], D[j]);
    // The divergence reads mirrored velocities beyond the border, so its adjoint mirrors with the other sign.
    halos(P, -s.q_.velocity_parity());
    for (int axis = 0; axis < kAxes; ++axis) {
      if (velocity[axis]->map.data == nullptr && velocity[axis]->sums == nullptr) continue;
      A *sum = u[axis], *result = D[axis];
      each_strip(false, false, [&](const Strip& strip) {
        const V minus = L::all(strip.first[axis] ? -s.q_.velocity_parity() : A(1)),
                plus = L::all(strip.last[axis] ? -s.q_.velocity_parity() : A(1));
        each_vector(strip, [&](int64_t i) {
          const V P_minus = minus * before(P + i, axis, strip), P_plus = plus * after(P + i, axis, strip);
          L::store(result + i, gradient_of_velocity(s.q_.A_x[axis], L::load(w.r + i), L::load(sum + i), P_minus, P_plus));
        });
      });
      write(*velocity[axis], result);
    }
  }
  // The sums over the steps, and what needs no more than those of its own pixel; the others wait where the velocities were.
  PDECNN_NOINLINE void add_up(const A* G_0, const A* h_last, A* of_h, A* of_h_prev, A* P, bool one_start) const {
    const int64_t K = p.K, plane = s.plane_;
    const Scheme<A> q = s.q_;
    each_strip(beyond_is_zero(), false, [&](const Strip& strip) {
      each_vector(strip, [&](int64_t i) {
        Sums<kAxes, V> sums{};
        const A *g = G_0 + K * plane + i, *h = h_last + i;
        V h_next = L::load(h + plane);
        for (int64_t k = K - 1; k >= 0; --k, g -= plane, h -= plane) {
          const Around<kAxes, V> here = around(h, strip);
          sums.add(L::load(g), here, L::load(h - plane), h_next);
          h_next = here.h;
        }
        const V r = L::load(w.r + i), older = L::load(w.a + i) * L::load(G_0 + plane + i), newer = L::load(G_0 + i);
        L::store(of_h_prev + i, older);
        L::store(of_h + i, one_start ? newer + older : newer);
        L::store(f + i, gradient_of_term(q.dt2, r, sums.G));
        L::store(P + i, r * sums.Gh);
        for (int j = 0; j < kAxes; ++j) {
          L::store(u[j] + i, sums.A_x[j]);
          L::store(D[j] + i, gradient_of_term(q.B2_x[j], r, sums.B_x[j]));
        }
      });
    });
  }
  // A gradient: a map, or the sum over each plane, or neither.
  void write(const Gradient& to, const A* plane) const {
    if (to.map.data != nullptr) store(plane, to.map);
    if (to.sums == nullptr) return;
    const RowLayout& l = s.layout_;
    for (int64_t k = 0; k < l.segments; ++k)
      for (int64_t lane = 0; lane < e; ++lane) {
        double total = 0;
        const A* first = plane + l.pixel0(k) - e + lane;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t x = 0; x < p.W; ++x) total += double(first[r * n + x * e]);
        static_cast<double*>(to.sums)[g.n[k] * p.C + g.c[k] + lane] = total;
      }
  }
};

template <class A>
template <bool kAdjoint, class Call>
void PlaneSolver<A>::solve_as(const Call& call, const Group& g, A* scratch) const {
  auto work = [&](auto axes, auto turned) {
    Work<decltype(axes)::value, decltype(turned)::value>(*this, call.problem, g, scratch, kAdjoint).solve(call);
  };
  auto by_axes = [&](auto turned) { axes_ == 2 ? work(Constant<int, 2>{}, turned) : work(Constant<int, 3>{}, turned); };
  if constexpr (L::kTurns)
    if (is_turned_) return by_axes(Constant<bool, true>{});
  by_axes(Constant<bool, false>{});
}
template <class A>
void PlaneSolver<A>::solve(const ForwardCall& call, const Group& g, A* scratch) const {
  solve_as<false>(call, g, scratch);
}
template <class A>
void PlaneSolver<A>::solve(const BackwardCall& call, const Group& g, A* scratch) const {
  solve_as<true>(call, g, scratch);
}

template class PlaneSolver<float>;
template class PlaneSolver<double>;

}  // namespace PDECNN_NS
