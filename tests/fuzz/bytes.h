// What bytes are turned into: numbers of a range, hostile values, and memory of exactly the size that a call may touch.
#pragma once

#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

#include "abi.h"

using namespace PDECNN_NS;

#define REQUIRE(good, ...)                                                                            \
  do {                                                                                                \
    if (!(good)) std::fprintf(stderr, "wrong: " __VA_ARGS__), std::fputc('\n', stderr), std::abort(); \
  } while (0)

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  uint8_t byte() { return at_ < end_ ? *at_++ : 0; }  // zeros when they are used up
  bool coin() { return byte() & 1; }
  int64_t between(int64_t least, int64_t most) { return least + byte() % (most - least + 1); }
  template <class T, size_t n>
  T one_of(const T (&values)[n]) {
    return values[byte() % n];
  }

 private:
  const uint8_t *at_, *end_;
};

// A stream of numbers in [-1, 1); a wild one has in it what arithmetic stumbles over.
class Values {
 public:
  explicit Values(Bytes& bytes) : state_(bytes.byte() * 2654435761u + 1), wild_(bytes.byte() % 8 == 7 ? bytes.byte() : 0) {}
  bool tame() const { return wild_ == 0; }
  double next() {
    state_ = state_ * 1664525u + 1013904223u;
    const uint32_t bits = state_ >> 8;
    if ((bits & 255) < wild_) return kHostile[(bits >> 8) % (sizeof kHostile / sizeof *kHostile)];
    return double(bits) / double(1 << 23) - 1;
  }

 private:
  static constexpr double kInf = std::numeric_limits<double>::infinity();
  static constexpr double kHostile[] = {std::numeric_limits<double>::quiet_NaN(),
                                        kInf,
                                        -kInf,
                                        1e-45,
                                        -1e-45,
                                        5e-324,
                                        3.4e38,
                                        -3.4e38,
                                        1.18e-38,
                                        -0.0,
                                        1e300,
                                        1e19};
  uint32_t state_;
  uint32_t wild_;
};

constexpr double Values::kHostile[];

inline size_t bytes_of(int64_t dtype) { return dtype == kFloat64 ? 8 : dtype == kFloat32 ? 4 : 2; }

inline double get(const void* data, int64_t dtype, int64_t i) {
  if (dtype == kFloat64) return static_cast<const double*>(data)[i];
  if (dtype == kFloat32) return double(static_cast<const float*>(data)[i]);
  return double(widen(static_cast<const bfloat16*>(data)[i]));
}
inline void put(void* data, int64_t dtype, int64_t i, double value) {
  if (dtype == kFloat64) static_cast<double*>(data)[i] = value;
  else if (dtype == kFloat32) static_cast<float*>(data)[i] = float(value);
  else narrow(float(value), static_cast<bfloat16*>(data)[i]);
}

// The memory of one call. It ends where the last number ends, so that a sanitizer sees the one beyond it.
class Memory {
 public:
  void* take(int64_t dtype, int64_t count, int64_t offset = 0) {
    if (count == 0) return nullptr;  // as torch has it
    blocks_.emplace_back(new char[size_t(count + offset) * bytes_of(dtype)]);
    return blocks_.back().get() + size_t(offset) * bytes_of(dtype);
  }
  void* filled(int64_t dtype, int64_t count, Values& values, int64_t offset = 0) {
    void* data = take(dtype, count, offset);
    for (int64_t i = 0; i < count; ++i) put(data, dtype, i, values.next());
    return data;
  }
  // A result; all of it must be written.
  void* result(int64_t dtype, int64_t count) {
    void* data = take(dtype, count);
    if (count > 0) results_.push_back({static_cast<char*>(data), size_t(count), bytes_of(dtype)});
    return data;
  }

  // Marks all results as not written; the mark is a NaN that no arithmetic gives.
  void mark() {
    for (const Result& r : results_) std::memset(r.data, kMark, r.count * r.bytes);
  }
  void require_written(const char* what) const {
    for (const Result& r : results_)
      for (size_t i = 0; i < r.count; ++i) {
        size_t marked = 0;
        while (marked < r.bytes && uint8_t(r.data[i * r.bytes + marked]) == kMark) ++marked;
        REQUIRE(marked < r.bytes, "%s did not write number %zu of %zu", what, i, r.count);
      }
  }
  std::vector<char> copy() const {
    std::vector<char> all;
    for (const Result& r : results_) all.insert(all.end(), r.data, r.data + r.count * r.bytes);
    return all;
  }

 private:
  static constexpr uint8_t kMark = 0xff;
  struct Result {
    char* data;
    size_t count, bytes;
  };
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::vector<Result> results_;
};
