// `pdecnn::GlobalLayer` and `pdecnn::AdvectionDiffusion` as operators of ONNX Runtime, computed by the kernels of pdecnn.
//
// Both take float tensors, side by side in memory as ONNX Runtime keeps them, the number of steps K as their last input, and
// other numbers as attributes. A model file may come from anyone: attributes are checked when a kernel is created, shapes
// and K when it runs, and what is refused is named. A node runs on the thread that it is called on.
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <new>

#define PDECNN_ISA baseline
#include "abi.h"
#include "onnxruntime_abi.h"

extern "C" int32_t pdecnn_cpu_runs(const char* isa);

// PDECNN_ISAS are the instruction sets that were built, X(name) each, the best first.
#define X(isa)                                                    \
  extern "C" int32_t pdecnn_global_layer_##isa(const void* call); \
  extern "C" int32_t pdecnn_advection_diffusion_forward_##isa(const void* call);
PDECNN_ISAS
#undef X

namespace {

using namespace PDECNN_NS;
using Run = int32_t (*)(const void* call);

struct Kernels {
  const char* isa;
  Run global_layer, advection_diffusion;
};

// Those of the best instruction set that this processor runs; null where there is none.
const Kernels* best_kernels() {
#define X(isa) {#isa, pdecnn_global_layer_##isa, pdecnn_advection_diffusion_forward_##isa},
  static const Kernels all[] = {PDECNN_ISAS};
#undef X
  for (const Kernels& kernels : all)
    if (pdecnn_cpu_runs(kernels.isa)) return &kernels;
  return nullptr;
}

const ort::Api* api = nullptr;

// Reads and checks for one operator; keeps the first error, and what is read after it is zero.
class Reader {
 public:
  explicit Reader(const char* op) : op_(op) {}
  bool ok() const { return error_ == nullptr; }
  OrtStatus* error() const { return error_; }

  bool check(OrtStatus* status) {
    if (status == nullptr) return true;
    if (ok()) error_ = status;
    else api->ReleaseStatus(status);
    return false;
  }
  // Refuses unless `good`; the message is made as by printf and follows the operator's name.
  bool expect(bool good, const char* format, ...) {
    if (good || !ok()) return good && ok();
    char text[400];
    const int length = std::snprintf(text, sizeof text, "pdecnn::%s: ", op_);
    va_list values;
    va_start(values, format);
    std::vsnprintf(text + length, sizeof text - size_t(length), format, values);
    va_end(values);
    error_ = api->CreateStatus(ort::kInvalidArgument, text);
    return false;
  }

  // Attributes.
  int64_t integer(const OrtKernelInfo* info, const char* name, int64_t least, int64_t most) {
    int64_t value = 0;
    if (ok() && check(api->KernelInfoGetAttribute_int64(info, name, &value)))
      expect(value >= least && value <= most, "attribute '%s' must be from %lld to %lld, got %lld", name, (long long)least,
             (long long)most, (long long)value);
    return value;
  }
  double number(const OrtKernelInfo* info, const char* name, bool may_be_zero) {
    float value = 0;
    if (ok() && check(api->KernelInfoGetAttribute_float(info, name, &value)))
      expect(std::isfinite(value) && (value > 0 || (may_be_zero && value == 0)), "attribute '%s' must be finite and %s, got %g",
             name, may_be_zero ? "not negative" : "positive", double(value));
    return double(value);
  }

 private:
  const char* op_;
  OrtStatus* error_ = nullptr;
};

struct Tensor {
  const char* name = "";
  void* data = nullptr;
  int64_t dims[4] = {0, 0, 0, 0};
  size_t rank = 0;

