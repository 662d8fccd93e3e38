// Maps in channels_last: 16 or 8 channels of a sample are turned into planes in cache, solved there, and turned back.
#pragma once

#include "resident.h"
#include "transpose.h"

#if defined(__GNUC__)
namespace PDECNN_NS {

// Some channels of one sample, as planes in scratch memory.
template <class T>
class PlanarBlock {
 public:
  PlanarBlock(int64_t n, int64_t c, int64_t channels, int64_t H, int64_t W, T* scratch)
      : n_(n), c_(c), channels_(channels), H_(H), W_(W), plane_(plane(H, W)), next_(scratch) {}
  static int64_t plane(int64_t H, int64_t W) { return round_up(H * W, 16) + 16; }
  static int64_t numbers(int64_t maps, int64_t channels, int64_t H, int64_t W) { return maps * channels * plane(H, W); }

  int64_t first_channel() const { return c_; }

  // A map that the solver of planes can read: brought over, or as it is where that will do.
  Map read(const Map& m) {
    if (m.data == nullptr) return m;
    if (has_rows(m)) return Map{at(m), 0, m.sc, m.sy, m.sx};
    const Map to = write(m);
    for (int64_t y = 0; y < (dense(m) ? 1 : H_); ++y)
      transpose(at(m) + y * m.sy, m.sx, static_cast<T*>(to.data) + y * W_, plane_, dense(m) ? H_ * W_ : W_, channels_);
    return to;
  }
  // Room for a result, and taking it back.
  Map write(const Map& m) {
    if (m.data == nullptr || has_rows(m)) return m.data == nullptr ? m : Map{at(m), 0, m.sc, m.sy, m.sx};
    const Map to{next_, 0, plane_, W_, 1};
    next_ += channels_ * plane_;
    return to;
  }
  void take(const Map& from, const Map& m) const {
    if (m.data == nullptr || has_rows(m)) return;
    for (int64_t y = 0; y < (dense(m) ? 1 : H_); ++y)
      transpose(static_cast<const T*>(from.data) + y * W_, plane_, at(m) + y * m.sy, m.sx, channels_, dense(m) ? H_ * W_ : W_);
  }
  // The block's part of numbers that there is one of for each plane.
  Gradient write(const Gradient& g, int64_t C) {
    return {write(g.map), g.sums == nullptr ? nullptr : static_cast<double*>(g.sums) + n_ * C + c_};
  }

