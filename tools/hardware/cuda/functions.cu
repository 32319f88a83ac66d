// Bits of every function and instruction of CUDA C++ that only the device knows, over fixed arguments.
// Prints a line each: NAME and the results as hexadecimal digits of 32 bits.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector>

constexpr int COUNT = 256;

#define FLOAT1(NAME, EXPRESSION)                                                                                       \
  struct NAME {                                                                                                        \
    static const char *name() { return #NAME; }                                                                        \
    __device__ static uint32_t of(float x, float y) { return __float_as_uint(EXPRESSION); }                            \
  };
#define ASM1(NAME, INSTRUCTION)                                                                                        \
  struct NAME {                                                                                                        \
    static const char *name() { return INSTRUCTION; }                                                                  \
    __device__ static uint32_t of(float x, float) {                                                                    \
      float r;                                                                                                         \
      asm volatile(INSTRUCTION " %0, %1;" : "=f"(r) : "f"(x));                                                         \
      return __float_as_uint(r);                                                                                       \
    }                                                                                                                  \
  };
#define HALF1(NAME, EXPRESSION)                                                                                        \
  struct half_##NAME {                                                                                                 \
    static const char *name() { return "half " #NAME; }                                                                \
    __device__ static uint32_t of(float v, float w) {                                                                  \
      __half x = __float2half(v), y = __float2half(w);                                                                 \
      (void)y;                                                                                                         \
      return __half_as_ushort(EXPRESSION);                                                                             \
    }                                                                                                                  \
  };
#define BFLOAT1(NAME, EXPRESSION)                                                                                      \
  struct bfloat_##NAME {                                                                                               \
    static const char *name() { return "bfloat16 " #NAME; }                                                            \
    __device__ static uint32_t of(float v, float w) {                                                                  \
      __nv_bfloat16 x = __float2bfloat16(v), y = __float2bfloat16(w);                                                  \
      (void)y;                                                                                                         \
      return __bfloat16_as_ushort(EXPRESSION);                                                                         \
    }                                                                                                                  \
  };

FLOAT1(expf_, expf(x)) FLOAT1(exp2f_, exp2f(x)) FLOAT1(exp10f_, exp10f(x)) FLOAT1(expm1f_, expm1f(x)) FLOAT1(logf_, logf(x))
FLOAT1(log2f_, log2f(x)) FLOAT1(log10f_, log10f(x)) FLOAT1(log1pf_, log1pf(x)) FLOAT1(sinf_, sinf(x)) FLOAT1(cosf_, cosf(x))
FLOAT1(tanf_, tanf(x)) FLOAT1(tanhf_, tanhf(x)) FLOAT1(sinhf_, sinhf(x)) FLOAT1(asinf_, asinf(x)) FLOAT1(acosf_, acosf(x))
FLOAT1(atanf_, atanf(x)) FLOAT1(erff_, erff(x)) FLOAT1(erfcf_, erfcf(x)) FLOAT1(erfinvf_, erfinvf(x)) FLOAT1(tgammaf_, tgammaf(x))
FLOAT1(lgammaf_, lgammaf(x)) FLOAT1(cbrtf_, cbrtf(x)) FLOAT1(rsqrtf_, rsqrtf(x)) FLOAT1(sqrtf_, sqrtf(x)) FLOAT1(powf_, powf(x, y))
FLOAT1(atan2f_, atan2f(x, y)) FLOAT1(fmodf_, fmodf(x, y)) FLOAT1(hypotf_, hypotf(x, y)) FLOAT1(normcdff_, normcdff(x)) FLOAT1(j0f_, j0f(x))
FLOAT1(sinpif_, sinpif(x)) FLOAT1(division, x / y) FLOAT1(__expf_, __expf(x)) FLOAT1(__exp10f_, __exp10f(x)) FLOAT1(__logf_, __logf(x))
FLOAT1(__log2f_, __log2f(x)) FLOAT1(__log10f_, __log10f(x)) FLOAT1(__sinf_, __sinf(x)) FLOAT1(__cosf_, __cosf(x)) FLOAT1(__tanf_, __tanf(x))
FLOAT1(__powf_, __powf(x, y)) FLOAT1(__fdividef_, __fdividef(x, y)) FLOAT1(__frsqrt_rn_, __frsqrt_rn(x)) FLOAT1(__saturatef_, __saturatef(x))
FLOAT1(fmaf_, fmaf(x, y, x)) FLOAT1(fminf_, fminf(x, y)) FLOAT1(rintf_, rintf(x)) FLOAT1(roundf_, roundf(x)) FLOAT1(float2int, (float)(int)x)
FLOAT1(float2uint, (float)(unsigned)x) FLOAT1(float2char, (float)(signed char)x) FLOAT1(double2float, (float)((double)x * 1.000000001))
FLOAT1(fp8_e4m3, (float)__nv_fp8_e4m3(x)) FLOAT1(fp8_e5m2, (float)__nv_fp8_e5m2(x))
ASM1(ex2, "ex2.approx.f32") ASM1(ex2_ftz, "ex2.approx.ftz.f32") ASM1(lg2, "lg2.approx.f32") ASM1(lg2_ftz, "lg2.approx.ftz.f32")
ASM1(sin_, "sin.approx.f32") ASM1(cos_, "cos.approx.f32") ASM1(tanh_, "tanh.approx.f32") ASM1(rcp, "rcp.approx.f32")
ASM1(rcp_ftz, "rcp.approx.ftz.f32") ASM1(rsqrt_, "rsqrt.approx.f32") ASM1(rsqrt_ftz, "rsqrt.approx.ftz.f32") ASM1(sqrt_, "sqrt.approx.f32")
ASM1(rcp_rn, "rcp.rn.f32") ASM1(sqrt_rn, "sqrt.rn.f32")
HALF1(hexp, hexp(x)) HALF1(hexp2, hexp2(x)) HALF1(hlog, hlog(x)) HALF1(hlog2, hlog2(x)) HALF1(hsin, hsin(x)) HALF1(hcos, hcos(x))
HALF1(hsqrt, hsqrt(x)) HALF1(hrsqrt, hrsqrt(x)) HALF1(hrcp, hrcp(x)) HALF1(htanh, htanh(x)) HALF1(htanh_approx, htanh_approx(x))
HALF1(hdiv, __hdiv(x, y)) HALF1(hadd, __hadd(x, y)) HALF1(hmul, __hmul(x, y)) HALF1(hfma, __hfma(x, y, x)) HALF1(hmax, __hmax(x, y))
BFLOAT1(hexp, hexp(x)) BFLOAT1(hexp2, hexp2(x)) BFLOAT1(hlog, hlog(x)) BFLOAT1(hsqrt, hsqrt(x)) BFLOAT1(hrsqrt, hrsqrt(x))
BFLOAT1(hrcp, hrcp(x)) BFLOAT1(htanh_approx, htanh_approx(x)) BFLOAT1(hdiv, __hdiv(x, y)) BFLOAT1(hadd, __hadd(x, y)) BFLOAT1(hmul, __hmul(x, y))
BFLOAT1(hfma, __hfma(x, y, x))

template <class F> __global__ void each(const float *x, const float *y, uint32_t *out) {
  out[threadIdx.x] = F::of(x[threadIdx.x], y[threadIdx.x]);
}

static float *x_, *y_;
static uint32_t *out_;

static void line(const char *name, const uint32_t *bits) {
  printf("%s ", name);
  for (int i = 0; i < COUNT; i++) printf("%08x", bits[i]);
  printf("\n");
}
template <class F> void one() {
  uint32_t bits[COUNT];
  each<F><<<1, COUNT>>>(x_, y_, out_);
  cudaMemcpy(bits, out_, sizeof bits, cudaMemcpyDeviceToHost);
  line(F::name(), bits);
}
template <class... F> void all() { (one<F>(), ...); }

int main() {
  std::vector<float> x(COUNT), y(COUNT);
  const float special[] = {0.f, -0.f, 1.f, -1.f, 0.5f, 2.f, 1e-40f, -1e-40f, 1e38f, -1e38f, 1e-38f, 3.4e38f, 88.7f, 89.f, -103.9f, -104.f, 127.9f, 128.f, -149.f, 65504.f, 65520.f, 1e-7f, 5.96e-8f, 448.f, 464.f, 57344.f, 3.14159274f, 1.57079637f, 100000.f, 1e10f, INFINITY, -INFINITY, NAN};
  uint32_t state = 12345;
  for (int i = 0; i < COUNT; i++) {
    auto next = [&] { state = state * 1664525u + 1013904223u; return (state >> 8) * (1.f / 16777216.f); };
    float a = next(), b = next();
    x[i] = i < 33 ? special[i] : i < 128 ? (a - 0.5f) * 8.f : i < 192 ? a * 40.f : (a - 0.5f) * 400.f;
    y[i] = (b - 0.5f) * 10.f;
  }
  cudaMalloc(&x_, COUNT * 4), cudaMalloc(&y_, COUNT * 4), cudaMalloc(&out_, COUNT * 4);
  cudaMemcpy(x_, x.data(), COUNT * 4, cudaMemcpyHostToDevice), cudaMemcpy(y_, y.data(), COUNT * 4, cudaMemcpyHostToDevice);
  std::vector<uint32_t> bits(COUNT);
  memcpy(bits.data(), x.data(), COUNT * 4), line("x", bits.data());
  memcpy(bits.data(), y.data(), COUNT * 4), line("y", bits.data());
  all<expf_, exp2f_, exp10f_, expm1f_, logf_, log2f_, log10f_, log1pf_, sinf_, cosf_, tanf_, tanhf_, sinhf_, asinf_, acosf_, atanf_, erff_, erfcf_,
      erfinvf_, tgammaf_, lgammaf_, cbrtf_, rsqrtf_, sqrtf_, powf_, atan2f_, fmodf_, hypotf_, normcdff_, j0f_, sinpif_, division>();
  all<__expf_, __exp10f_, __logf_, __log2f_, __log10f_, __sinf_, __cosf_, __tanf_, __powf_, __fdividef_, __frsqrt_rn_, __saturatef_, fmaf_, fminf_, rintf_,
      roundf_, float2int, float2uint, float2char, double2float, fp8_e4m3, fp8_e5m2>();
  all<ex2, ex2_ftz, lg2, lg2_ftz, sin_, cos_, tanh_, rcp, rcp_ftz, rsqrt_, rsqrt_ftz, sqrt_, rcp_rn, sqrt_rn>();
  all<half_hexp, half_hexp2, half_hlog, half_hlog2, half_hsin, half_hcos, half_hsqrt, half_hrsqrt, half_hrcp, half_htanh, half_htanh_approx, half_hdiv,
      half_hadd, half_hmul, half_hfma, half_hmax>();
  all<bfloat_hexp, bfloat_hexp2, bfloat_hlog, bfloat_hsqrt, bfloat_hrsqrt, bfloat_hrcp, bfloat_htanh_approx, bfloat_hdiv, bfloat_hadd, bfloat_hmul, bfloat_hfma>();
  return cudaGetLastError();
}
