// Work from random bytes on two threads at once: `main(rounds)` of the programs that ThreadSanitizer watches.
#pragma once

#include <random>
#include <thread>

#include "bytes.h"

template <class F>
int on_two_threads(int argc, char** argv, const F& work) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 1000;
  auto many = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> data(64);
    for (long i = 0; i < rounds; ++i) {
      for (uint8_t& byte : data) byte = uint8_t(random());
      Bytes bytes(data.data(), data.size());
      work(bytes);
    }
  };
  std::thread other(many, 1);
  many(2);
  other.join();
  std::printf("%ld calls on two threads\n", 2 * rounds);
  return 0;
}