  bool is(size_t wanted, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    const int64_t sizes[4] = {a, b, c, d};
    for (size_t i = 0; i < wanted && i < rank; ++i)
      if (dims[i] != sizes[i]) return false;
    return rank == wanted;
  }
  bool is_like(const Tensor& h) const { return is(4, h.dims[0], h.dims[1], h.dims[2], h.dims[3]); }
  const float* floats() const { return static_cast<const float*>(data); }
};

Tensor input(Reader& r, const OrtKernelContext* context, size_t i, const char* name) {
  Tensor t;
  t.name = name;
  const OrtValue* value = nullptr;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  if (!r.ok() || !r.check(api->KernelContext_GetInput(context, i, &value))) return t;
  if (!r.expect(value != nullptr, "input '%s' is missing", name) || !r.check(api->GetTensorTypeAndShape(value, &info)))
    return t;
  if (r.check(api->GetDimensionsCount(info, &t.rank)) && t.rank <= 4) r.check(api->GetDimensions(info, t.dims, t.rank));
  api->ReleaseTensorTypeAndShapeInfo(info);
  r.expect(t.rank <= 4, "input '%s' must have at most 4 dimensions, got %zu", name, t.rank);
  r.check(api->GetTensorMutableData(const_cast<OrtValue*>(value), &t.data));
  return t;
}

// Refuses a tensor, with its shape, unless `good`.
void expect_shape(Reader& r, bool good, const Tensor& t, const char* expected) {
  const long long d[4] = {t.dims[0], t.dims[1], t.dims[2], t.dims[3]};
  r.expect(good, "expected input '%s' of shape %s, got %zu dimensions of sizes %lld, %lld, %lld, %lld", t.name, expected,
           t.rank, d[0], d[1], d[2], d[3]);
}

Tensor state(Reader& r, const OrtKernelContext* context) {
  const Tensor h = input(r, context, 0, "h");
  expect_shape(r, h.rank == 4 && h.dims[0] >= 0 && h.dims[1] >= 1 && h.dims[2] >= 1 && h.dims[3] >= 1, h,
               "(N, C, H, W) with C, H, W of at least 1");
  return h;
}

int64_t steps(Reader& r, const OrtKernelContext* context, size_t i) {
  const Tensor t = input(r, context, i, "K");
  expect_shape(r, t.rank == 0 || t.is(1, 1), t, "() or (1)");
  if (!r.ok() || !r.expect(t.data != nullptr, "input 'K' has no data")) return 0;
  const int64_t K = *static_cast<const int64_t*>(t.data);
  r.expect(K >= 1 && K <= kMostSteps, "input 'K' (number of time steps) must be from 1 to %lld, got %lld",
           (long long)kMostSteps, (long long)K);
  return K;
}

Map map_of(const Tensor& t, const Tensor& h) {
  const int64_t C = h.dims[1], H = h.dims[2], W = h.dims[3];
  for (int64_t size : h.dims)
    if (size == 0) return {};  // there is nothing, and the product of the other sizes may be too large for a number
  if (t.is_like(h)) return {t.data, C * H * W, H * W, W, 1};
  return {t.data, 0, t.rank == 4 ? 1 : 0, 0, 0};  // broadcast
}

Map output(Reader& r, OrtKernelContext* context, const Tensor& h) {
  OrtValue* value = nullptr;
  Tensor out = h;
  if (r.ok() && r.check(api->KernelContext_GetOutput(context, 0, h.dims, 4, &value)))
    r.check(api->GetTensorMutableData(value, &out.data));
  return map_of(out, h);
}

// Runs the kernel if all was read well.
OrtStatus* answer(const Reader& r, Run run, const void* call) {
  const int32_t status = r.ok() ? run(call) : int32_t(kOk);
  if (status == kOk) return r.error();
  return api->CreateStatus(ort::kFail,
                           status == kOutOfMemory ? "pdecnn: out of memory" : "pdecnn: the kernel refused its arguments");
}

// h, x (N, C, H, W); weight (maps, C, side, side), 2 or 4 maps, side 1, 3 or 5; bias (maps, C); scale, shift (C); K.
struct GlobalLayer {
  static constexpr const char* kName = "GlobalLayer";
  static constexpr size_t kInputs = 7;
  global_training::InferenceCall call{};
  Run run = best_kernels()->global_layer;

  GlobalLayer(const OrtKernelInfo* info, Reader& r) {
    global_training::Layer& layer = call.layer;
    call.boundary = r.integer(info, "boundary", kPeriodic, kDirichlet);
    layer.previous_is_input = r.integer(info, "previous_is_input", 0, 1);
    layer.has_source = r.integer(info, "has_source", 0, 1);
    call.residual = r.integer(info, "residual", 0, 1);
    layer.problem.act = r.integer(info, "coefficient_act", kIdentity, kHardtanh);
    call.output_act = r.integer(info, "output_act", kIdentity, kHardtanh);
    const int64_t sign = r.integer(info, "flow_sign", -1, 1);
    r.expect(sign != 0, "attribute 'flow_sign' must be -1 or 1, got 0");
    layer.dt = r.number(info, "dt", false);
    layer.dx = double(sign) * r.number(info, "dx", false), layer.dy = double(sign) * r.number(info, "dy", false);
    layer.D_x = r.number(info, "D_x", true), layer.D_y = r.number(info, "D_y", true);
  }

  OrtStatus* compute(OrtKernelContext* context) const {
    Reader r(kName);
    const Tensor h = state(r, context), x = input(r, context, 1, "x"), weight = input(r, context, 2, "weight");
    const Tensor bias = input(r, context, 3, "bias"), scale = input(r, context, 4, "scale"),
                 shift = input(r, context, 5, "shift");
    const int64_t K = steps(r, context, 6), C = h.dims[1], maps = weight.dims[0], side = weight.dims[2];
    expect_shape(r, x.is_like(h), x, "like h");
    expect_shape(r, weight.is(4, maps, C, side, side) && (maps == 2 || maps == 4) && (side == 1 || side == 3 || side == 5),
                 weight, "(2 or 4, C, side, side) with a side of 1, 3 or 5");
    expect_shape(r, bias.is(2, maps, C), bias, "(maps, C)");
    expect_shape(r, scale.is(1, C), scale, "(C)");
    expect_shape(r, shift.is(1, C), shift, "(C)");
    auto c = call;
    auto& p = c.layer.problem;
    p.N = h.dims[0], p.C = C, p.H = h.dims[2], p.W = h.dims[3], p.maps = maps, p.side = side;
    p.h = h.floats(), p.weight = weight.floats(), p.bias = bias.floats();
    c.layer.K = K, c.layer.x = x.data == h.data ? nullptr : x.floats();
    c.scale = scale.floats(), c.shift = shift.floats(), c.out = static_cast<float*>(output(r, context, h).data);
    return p.N > 0 ? answer(r, run, &c) : r.error();
  }
};

// h, h_prev (N, C, H, W); u, v, D_x, D_y likewise or (1, C, 1, 1) or (); f like h, read where has_source is 1; K.
struct AdvectionDiffusion {
  static constexpr const char* kName = "AdvectionDiffusion";
  static constexpr size_t kInputs = 8;
  ForwardCall call{};
  int64_t has_source = 0;
  Run run = best_kernels()->advection_diffusion;

