// How the planes of a batch are run over, by threads, and how what they sum is added up in one order.
#pragma once

#include "transpose.h"

namespace PDECNN_NS {
namespace depthwise_norm {

// How many planes are solved together: small ones share what a group costs, and the lanes of a vector.
inline int64_t together(const Problem& p) {
  constexpr int64_t kNumbers = 512;
  return max<int64_t>(1, min(min(p.C, kBlock), kNumbers / max<int64_t>(1, p.plane())));
}

// A task is a channel of some samples, or some small ones, or a block of those that lie side by side. The cut depends on the
// shape alone.
struct Tasks {
  int64_t channels, blocks, samples, chunks;

  explicit Tasks(const Problem& p) : channels(p.interleaved ? min(kBlock, p.C) : together(p)) {
    constexpr int64_t kNumbers = 16384;
    blocks = (p.C + channels - 1) / channels;
    samples = max<int64_t>(1, min(p.N, kNumbers / (p.plane() * channels)));
    chunks = (p.N + samples - 1) / samples;
  }
  int64_t count() const { return blocks * chunks; }
};

// Some blocks of channels, all by default.
struct Blocks {
  int64_t first = 0, many = INT64_MAX;
};

// Maps that are read and written; some may be null.
struct Maps {
  const float* in[5];
  float* out[4];
};

// One plane of them, of channel c.
struct Plane : Maps {
  int64_t c, n;
  int64_t place;  // of the sums that its task keeps for its channel
  // How far the same plane of the next sample is, to ask for it while this one is worked on: no prefetcher of the
  // processor foresees it, as each plane lies in other pages. 0: it is the last, or planes are transposed first.
  int64_t next;
};

// Some planes of a sample, of channels one after another, at a distance of `stride`.
struct Planes {
  Plane first;
  int64_t many, stride;

  Plane operator[](int64_t i) const {
    Plane plane = first;
    plane.c += i, plane.place += i;
    for (auto& map : plane.in) map += map == nullptr ? 0 : i * stride;
    for (auto& map : plane.out) map += map == nullptr ? 0 : i * stride;
    return plane;
  }
};

// Calls f(planes, scratch) for all planes of some blocks, at most `together` at once, with `numbers` of scratch, and at least
// `grain` tasks on a thread. Where channels lie side by side, those of a task are transposed into planes before, and back
// after.
template <class F>
Status run_groups(const Problem& p, int64_t together, const Maps& maps, int64_t numbers, const F& f, int64_t grain = 1,
                  const Blocks& part = {}) {
  const bool is_covered = (p.side == 1 || p.side == 3 || p.side == 5) && (p.maps == 2 || p.maps == 4 || p.side * p.maps == 1);
  if (!is_covered) return kBadArgument;
  const Tasks tasks(p);
  const int64_t stride = p.interleaved ? p.plane() + 16 : p.plane(), slot = round_up(tasks.channels * stride, 16);
  int64_t slots = 0;
  for (const float* map : maps.in) slots += map != nullptr;
  for (const float* map : maps.out) slots += map != nullptr;
  const size_t bytes = size_t(round_up(numbers, 16) + (p.interleaved ? slots * slot : 0)) * sizeof(float);
  const int64_t first_task = part.first * tasks.chunks, many = min(part.many, tasks.blocks - part.first) * tasks.chunks;
  return parallel_for(many, grain, bytes, [&](int64_t begin, int64_t end, char* memory) {
    float* scratch = reinterpret_cast<float*>(memory);
    for (begin += first_task, end += first_task; begin < end; ++begin) {
      const int64_t c = begin / tasks.chunks * tasks.channels, channels = min(tasks.channels, p.C - c);
      const int64_t first = begin % tasks.chunks * tasks.samples, last = min(p.N, first + tasks.samples);
      for (int64_t n = first; n < last; ++n) {
        Plane plane{{}, c, n, begin * tasks.channels, p.interleaved || n + 1 == p.N ? 0 : p.C * p.plane()};
        const int64_t at = p.interleaved ? n * p.plane() * p.C + c : (n * p.C + c) * p.plane();
        float* next = scratch + round_up(numbers, 16);
        auto place = [&](auto* map) -> decltype(map) {
          if (map == nullptr || !p.interleaved) return map == nullptr ? nullptr : map + at;
          return (next += slot) - slot;
        };
        for (int i = 0; i < 5; ++i) {
          plane.in[i] = place(maps.in[i]);
          if (p.interleaved && maps.in[i] != nullptr) transpose(maps.in[i] + at, p.C, next - slot, stride, p.plane(), channels);
        }
        for (int i = 0; i < 4; ++i) plane.out[i] = place(maps.out[i]);
        const Planes all{plane, channels, stride};
        for (int64_t i = 0; i < channels; i += together) f(Planes{all[i], min(together, channels - i), stride}, scratch);
        for (int i = 0; i < 4; ++i)
          if (p.interleaved && maps.out[i] != nullptr)
            transpose(plane.out[i], stride, maps.out[i] + at, p.C, channels, p.plane());
      }
    }
  });
}
// The same plane by plane: f(plane, scratch).
template <class F>
Status run(const Problem& p, const Maps& maps, int64_t numbers, const F& f, int64_t grain = 1, const Blocks& part = {}) {
  return run_groups(p, 1, maps, numbers, [&](const Planes& planes, float* scratch) { f(planes.first, scratch); }, grain, part);
}

// Sums over the batch: every task keeps `many` for each of its channels, and they are added up in one order.
class BatchSums {
 public:
  BatchSums(const Problem& p, int64_t many)
      : tasks_(p), many_(many), arena_(size_t(tasks_.count() * tasks_.channels * many) * sizeof(double)) {}
  bool ok() const { return arena_.ok(); }
  double* of(const Plane& plane) const { return all() + plane.place * many_; }
  double total(int64_t c, int64_t which) const {
    double sum = 0;
    for (int64_t j = 0; j < tasks_.chunks; ++j) {
      const int64_t task = c / tasks_.channels * tasks_.chunks + j;
      sum += all()[(task * tasks_.channels + c % tasks_.channels) * many_ + which];
    }
    return sum;
  }

 private:
  double* all() const { return reinterpret_cast<double*>(arena_.data()); }
  const Tasks tasks_;
  const int64_t many_;
  Arena arena_;
};

}  // namespace depthwise_norm
}  // namespace PDECNN_NS
