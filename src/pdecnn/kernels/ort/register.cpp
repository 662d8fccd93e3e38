// `pdecnn::GlobalLayer` and `pdecnn::AdvectionDiffusion` as operators of ONNX Runtime, computed by the kernels of pdecnn.
//
// Both take float tensors (N, C, H, W), side by side in memory as ONNX Runtime keeps them, and numbers as attributes.
// A node runs on the thread that it is called on. The arguments are packed as the Python side packs them: 8-byte fields.
#include <cstdlib>
#include <cstring>

#define PDECNN_ISA baseline
#include "onnxruntime_abi.h"
#include "abi.h"

extern "C" int32_t pdecnn_cpu_runs(const char* isa);

#define PDECNN_DECLARE(isa)                                      \
  extern "C" int32_t pdecnn_global_layer_##isa(const void* call); \
  extern "C" int32_t pdecnn_advection_diffusion_forward_##isa(const void* call);
#if defined(PDECNN_HAS_baseline)
PDECNN_DECLARE(baseline)
#endif
#if defined(PDECNN_HAS_avx2)
PDECNN_DECLARE(avx2)
#endif
#if defined(PDECNN_HAS_avx512)
PDECNN_DECLARE(avx512)
#endif

namespace {

using namespace PDECNN_NS;
using Run = int32_t (*)(const void* call);

struct Kernels {
  Run global_layer, advection_diffusion;
};

// Those of the best instruction set that was built and that this processor runs; null where there is none.
Kernels best_kernels() {
#if defined(PDECNN_HAS_avx512)
  if (pdecnn_cpu_runs("avx512")) return {pdecnn_global_layer_avx512, pdecnn_advection_diffusion_forward_avx512};
#endif
#if defined(PDECNN_HAS_avx2)
  if (pdecnn_cpu_runs("avx2")) return {pdecnn_global_layer_avx2, pdecnn_advection_diffusion_forward_avx2};
#endif
#if defined(PDECNN_HAS_baseline)
  return {pdecnn_global_layer_baseline, pdecnn_advection_diffusion_forward_baseline};
#else
  return {nullptr, nullptr};
#endif
}

const ort::Api* api = nullptr;

// A float tensor of the call. Smaller than a map, it is broadcast: its strides are then 0.
struct Tensor {
  float* data = nullptr;
  int64_t dims[4] = {1, 1, 1, 1};
  size_t rank = 0;
};

Map map_of(const Tensor& t, const Tensor& like) {
  if (t.data == nullptr) return {nullptr, 0, 0, 0, 0};
  const int64_t C = like.dims[1], H = like.dims[2], W = like.dims[3];
  if (t.rank == 4 && std::memcmp(t.dims, like.dims, sizeof t.dims) == 0) return {t.data, C * H * W, H * W, W, 1};
  return {t.data, 0, t.rank == 4 && t.dims[1] == C ? 1 : 0, 0, 0};
}

// Keeps the first error of a series of calls; what is read after it is zero.
class Failure {
 public:
  bool check(OrtStatus* status) {
    if (status == nullptr) return true;
    if (first_ == nullptr) first_ = status;
    else api->ReleaseStatus(status);
    return false;
  }
  bool any() const { return first_ != nullptr; }
  OrtStatus* first() const { return first_; }

 private:
  OrtStatus* first_ = nullptr;
};

OrtStatus* refuse(const char* message) { return api->CreateStatus(ort::kInvalidArgument, message); }

OrtStatus* answer(int32_t status) {
  if (status == 0) return nullptr;
  return api->CreateStatus(ort::kFail, status == 1 ? "pdecnn: out of memory" : "pdecnn: the kernel refused its arguments");
}

int64_t integer(Failure& f, const OrtKernelInfo* info, const char* name) {
  int64_t value = 0;
  f.check(api->KernelInfoGetAttribute_int64(info, name, &value));
  return value;
}

double number(Failure& f, const OrtKernelInfo* info, const char* name) {
  float value = 0;
  f.check(api->KernelInfoGetAttribute_float(info, name, &value));
  return double(value);
}

Tensor tensor(Failure& f, OrtValue* value) {
  Tensor t;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  if (f.any() || value == nullptr || !f.check(api->GetTensorTypeAndShape(value, &info))) return t;
  if (f.check(api->GetDimensionsCount(info, &t.rank)) && t.rank <= 4) f.check(api->GetDimensions(info, t.dims, t.rank));
  api->ReleaseTensorTypeAndShapeInfo(info);
  void* data = nullptr;
  if (f.check(api->GetTensorMutableData(value, &data))) t.data = static_cast<float*>(data);
  return t;
}

Tensor input(Failure& f, const OrtKernelContext* context, size_t i) {
  const OrtValue* value = nullptr;
  if (!f.check(api->KernelContext_GetInput(context, i, &value))) return {};
  return tensor(f, const_cast<OrtValue*>(value));
}

Tensor output(Failure& f, OrtKernelContext* context, const Tensor& like) {
  OrtValue* value = nullptr;
  if (f.any() || !f.check(api->KernelContext_GetOutput(context, 0, like.dims, 4, &value))) return {};
  return tensor(f, value);
}

struct GlobalLayer {
  static constexpr const char* kName = "GlobalLayer";
  static constexpr size_t kInputs = 6;  // h, x, weight, bias, scale, shift