 private:
  T* at(const Map& m) const { return static_cast<T*>(m.data) + n_ * m.sn + c_ * m.sc; }
  bool dense(const Map& m) const { return m.sy == W_ * m.sx; }
  int64_t n_, c_, channels_, H_, W_, plane_;
  T* next_;
};

// Runs `solve(block, channels, scratch)` over blocks of 16 channels, or of 8 where there would be too few of them for the
// threads of a usual machine (by the shape alone); `bytes` of scratch follow the block's planes.
template <class T, class Solve>
Status for_each_block(const Problem& p, int64_t maps, int64_t bytes, const Solve& solve) {
  const int64_t most = p.N * p.C < 8 * kBlock ? kHalfBlock : kBlock, blocks = (p.C + most - 1) / most;
  const int64_t planes = round_up(PlanarBlock<T>::numbers(maps, most, p.H, p.W) * sizeof(T), 64);
  int32_t failed = 0;
  const int64_t grain = max<int64_t>(1, 32768 / (most * p.H * p.W * p.K));
  const Status status = parallel_for(p.N * blocks, grain, [&](int64_t begin, int64_t end) {
    const Arena arena(size_t(planes + bytes));
    if (!arena.ok()) {
      failed = 1;
      return;
    }
    for (; begin < end; ++begin) {
      const int64_t c = begin % blocks * most, channels = min(most, p.C - c);
      PlanarBlock<T> block(begin / blocks, c, channels, p.H, p.W, reinterpret_cast<T*>(arena.data()));
      solve(block, channels, arena.data() + planes);
    }
  });
  return failed ? kOutOfMemory : status;
}

template <class T>
Problem planar(const Problem& p, PlanarBlock<T>& block, int64_t channels) {
  Problem q = p;
  q.N = 1, q.C = channels;
  q.h = block.read(p.h), q.h_prev = block.read(p.h_prev), q.u = block.read(p.u), q.v = block.read(p.v);
  q.D_x = block.read(p.D_x), q.D_y = block.read(p.D_y), q.f = block.read(p.f);
  return q;
}

inline bool has_rows_or_channels(const Map& m) { return has_rows(m) || m.sc == 1; }
inline bool has_rows_or_channels(const Problem& p) {
  return p.boundary == kPeriodic && has_rows_or_channels(p.h) && has_rows_or_channels(p.h_prev) && has_rows_or_channels(p.u) &&
         has_rows_or_channels(p.v) && has_rows_or_channels(p.D_x) && has_rows_or_channels(p.D_y) && has_rows_or_channels(p.f);
}

template <class T>
bool interleaved_forward(const ForwardCall& call, Status& status) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  if (!p.interleaved || !has_rows_or_channels(p) || !has_rows_or_channels(call.out)) return false;
  const Scheme<A> q(kPeriodic, p.dt, p.dx, p.dy);
#define PDECNN_WIDTH(width)                                                                            \
  if (p.W == width) {                                                                                  \
    const int64_t bytes = 9 * p.H * VectorRow<A, width>::kStride * int64_t(sizeof(A));                 \
    if (bytes > kForwardBytes) return false;                                                           \
    status = for_each_block<T>(p, 8, bytes, [&](PlanarBlock<T>& block, int64_t channels, char* to) {   \
      const ForwardCall part{planar(p, block, channels), block.write(call.out)};                       \
      for (int64_t c = 0; c < channels; ++c)                                                           \
        solve_plane<T, width>(part, q, PlaneIndex{0, c, 0, c + 1 < channels}, reinterpret_cast<A*>(to)); \
      block.take(part.out, call.out);                                                                  \
    });                                                                                                \
    return true;                                                                                       \
  }
  PDECNN_FOR_WIDTHS(PDECNN_WIDTH)
#undef PDECNN_WIDTH
  return false;
}

template <class T>
bool interleaved_backward(const BackwardCall& call, Status& status) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  const Gradient* gradients[] = {&call.h, &call.h_prev, &call.u, &call.v, &call.D_x, &call.D_y, &call.f};
  for (const Gradient* g : gradients)
    if (!has_rows_or_channels(g->map)) return false;
  if (!p.interleaved || !has_rows_or_channels(p) || !has_rows_or_channels(call.grad_out)) return false;
  const Scheme<A> q(kPeriodic, p.dt, p.dx, p.dy);
#define PDECNN_WIDTH(width)                                                                                              \
  if (p.W == width) {                                                                                                    \
    const int64_t bytes = backward_planes(p.K) * p.H * VectorRow<A, width>::kStride * int64_t(sizeof(A));        \
    if (bytes > kBackwardBytes) return false;                                                                            \
    status = for_each_block<T>(p, 15, bytes, [&](PlanarBlock<T>& block, int64_t channels, char* to) {                    \
      const BackwardCall part{planar(p, block, channels), block.read(call.grad_out), block.write(call.h, p.C),           \
                              block.write(call.h_prev, p.C), block.write(call.u, p.C), block.write(call.v, p.C),         \
                              block.write(call.D_x, p.C), block.write(call.D_y, p.C), block.write(call.f, p.C)};         \
      for (int64_t c = 0; c < channels; ++c)                                                                             \
        solve_plane_back<T, width>(part, q, PlaneIndex{0, c, 0, c + 1 < channels}, reinterpret_cast<A*>(to));            \
      const Gradient* made[] = {&part.h, &part.h_prev, &part.u, &part.v, &part.D_x, &part.D_y, &part.f};                 \
      for (int i = 0; i < 7; ++i) block.take(made[i]->map, gradients[i]->map);                                           \
    });                                                                                                                  \
    return true;                                                                                                         \
  }
  PDECNN_FOR_WIDTHS(PDECNN_WIDTH)
#undef PDECNN_WIDTH
  return false;
}

}  // namespace PDECNN_NS
#else
namespace PDECNN_NS {
template <class T>
bool interleaved_forward(const ForwardCall&, Status&) { return false; }
template <class T>
bool interleaved_backward(const BackwardCall&, Status&) { return false; }
}  // namespace PDECNN_NS
#endif
