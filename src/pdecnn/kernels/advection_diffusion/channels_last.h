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

  int64_t first_channel() const { return c_; }

  // A map that the solver can read: brought over, or as it is where that will do.
  Map read(const Map& m) {
    const Map to = write(m);
    if (m.data == nullptr || stays(m)) return to;
    float* planes = static_cast<float*>(to.data);
    if (m.sc == 1)
      rows(m, [&](int64_t y, int64_t many) { transpose(at(m) + y * m.sy, m.sx, planes + y * W_, plane_, many, channels_); });
    else
      for (int64_t c = 0; c < channels_; ++c)
        for (int64_t y = 0; y < H_; ++y) read_strided(planes + c * plane_ + y * W_, at(m) + c * m.sc + y * m.sy, m.sx, W_);
    return to;
  }
  // Room for a result, and taking it back.
  Map write(const Map& m) {
    if (m.data == nullptr) return m;
    if (stays(m)) return {at(m), 0, m.sc, m.sy, m.sx};
    const Map to{next_, 0, plane_, W_, 1};
    next_ += channels_ * plane_;
    return to;
  }
  void take(const Map& from, const Map& m) const {
    if (m.data == nullptr || stays(m)) return;
    const float* planes = static_cast<const float*>(from.data);
    if (m.sc == 1)
      rows(m, [&](int64_t y, int64_t many) { transpose(planes + y * W_, plane_, at(m) + y * m.sy, m.sx, channels_, many); });
    else
      for (int64_t c = 0; c < channels_; ++c)
        for (int64_t y = 0; y < H_; ++y) write_strided(at(m) + c * m.sc + y * m.sy, m.sx, planes + c * plane_ + y * W_, W_);
  }
  // The block's part of numbers that there is one of for each plane.
  Gradient write(const Gradient& g, int64_t C) {
    return {write(g.map), g.sums == nullptr ? nullptr : static_cast<double*>(g.sums) + n_ * C + c_};
  }

 private:
  static bool stays(const Map& m) { return is_float<T> && has_rows(m); }
  T* at(const Map& m) const { return static_cast<T*>(m.data) + n_ * m.sn + c_ * m.sc; }
  // Calls f(y, pixels) for rows, or once for all of them where they follow each other.
  template <class F>
  void rows(const Map& m, const F& f) const {
    if (m.sy == W_ * m.sx) return f(0, H_ * W_);
    for (int64_t y = 0; y < H_; ++y) f(y, W_);
  }
  int64_t n_, c_, channels_, H_, W_, plane_;
  float* next_;
};

// Runs `solve(block, channels, scratch)` over blocks of 16 channels, or of 8 where there would be too few of them for the
// threads of a usual machine (by the shape alone), or of 1 where channels do not lie side by side; `numbers` of scratch
// follow the block's planes.
template <class T, class Solve>
Status for_each_block(const Problem& p, int64_t maps, int64_t numbers, const Solve& solve) {
  const int64_t most = !p.interleaved ? 1 : p.N * p.C < 8 * kBlock ? kHalfBlock : kBlock, blocks = (p.C + most - 1) / most;
  const int64_t planes = round_up(maps * most * PlanarBlock<T>::plane(p.H, p.W), 16);
  const size_t bytes = size_t(planes + numbers) * sizeof(float);
  return parallel_for(p.N * blocks, grain(most * p.H * p.W * p.K), bytes, [&](int64_t begin, int64_t end, char* memory) {
    float* scratch = reinterpret_cast<float*>(memory);
    for (; begin < end; ++begin) {
      const int64_t c = begin % blocks * most, channels = min(most, p.C - c);
      PlanarBlock<T> block(begin / blocks, c, channels, p.H, p.W, scratch);
      solve(block, channels, scratch + planes);
    }
  });
}

}  // namespace PDECNN_NS