  LayerCall call{};
  Run run = nullptr;

  GlobalLayer(const OrtKernelInfo* info, Failure& failure) : run(best_kernels().global_layer) {
    call.K = integer(failure, info, "K");
    call.boundary = integer(failure, info, "boundary");
    call.previous_is_input = integer(failure, info, "previous_is_input");
    call.has_source = 1;
    call.coefficient_act = integer(failure, info, "coefficient_act");
    call.output_act = integer(failure, info, "output_act");
    call.flow_sign = integer(failure, info, "flow_sign");
    call.dt = number(failure, info, "dt");
    call.dx = number(failure, info, "dx");
    call.dy = number(failure, info, "dy");
    call.D_x = number(failure, info, "D_x");
    call.D_y = number(failure, info, "D_y");
  }

  OrtStatus* compute(OrtKernelContext* context) const {
    Failure f;
    const Tensor h = input(f, context, 0), x = input(f, context, 1), weight = input(f, context, 2);
    const Tensor bias = input(f, context, 3), scale = input(f, context, 4), shift = input(f, context, 5);
    const Tensor out = output(f, context, h);
    const bool shapes = h.rank == 4 && x.rank == 4 && std::memcmp(h.dims, x.dims, sizeof h.dims) == 0 &&
                        weight.rank == 4 && weight.dims[1] == h.dims[1] && bias.rank == 2 && scale.rank == 1;
    if (f.any()) return f.first();
    if (!shapes)
      return refuse("pdecnn::GlobalLayer: expected h and x (N, C, H, W), weight (maps, C, side, side), bias (maps, C) and "
                    "scale (C)");
    LayerCall c = call;
    c.N = h.dims[0], c.C = h.dims[1], c.H = h.dims[2], c.W = h.dims[3];
    c.maps = weight.dims[0], c.side = weight.dims[2];
    c.h = map_of(h, h), c.x = map_of(x, h), c.out = map_of(out, h);
    c.weight = weight.data, c.bias = bias.data, c.scale = scale.data, c.shift = shift.data;
    return answer(run(&c));
  }
};

struct AdvectionDiffusion {
  static constexpr const char* kName = "AdvectionDiffusion";
  static constexpr size_t kInputs = 7;  // h, h_prev, u, v, D_x, D_y, f

  ForwardCall call{};
  int64_t has_source = 0;
  Run run = nullptr;

  AdvectionDiffusion(const OrtKernelInfo* info, Failure& failure) : run(best_kernels().advection_diffusion) {
    call.problem.K = integer(failure, info, "K");
    call.problem.boundary = integer(failure, info, "boundary");
    has_source = integer(failure, info, "has_source");
    call.problem.dt = number(failure, info, "dt");
    call.problem.dx = number(failure, info, "dx");
    call.problem.dy = number(failure, info, "dy");
  }

  OrtStatus* compute(OrtKernelContext* context) const {
    Failure f;
    ForwardCall c = call;
    Problem& p = c.problem;
    Map* fields[kInputs] = {&p.h, &p.h_prev, &p.u, &p.v, &p.D_x, &p.D_y, &p.f};
    const Tensor h = input(f, context, 0);
    const Tensor out = output(f, context, h);
    for (size_t i = 0; i < kInputs; ++i) *fields[i] = map_of(input(f, context, i), h);
    if (has_source == 0) p.f = {nullptr, 0, 0, 0, 0};
    if (f.any()) return f.first();
    if (h.rank != 4) return refuse("pdecnn::AdvectionDiffusion: expected h of shape (N, C, H, W)");
    p.N = h.dims[0], p.C = h.dims[1], p.H = h.dims[2], p.W = h.dims[3];
    c.out = map_of(out, h);
    return answer(run(&c));
  }
};

template <class Kernel>
ort::CustomOp describe() {
  ort::CustomOp op{};
  op.version = ort::kCustomOpVersion;
  op.GetName = [](const ort::CustomOp*) { return Kernel::kName; };
  op.GetExecutionProviderType = [](const ort::CustomOp*) -> const char* { return nullptr; };  // the CPU
  op.GetInputType = op.GetOutputType = [](const ort::CustomOp*, size_t) { return ort::kFloat; };
  op.GetInputTypeCount = [](const ort::CustomOp*) { return size_t(Kernel::kInputs); };
  op.GetOutputTypeCount = [](const ort::CustomOp*) { return size_t(1); };
  op.GetInputCharacteristic = op.GetOutputCharacteristic = [](const ort::CustomOp*, size_t) { return 0; };
  op.GetInputMemoryType = [](const ort::CustomOp*, size_t) { return 0; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 1; };
  op.CreateKernelV2 = [](const ort::CustomOp*, const ort::Api*, const OrtKernelInfo* info, void** kernel) {
    Failure failure;
    *kernel = new Kernel(info, failure);
    return failure.first();
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
  api = base->GetApi(ort::kApiVersion);
  if (best_kernels().global_layer == nullptr) return refuse("pdecnn: this build has no kernel for this processor");
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain("pdecnn", &domain)) return status;
  for (const ort::CustomOp& op : ops)
    if (OrtStatus* status = api->CustomOpDomain_Add(domain, &op)) return status;
  return api->AddCustomOpDomain(options, domain);  // the domain lives as long as the process: sessions refer to it
}
