// One stencil per channel, and its adjoint, for any size, type and boundary.
#include "stencils.h"

namespace PDECNN_NS {
namespace depthwise {

template <class T>
Status forward(const ForwardCall& call) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  const int64_t plane = p.H * p.W;
  const Frame<A> shape(p.H, p.W, p.rows / 2, p.columns / 2, p.boundary);
  const size_t bytes = size_t(shape.numbers()) * sizeof(A);
  return parallel_for(p.N * p.C, max<int64_t>(1, 32768 / plane), bytes, [&](int64_t begin, int64_t end, char* memory) {
    const Frame<A> frame = Frame<A>(shape).in(reinterpret_cast<A*>(memory));
    for (int64_t i = begin; i < end; ++i) {
      const T* y = static_cast<const T*>(call.y) + i * plane;
      const Stencil<A> stencil{frame, static_cast<const A*>(call.k) + i % p.C * p.rows * p.columns, p.rows, p.columns};
      frame.fill(y);
      correlate(&stencil, 1, A(0), static_cast<T*>(call.out) + i * plane, y + plane, [](const auto& sum) { return sum; });
    }
  });
}

template <class T>
Status stencil_gradient(const StencilGradientCall& call) {
  using A = arithmetic_t<T>;
  const Problem& p = call.problem;
  const int64_t plane = p.H * p.W, taps = p.rows * p.columns;
  const Frame<A> shape(p.H, p.W, p.rows / 2, p.columns / 2, p.boundary), zero_bordered(p.H, p.W, 0, 0, kDirichlet);
  const int64_t numbers = round_up(shape.numbers(), 16), grad_numbers = round_up(zero_bordered.numbers(), 16);
  const size_t bytes = size_t(numbers + grad_numbers) * sizeof(A) + size_t(taps) * sizeof(double);
  return parallel_for(p.C, 1, bytes, [&](int64_t begin, int64_t end, char* memory) {
    A* scratch = reinterpret_cast<A*>(memory);
    const Frame<A> y = Frame<A>(shape).in(scratch), grad = Frame<A>(zero_bordered).in(scratch + numbers);
    double* sums = reinterpret_cast<double*>(scratch + numbers + grad_numbers);
    const A* grads[] = {grad.inside()};
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t i = 0; i < taps; ++i) sums[i] = 0;
      for (int64_t n = 0; n < p.N; ++n) {
        y.fill(static_cast<const T*>(call.y) + (n * p.C + c) * plane);
        grad.fill(static_cast<const T*>(call.grad) + (n * p.C + c) * plane);
        add_tap_gradient<1>(y, p.rows, p.columns, grads, grad.stride(), sums);
      }
      for (int64_t i = 0; i < taps; ++i) static_cast<A*>(call.grad_k)[c * taps + i] = A(sums[i]);
    }
  });
}

Status run(const ForwardCall& call) {
  return by_dtype(call.problem.dtype, [&](auto t) { return forward<decltype(t)>(call); });
}
Status run(const StencilGradientCall& call) {
  return by_dtype(call.problem.dtype, [&](auto t) { return stencil_gradient<decltype(t)>(call); });
}

}  // namespace depthwise
}  // namespace PDECNN_NS

PDECNN_FUNCTION(pdecnn_depthwise_forward, depthwise::ForwardCall, depthwise::run)
PDECNN_FUNCTION(pdecnn_depthwise_stencil_gradient, depthwise::StencilGradientCall, depthwise::run)