  AdvectionDiffusion(const OrtKernelInfo* info, Reader& r) {
    Problem& p = call.problem;
    p.boundary = r.integer(info, "boundary", kPeriodic, kDirichlet);
    has_source = r.integer(info, "has_source", 0, 1);
    p.dt = r.number(info, "dt", false), p.dx = r.number(info, "dx", false), p.dy = r.number(info, "dy", false), p.dz = 1;
  }

  OrtStatus* compute(OrtKernelContext* context) const {
    Reader r(kName);
    ForwardCall c = call;
    Problem& p = c.problem;
    const Tensor h = state(r, context);
    const int64_t C = h.dims[1];
    const char* names[] = {"h", "h_prev", "u", "v", "D_x", "D_y", "f"};
    Map* maps[] = {&p.h, &p.h_prev, &p.u, &p.v, &p.D_x, &p.D_y, &p.f};
    for (size_t i = 0; i < (has_source ? 7 : 6); ++i) {
      const Tensor t = input(r, context, i, names[i]);
      const bool is_coefficient = i >= 2 && i < 6;
      expect_shape(r, t.is_like(h) || (is_coefficient && (t.rank == 0 || t.is(4, 1, C, 1, 1))), t,
                   is_coefficient ? "like h, (1, C, 1, 1) or ()" : "like h");
      *maps[i] = map_of(t, h);
    }
    p.N = h.dims[0], p.C = C, p.D = 1, p.H = h.dims[2], p.W = h.dims[3], p.K = steps(r, context, 7);
    c.out = output(r, context, h);
    return p.N > 0 ? answer(r, run, &c) : r.error();
  }
};

template <class Kernel>
ort::CustomOp describe() {
  ort::CustomOp op{};
  op.version = ort::kCustomOpVersion;
  op.GetName = [](const ort::CustomOp*) { return Kernel::kName; };
  op.GetExecutionProviderType = [](const ort::CustomOp*) -> const char* { return nullptr; };  // the CPU
  op.GetInputType = [](const ort::CustomOp*, size_t i) { return i + 1 == Kernel::kInputs ? ort::kInt64 : ort::kFloat; };
  op.GetOutputType = [](const ort::CustomOp*, size_t) { return ort::kFloat; };
  op.GetInputTypeCount = [](const ort::CustomOp*) { return size_t(Kernel::kInputs); };
  op.GetOutputTypeCount = [](const ort::CustomOp*) { return size_t(1); };
  op.GetInputCharacteristic = op.GetOutputCharacteristic = [](const ort::CustomOp*, size_t) { return 0; };
  op.GetInputMemoryType = [](const ort::CustomOp*, size_t) { return 0; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 1; };
  op.CreateKernelV2 = [](const ort::CustomOp*, const ort::Api*, const OrtKernelInfo* info, void** kernel) {
    Reader r(Kernel::kName);
    auto* made = new (std::nothrow) Kernel(info, r);
    r.expect(made != nullptr, "out of memory");
    if (!r.ok()) delete made;
    else *kernel = made;
    return r.error();
  };
  op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
    return static_cast<const Kernel*>(kernel)->compute(context);
  };
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  return op;
}

}  // namespace

// Called by ONNX Runtime's `SessionOptions.register_custom_ops_library`.
PDECNN_EXPORT OrtStatus* ORT_CALL RegisterCustomOps(OrtSessionOptions* options, const ort::ApiBase* base) {
  static const ort::CustomOp ops[] = {describe<GlobalLayer>(), describe<AdvectionDiffusion>()};
  [[maybe_unused]] static const auto* once = api = base->GetApi(ort::kApiVersion);  // other sessions may be running
  if (best_kernels() == nullptr) return api->CreateStatus(ort::kFail, "pdecnn: this build has no kernel for this processor");
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain("pdecnn", &domain)) return status;
  for (const ort::CustomOp& op : ops)
    if (OrtStatus* status = api->CustomOpDomain_Add(domain, &op)) return status;
  return api->AddCustomOpDomain(options, domain);  // the domain lives as long as the process: sessions refer to it
}
