// A whole Global layer in inference: coefficient convolutions, activation, K steps, output affine and activation.
//
// Nothing in it mixes channels, so a plane is read once, all is done in cache, and it is written once. Single precision,
// columns side by side in memory; other layers are computed operator by operator.
#include "../advection_diffusion/channels_last.h"
#include "vector_row.h"

namespace PDECNN_NS {

template <Activation kAct>
PDECNN_INLINE float activate(float x) {
  x = x > 0 || x != x ? x : 0.0f;  // NaN goes through, as in torch
  return kAct == kReLU6 && x > 6.0f ? 6.0f : x;
}

// One row of one coefficient: the sum over the taps of the zero-padded plane, `padded` pointing at tap (0, 0).
template <int kSide, Activation kAct>
void coefficient_row(const float* PDECNN_RESTRICT padded, int64_t stride, const float* PDECNN_RESTRICT w, float bias,
                     float sign, float* PDECNN_RESTRICT to, int64_t W) {
  float taps[kSide * kSide];
  for (int i = 0; i < kSide * kSide; ++i) taps[i] = w[i];
  PDECNN_VECTORIZE
  for (int64_t x = 0; x < W; ++x) {
    float sum = bias;
    for (int i = 0; i < kSide; ++i)
      for (int j = 0; j < kSide; ++j) sum += taps[i * kSide + j] * padded[i * stride + x + j];
    to[x] = sign * activate<kAct>(sum);
  }
}

#if defined(__GNUC__)
// 3x3 taps of two coefficients at once over a plane of W columns, with the three rows around in registers.
template <int W, Activation kAct>
void coefficient_planes(const float* h, int64_t sy, int64_t H, const float* const w[2], const float bias[2], const float sign,
                        float* const to[2]) {
  using R = VectorRow<float, W>;
  struct Shifts {
    R left, centre, right;
    explicit Shifts(const R& r) : left(r.previous_or_zero()), centre(r), right(r.next_or_zero()) {}
  };
  Shifts above(R::all(0)), here(R::read(h));
  for (int64_t y = 0; y < H; ++y) {
    const Shifts below(y + 1 < H ? R::read(h + (y + 1) * sy) : R::all(0));
    for (int m = 0; m < 2; ++m) {
      const float* t = w[m];
      R sum = t[0] * above.left + R::all(bias[m]) + t[1] * above.centre + t[2] * above.right + t[3] * here.left +
              t[4] * here.centre + t[5] * here.right + t[6] * below.left + t[7] * below.centre + t[8] * below.right;
      for (auto& v : sum.v) {
        const typename R::V zero{}, six = zero + 6.0f;
        v = (v > zero) | (v != v) ? v : zero;
        if (kAct == kReLU6) v = v > six ? six : v;
      }
      static_assert(R::kStride == W, "every lane is a column");
      (sign * sum).store(to[m] + y * W);
    }
    above = here, here = below;
  }
}
#endif

class Layer {
 public:
  explicit Layer(const LayerCall& call)
      : call_(call), pad_(call.side / 2), padded_stride_(round_up(call.W + 2 * pad_ + 16, 16)),
        plane_(round_up(call.H * call.W + 16, 16)), padded_((call.H + 2 * pad_) * padded_stride_) {}

  // Numbers of scratch for one thread: the padded plane and the coefficient maps.
  int64_t numbers() const { return padded_ + call_.maps * plane_; }

  // The coefficients of plane i into scratch, as maps that the solver reads.
  ForwardCall prepare(const PlaneIndex& i, float* scratch) const {
    const LayerCall& c = call_;
    const float* h = static_cast<const float*>(c.h.data) + i.n * c.h.sn + i.c * c.h.sc;
    float* maps = scratch + padded_;
    if (!coefficients_in_registers(h, i.c, maps)) {
      for (int64_t y = 0; y < c.H; ++y) read_numbers(scratch + (y + pad_) * padded_stride_ + pad_, h + y * c.h.sy, c.W);
      for (int64_t m = 0; m < c.maps; ++m) coefficient(scratch, m, i.c, maps + m * plane_);
    }
    auto at = [&](const Map& m) {
      return Map{static_cast<float*>(m.data) + i.n * m.sn + i.c * m.sc, 0, 0, m.sy, m.sx};
    };
    auto made = [&](int64_t m) { return Map{maps + m * plane_, 0, 0, c.W, 1}; };
    const Map h_map = at(c.h), x_map = at(c.x), absent{nullptr, 0, 0, 0, 0};
    constants_[0] = float(c.D_x), constants_[1] = float(c.D_y);
    const Map D_x = c.maps == 4 ? made(2) : Map{constants_, 0, 0, 0, 0};
    const Map D_y = c.maps == 4 ? made(3) : Map{constants_ + 1, 0, 0, 0, 0};
    return {{kFloat32, 1, 1, c.H, c.W, c.K, c.boundary, 0, c.dt, c.dx, c.dy, h_map, c.previous_is_input ? x_map : absent, made(0),
             made(1), D_x, D_y, c.has_source ? x_map : absent},
            at(c.out)};
  }

  // The output norm and activation of plane i, while it is in cache.
  void finish(const PlaneIndex& i) const {
    float* out = static_cast<float*>(call_.out.data) + i.n * call_.out.sn + i.c * call_.out.sc;
    const float scale = call_.scale[i.c], shift = call_.shift[i.c];
    for (int64_t y = 0; y < call_.H; ++y) {
      float* PDECNN_RESTRICT row = out + y * call_.out.sy;
      if (call_.output_act == kReLU6) affine<kReLU6>(row, scale, shift);
      else affine<kReLU>(row, scale, shift);
    }
  }

