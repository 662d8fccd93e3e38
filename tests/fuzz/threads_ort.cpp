// The operators of ONNX Runtime from two threads, as two sessions and as one: each registers, creates nodes of its own and
// runs them, and both run the same two nodes.
#include "fake_ort.h"
#include "on_threads.h"

int main(int argc, char** argv) {
  auto enlist = [] { REQUIRE(RegisterCustomOps(nullptr, &fake::base) == nullptr, "not registered"); };
  std::thread first(enlist);
  enlist();
  first.join();
  Bytes none(nullptr, 0);
  void *layer = fake::create(none, fake::layer), *solver = fake::create(none, fake::solver);
  return on_two_threads(argc, argv, [&](Bytes& bytes) {
    switch (bytes.byte() % 4) {
      case 0: return fake::compute(bytes, fake::layer, layer);
      case 1: return fake::compute(bytes, fake::solver, solver);
      case 2: return enlist();  // another session
      default: return fake::node(bytes);
    }
  });
}
