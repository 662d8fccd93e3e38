// Maps that the solver of planes cannot read where they are, in channels_last or in bfloat16: some channels of a sample are
// brought into planes of floats in cache, solved there, and brought back.
#pragma once

#include "resident.h"
#include "transpose.h"

namespace PDECNN_NS {

// Some channels of one sample, as planes of floats in scratch memory. T is what maps are stored in.
template <class T>
class PlanarBlock {
 public:
  PlanarBlock(int64_t n, int64_t c, int64_t channels, int64_t H, int64_t W, float* scratch)
      : n_(n), c_(c), channels_(channels), H_(H), W_(W), plane_(plane(H, W)), next_(scratch) {}
  static int64_t plane(int64_t H, int64_t W) { return round_up(H * W, 16) + 16; }

  // A map that the solver can read: brought over, or as it is where that will do.
  Map read(const Map& m) {
    const Map to = write(m);
    bring(to, m, [&](float* planes, T* memory, int64_t many) {
      if (m.sc == 1) transpose(memory, m.sx, planes, plane_, many, channels_);
      else
        for (int64_t c = 0; c < channels_; ++c) copy_strided(planes + c * plane_, 1, memory + c * m.sc, m.sx, many);
    });
    return to;
  }
  // Room for a result, and taking it back; of C numbers for each sample, the block's part.
  Map write(const Map& m, int64_t = 0) {
    if (m.data == nullptr) return m;
    if (stays(m)) return {at(m), 0, m.sc, m.sy, m.sx};
    const Map to{next_, 0, plane_, W_, 1};
    next_ += channels_ * plane_;
    return to;
  }
  Gradient write(const Gradient& g, int64_t C) {
    return {write(g.map), g.sums == nullptr ? nullptr : static_cast<double*>(g.sums) + n_ * C + c_};
  }
  void take(const Map& from, const Map& m) const {
    bring(from, m, [&](float* planes, T* memory, int64_t many) {
      if (m.sc == 1) transpose(planes, plane_, memory, m.sx, channels_, many);
      else
        for (int64_t c = 0; c < channels_; ++c) copy_strided(memory + c * m.sc, m.sx, planes + c * plane_, 1, many);
    });
  }
  void take(const Gradient& from, const Gradient& g) const { take(from.map, g.map); }

 private:
  static bool stays(const Map& m) { return is_float<T> && has_rows(m); }
  T* at(const Map& m) const { return static_cast<T*>(m.data) + n_ * m.sn + c_ * m.sc; }
  // Calls f(planes, memory, pixels) for rows, or once for all of them where they follow each other.
  template <class F>
  void bring(const Map& planes, const Map& m, const F& f) const {
    if (m.data == nullptr || stays(m)) return;
    const int64_t rows = m.sy == W_ * m.sx ? H_ : 1;
    for (int64_t y = 0; y < H_; y += rows) f(static_cast<float*>(planes.data) + y * W_, at(m) + y * m.sy, rows * W_);
  }
  int64_t n_, c_, channels_, H_, W_, plane_;
  float* next_;
};

// Solves blocks of 16 channels, or of 8 where there would be too few of them for the threads of a usual machine; of fewer
// where channels do not lie side by side and planes are not small. All this by the shape alone.
template <class T, class Call>
Status solve_blocks(const Call& call, const PlaneSolver& solver) {
  const Problem& p = call.problem;
  const Scheme<float> q(p);
  const int64_t largest = p.N * p.C < 8 * kBlock ? kHalfBlock : kBlock;
  const int64_t most = p.interleaved ? largest : max<int64_t>(1, min(largest, 2048 / (p.H * p.W)));
  const int64_t blocks = (p.C + most - 1) / most, maps = is_backward<Call> ? 15 : 8;
  const int64_t planes = round_up(maps * most * PlanarBlock<T>::plane(p.H, p.W), 16);
  const size_t bytes = size_t(planes + solver.numbers<Call>(p.H, p.K)) * sizeof(float);
  return parallel_for(p.N * blocks, grain(most * p.H * p.W * p.K), bytes, [&](int64_t begin, int64_t end, char* memory) {
    float* scratch = reinterpret_cast<float*>(memory);
    for (; begin < end; ++begin) {
      const int64_t c = begin % blocks * most, channels = min(most, p.C - c);
      PlanarBlock<T> block(begin / blocks, c, channels, p.H, p.W, scratch);
      Call part = call;
      part.problem.N = 1, part.problem.C = channels;
      each_input([&](Map& m) { m = block.read(m); }, part);
      each_result([&](auto& made, const auto& wanted) { made = block.write(wanted, p.C); }, part, call);
      for (int64_t i = 0; i < channels; ++i) solver.solve(part, q, PlaneIndex{0, i, 0, i + 1 < channels}, scratch + planes);
      each_result([&](const auto& made, const auto& wanted) { block.take(made, wanted); }, part, call);
    }
  });
}

}  // namespace PDECNN_NS