 private:
  template <Activation kAct>
  void affine(float* PDECNN_RESTRICT row, float scale, float shift) const {
    const int64_t W = call_.W;
    PDECNN_VECTORIZE
    for (int64_t x = 0; x < W; ++x) row[x] = activate<kAct>(scale * row[x] + shift);
  }
  bool coefficients_in_registers(const float* h, int64_t c, float* maps) const {
#if defined(__GNUC__)
    if (call_.side != 3) return false;
    auto planes = [&](auto run) {
      for (int64_t m = 0; m < call_.maps; m += 2) {
        const float* w[2] = {call_.weight + (m * call_.C + c) * 9, call_.weight + ((m + 1) * call_.C + c) * 9};
        const float bias[2] = {call_.bias[m * call_.C + c], call_.bias[(m + 1) * call_.C + c]};
        float* to[2] = {maps + m * plane_, maps + (m + 1) * plane_};
        run(h, call_.h.sy, call_.H, w, bias, m < 2 ? float(call_.flow_sign) : 1.0f, to);
      }
      return true;
    };
#define PDECNN_WIDTH(width)                                           \
  if (call_.W == width)                                               \
    return planes(call_.coefficient_act == kReLU6 ? coefficient_planes<width, kReLU6> : coefficient_planes<width, kReLU>);
    PDECNN_WIDTH(8) PDECNN_WIDTH(16) PDECNN_WIDTH(32)
#undef PDECNN_WIDTH
#endif
    return false;
  }
  void coefficient(const float* padded, int64_t m, int64_t c, float* to) const {
    const int64_t taps = call_.side * call_.side;
    const float* w = call_.weight + (m * call_.C + c) * taps;
    const float bias = call_.bias[m * call_.C + c], sign = m < 2 ? float(call_.flow_sign) : 1.0f;
    auto* row = call_.side == 3   ? (call_.coefficient_act == kReLU6 ? coefficient_row<3, kReLU6> : coefficient_row<3, kReLU>)
                : call_.side == 5 ? (call_.coefficient_act == kReLU6 ? coefficient_row<5, kReLU6> : coefficient_row<5, kReLU>)
                                  : (call_.coefficient_act == kReLU6 ? coefficient_row<1, kReLU6> : coefficient_row<1, kReLU>);
    for (int64_t y = 0; y < call_.H; ++y)
      row(padded + y * padded_stride_, padded_stride_, w, bias, sign, to + y * call_.W, call_.W);
  }

  const LayerCall& call_;
  int64_t pad_, padded_stride_, plane_, padded_;
  mutable float constants_[2];
};

// Whether two maps are one; the address alone does not tell, for one may be the transpose of the other.
inline bool same(const Map& a, const Map& b) {
  return a.data == b.data && a.sn == b.sn && a.sc == b.sc && a.sy == b.sy && a.sx == b.sx;
}

template <class Solve>
Status run_layer(const LayerCall& call, int64_t numbers, const Solve& solve) {
  const Problem size{kFloat32, call.N, call.C, call.H, call.W, call.K + 8, 0, 1, 0, 0, 0, {}, {}, {}, {}, {}, {}, {}};
  const int64_t own = Layer(call).numbers();
  auto plane = [&](const LayerCall& c, const PlaneIndex& i, float* scratch) {
    const Layer layer(c);  // holds this thread's constants
    solve(layer.prepare(i, scratch), scratch + own);
    layer.finish(i);
  };
  if (has_rows(call.h) && has_rows(call.x) && has_rows(call.out))
    return for_each_plane(size, own + numbers, [&](const PlaneIndex& i, float* to) { plane(call, i, to); });
  return for_each_block<float>(
      size, 3, own + numbers, [&](PlanarBlock<float>& block, int64_t channels, float* to) {
        LayerCall part = call;
        part.h = block.read(call.h);
        part.x = same(call.x, call.h) ? part.h : block.read(call.x);
        part.out = block.write(call.out);
        const int64_t first = block.first_channel(), taps = call.side * call.side;
        part.weight += first * taps, part.bias += first, part.scale += first, part.shift += first;
        for (int64_t c = 0; c < channels; ++c) plane(part, PlaneIndex{0, c, 0, 0}, to);
        block.take(part.out, call.out);
      });
}

Status run_layer(const LayerCall& call) {
  const Scheme<float> q(call.boundary, call.dt, call.dx, call.dy);
  const PlaneSolver* solver = q.periodic() ? plane_solver(call.W) : nullptr;
  if (solver != nullptr && solver->forward_numbers(call.H) * int64_t(sizeof(float)) <= kForwardBytes)
    return run_layer(call, solver->forward_numbers(call.H),
                     [&](const ForwardCall& plane, float* to) { solver->forward(plane, q, PlaneIndex{0, 0, 0, 0}, to); });
  int32_t failed = 0;
  const Status status = run_layer(call, 0, [&](const ForwardCall& plane, float*) {
    if (advection_diffusion(plane) != kOk) failed = 1;
  });
  return failed ? kOutOfMemory : status;
}

}  // namespace PDECNN_NS

PDECNN_EXPORT int32_t PDECNN_SYMBOL(pdecnn_global_layer)(const void* call) {
  using namespace PDECNN_NS;
  const auto& c = *static_cast<const LayerCall*>(call);
  if (c.side != 1 && c.side != 3 && c.side != 5) return kBadArgument;
  if (c.maps != 2 && c.maps != 4) return kBadArgument;
  const auto known = [](int64_t act) { return act == kReLU || act == kReLU6; };
  if (!known(c.coefficient_act) || !known(c.output_act) || c.residual) return kBadArgument;
  return run_layer(c);
}
