// Mathematical functions in device code. What is more than an instruction calls a function with the name that it has
// in CUDA's libdevice, which the emulation answers.
#pragma once
#include "../host_defines.h"
#define WT_D static __device__ __forceinline__

// nvcc's sources have C's <math.h> without asking for it.
#ifndef INFINITY
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_huge_valf()
#define HUGE_VAL __builtin_huge_val()
#endif
#ifndef M_PI
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif

extern "C" {
__device__ double __nv_exp(double) __attribute__((const)); __device__ float __nv_expf(float) __attribute__((const));
__device__ double __nv_exp2(double) __attribute__((const)); __device__ float __nv_exp2f(float) __attribute__((const));
__device__ double __nv_exp10(double) __attribute__((const)); __device__ float __nv_exp10f(float) __attribute__((const));
__device__ double __nv_expm1(double) __attribute__((const)); __device__ float __nv_expm1f(float) __attribute__((const));
__device__ double __nv_log(double) __attribute__((const)); __device__ float __nv_logf(float) __attribute__((const));
__device__ double __nv_log2(double) __attribute__((const)); __device__ float __nv_log2f(float) __attribute__((const));
__device__ double __nv_log10(double) __attribute__((const)); __device__ float __nv_log10f(float) __attribute__((const));
__device__ double __nv_log1p(double) __attribute__((const)); __device__ float __nv_log1pf(float) __attribute__((const));
__device__ double __nv_sin(double) __attribute__((const)); __device__ float __nv_sinf(float) __attribute__((const));
__device__ double __nv_cos(double) __attribute__((const)); __device__ float __nv_cosf(float) __attribute__((const));
__device__ double __nv_tan(double) __attribute__((const)); __device__ float __nv_tanf(float) __attribute__((const));
__device__ double __nv_sinpi(double) __attribute__((const)); __device__ float __nv_sinpif(float) __attribute__((const));
__device__ double __nv_cospi(double) __attribute__((const)); __device__ float __nv_cospif(float) __attribute__((const));
__device__ double __nv_asin(double) __attribute__((const)); __device__ float __nv_asinf(float) __attribute__((const));
__device__ double __nv_acos(double) __attribute__((const)); __device__ float __nv_acosf(float) __attribute__((const));
__device__ double __nv_atan(double) __attribute__((const)); __device__ float __nv_atanf(float) __attribute__((const));
__device__ double __nv_sinh(double) __attribute__((const)); __device__ float __nv_sinhf(float) __attribute__((const));
__device__ double __nv_cosh(double) __attribute__((const)); __device__ float __nv_coshf(float) __attribute__((const));
__device__ double __nv_tanh(double) __attribute__((const)); __device__ float __nv_tanhf(float) __attribute__((const));
__device__ double __nv_asinh(double) __attribute__((const)); __device__ float __nv_asinhf(float) __attribute__((const));
__device__ double __nv_acosh(double) __attribute__((const)); __device__ float __nv_acoshf(float) __attribute__((const));
__device__ double __nv_atanh(double) __attribute__((const)); __device__ float __nv_atanhf(float) __attribute__((const));
__device__ double __nv_cbrt(double) __attribute__((const)); __device__ float __nv_cbrtf(float) __attribute__((const));
__device__ double __nv_rcbrt(double) __attribute__((const)); __device__ float __nv_rcbrtf(float) __attribute__((const));
__device__ double __nv_erf(double) __attribute__((const)); __device__ float __nv_erff(float) __attribute__((const));
__device__ double __nv_erfc(double) __attribute__((const)); __device__ float __nv_erfcf(float) __attribute__((const));
__device__ double __nv_erfinv(double) __attribute__((const)); __device__ float __nv_erfinvf(float) __attribute__((const));
__device__ double __nv_erfcinv(double) __attribute__((const)); __device__ float __nv_erfcinvf(float) __attribute__((const));
__device__ double __nv_erfcx(double) __attribute__((const)); __device__ float __nv_erfcxf(float) __attribute__((const));
__device__ double __nv_normcdf(double) __attribute__((const)); __device__ float __nv_normcdff(float) __attribute__((const));
__device__ double __nv_normcdfinv(double) __attribute__((const)); __device__ float __nv_normcdfinvf(float) __attribute__((const));
__device__ double __nv_lgamma(double) __attribute__((const)); __device__ float __nv_lgammaf(float) __attribute__((const));
__device__ double __nv_tgamma(double) __attribute__((const)); __device__ float __nv_tgammaf(float) __attribute__((const));
__device__ double __nv_j0(double) __attribute__((const)); __device__ float __nv_j0f(float) __attribute__((const));
__device__ double __nv_j1(double) __attribute__((const)); __device__ float __nv_j1f(float) __attribute__((const));
__device__ double __nv_y0(double) __attribute__((const)); __device__ float __nv_y0f(float) __attribute__((const));
__device__ double __nv_y1(double) __attribute__((const)); __device__ float __nv_y1f(float) __attribute__((const));
__device__ double __nv_cyl_bessel_i0(double) __attribute__((const)); __device__ float __nv_cyl_bessel_i0f(float) __attribute__((const));
__device__ double __nv_cyl_bessel_i1(double) __attribute__((const)); __device__ float __nv_cyl_bessel_i1f(float) __attribute__((const));
__device__ double __nv_atan2(double, double) __attribute__((const)); __device__ float __nv_atan2f(float, float) __attribute__((const));
__device__ double __nv_pow(double, double) __attribute__((const)); __device__ float __nv_powf(float, float) __attribute__((const));
__device__ double __nv_fmod(double, double) __attribute__((const)); __device__ float __nv_fmodf(float, float) __attribute__((const));
__device__ double __nv_remainder(double, double) __attribute__((const)); __device__ float __nv_remainderf(float, float) __attribute__((const));
__device__ double __nv_hypot(double, double) __attribute__((const)); __device__ float __nv_hypotf(float, float) __attribute__((const));
__device__ double __nv_rhypot(double, double) __attribute__((const)); __device__ float __nv_rhypotf(float, float) __attribute__((const));
__device__ double __nv_nextafter(double, double) __attribute__((const)); __device__ float __nv_nextafterf(float, float) __attribute__((const));
__device__ double __nv_powi(double, int) __attribute__((const)); __device__ float __nv_powif(float, int) __attribute__((const));
__device__ double __nv_ldexp(double, int) __attribute__((const)); __device__ float __nv_ldexpf(float, int) __attribute__((const));
}

// The fast ones are a few instructions (CUDA C++ Programming Guide, "Intrinsic Functions").
WT_D float __exp2_approx(float x) { return __nvvm_ex2_approx_f(x); }
WT_D float __expf(float x) { return __nvvm_ex2_approx_f(x * 1.4426950408889634f); }
WT_D float __exp10f(float x) { return __nvvm_ex2_approx_f(x * 3.3219280948873626f); }
WT_D float __log2f(float x) { return __nvvm_lg2_approx_f(x); }
WT_D float __logf(float x) { return __nvvm_lg2_approx_f(x) * 0.6931471805599453f; }
WT_D float __log10f(float x) { return __nvvm_lg2_approx_f(x) * 0.3010299956639812f; }
WT_D float __sinf(float x) { return __nvvm_sin_approx_f(x); }
WT_D float __cosf(float x) { return __nvvm_cos_approx_f(x); }
WT_D float __fdividef(float x, float y) { return __nvvm_div_approx_f(x, y); }
WT_D float __tanf(float x) { return __fdividef(__sinf(x), __cosf(x)); }
WT_D float __powf(float x, float y) { return __nvvm_ex2_approx_f(y * __nvvm_lg2_approx_f(x)); }
WT_D void __sincosf(float x, float *s, float *c) { *s = __sinf(x); *c = __cosf(x); }
WT_D float __saturatef(float x) { return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f; }
WT_D float __tanhf(float x) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
  float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
#else
  return __nv_tanhf(x);
#endif
}

#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float expf(float x) { return __expf(x); }
#else
WT_D float expf(float x) { return __nv_expf(x); }
#endif
WT_D double exp(double x) { return __nv_exp(x); }
WT_D float exp2f(float x) { return __nv_exp2f(x); }
WT_D double exp2(double x) { return __nv_exp2(x); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float exp10f(float x) { return __exp10f(x); }
#else
WT_D float exp10f(float x) { return __nv_exp10f(x); }
#endif
WT_D double exp10(double x) { return __nv_exp10(x); }
WT_D float expm1f(float x) { return __nv_expm1f(x); }
WT_D double expm1(double x) { return __nv_expm1(x); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float logf(float x) { return __logf(x); }
#else
WT_D float logf(float x) { return __nv_logf(x); }
#endif
WT_D double log(double x) { return __nv_log(x); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float log2f(float x) { return __log2f(x); }
#else
WT_D float log2f(float x) { return __nv_log2f(x); }
#endif
WT_D double log2(double x) { return __nv_log2(x); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float log10f(float x) { return __log10f(x); }
#else
WT_D float log10f(float x) { return __nv_log10f(x); }
#endif
WT_D double log10(double x) { return __nv_log10(x); }
WT_D float log1pf(float x) { return __nv_log1pf(x); }
WT_D double log1p(double x) { return __nv_log1p(x); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float sinf(float x) { return __sinf(x); }
#else
WT_D float sinf(float x) { return __nv_sinf(x); }
#endif
WT_D double sin(double x) { return __nv_sin(x); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float cosf(float x) { return __cosf(x); }
#else
WT_D float cosf(float x) { return __nv_cosf(x); }
#endif
WT_D double cos(double x) { return __nv_cos(x); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float tanf(float x) { return __tanf(x); }
#else
WT_D float tanf(float x) { return __nv_tanf(x); }
#endif
WT_D double tan(double x) { return __nv_tan(x); }
WT_D float sinpif(float x) { return __nv_sinpif(x); }
WT_D double sinpi(double x) { return __nv_sinpi(x); }
WT_D float cospif(float x) { return __nv_cospif(x); }
WT_D double cospi(double x) { return __nv_cospi(x); }
WT_D float asinf(float x) { return __nv_asinf(x); }
WT_D double asin(double x) { return __nv_asin(x); }
WT_D float acosf(float x) { return __nv_acosf(x); }
WT_D double acos(double x) { return __nv_acos(x); }
WT_D float atanf(float x) { return __nv_atanf(x); }
WT_D double atan(double x) { return __nv_atan(x); }
WT_D float sinhf(float x) { return __nv_sinhf(x); }
WT_D double sinh(double x) { return __nv_sinh(x); }
WT_D float coshf(float x) { return __nv_coshf(x); }
WT_D double cosh(double x) { return __nv_cosh(x); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float tanhf(float x) { return __tanhf(x); }
#else
WT_D float tanhf(float x) { return __nv_tanhf(x); }
#endif
WT_D double tanh(double x) { return __nv_tanh(x); }
WT_D float asinhf(float x) { return __nv_asinhf(x); }
WT_D double asinh(double x) { return __nv_asinh(x); }
WT_D float acoshf(float x) { return __nv_acoshf(x); }
WT_D double acosh(double x) { return __nv_acosh(x); }
WT_D float atanhf(float x) { return __nv_atanhf(x); }
WT_D double atanh(double x) { return __nv_atanh(x); }
WT_D float cbrtf(float x) { return __nv_cbrtf(x); }
WT_D double cbrt(double x) { return __nv_cbrt(x); }
WT_D float rcbrtf(float x) { return __nv_rcbrtf(x); }
WT_D double rcbrt(double x) { return __nv_rcbrt(x); }
WT_D float erff(float x) { return __nv_erff(x); }
WT_D double erf(double x) { return __nv_erf(x); }
WT_D float erfcf(float x) { return __nv_erfcf(x); }
WT_D double erfc(double x) { return __nv_erfc(x); }
WT_D float erfinvf(float x) { return __nv_erfinvf(x); }
WT_D double erfinv(double x) { return __nv_erfinv(x); }
WT_D float erfcinvf(float x) { return __nv_erfcinvf(x); }
WT_D double erfcinv(double x) { return __nv_erfcinv(x); }
WT_D float erfcxf(float x) { return __nv_erfcxf(x); }
WT_D double erfcx(double x) { return __nv_erfcx(x); }
WT_D float normcdff(float x) { return __nv_normcdff(x); }
WT_D double normcdf(double x) { return __nv_normcdf(x); }
WT_D float normcdfinvf(float x) { return __nv_normcdfinvf(x); }
WT_D double normcdfinv(double x) { return __nv_normcdfinv(x); }
WT_D float lgammaf(float x) { return __nv_lgammaf(x); }
WT_D double lgamma(double x) { return __nv_lgamma(x); }
WT_D float tgammaf(float x) { return __nv_tgammaf(x); }
WT_D double tgamma(double x) { return __nv_tgamma(x); }
WT_D float j0f(float x) { return __nv_j0f(x); }
WT_D double j0(double x) { return __nv_j0(x); }
WT_D float j1f(float x) { return __nv_j1f(x); }
WT_D double j1(double x) { return __nv_j1(x); }
WT_D float y0f(float x) { return __nv_y0f(x); }
WT_D double y0(double x) { return __nv_y0(x); }
WT_D float y1f(float x) { return __nv_y1f(x); }
WT_D double y1(double x) { return __nv_y1(x); }
WT_D float cyl_bessel_i0f(float x) { return __nv_cyl_bessel_i0f(x); }
WT_D double cyl_bessel_i0(double x) { return __nv_cyl_bessel_i0(x); }
WT_D float cyl_bessel_i1f(float x) { return __nv_cyl_bessel_i1f(x); }
WT_D double cyl_bessel_i1(double x) { return __nv_cyl_bessel_i1(x); }
WT_D float atan2f(float x, float y) { return __nv_atan2f(x, y); }
WT_D double atan2(double x, double y) { return __nv_atan2(x, y); }
#ifdef __CLANG_GPU_APPROX_TRANSCENDENTALS__
WT_D float powf(float x, float y) { return __powf(x, y); }
#else
WT_D float powf(float x, float y) { return __nv_powf(x, y); }
#endif
WT_D double pow(double x, double y) { return __nv_pow(x, y); }
WT_D float fmodf(float x, float y) { return __nv_fmodf(x, y); }
WT_D double fmod(double x, double y) { return __nv_fmod(x, y); }
WT_D float remainderf(float x, float y) { return __nv_remainderf(x, y); }
WT_D double remainder(double x, double y) { return __nv_remainder(x, y); }
WT_D float hypotf(float x, float y) { return __nv_hypotf(x, y); }
WT_D double hypot(double x, double y) { return __nv_hypot(x, y); }
WT_D float rhypotf(float x, float y) { return __nv_rhypotf(x, y); }
WT_D double rhypot(double x, double y) { return __nv_rhypot(x, y); }
WT_D float nextafterf(float x, float y) { return __nv_nextafterf(x, y); }
WT_D double nextafter(double x, double y) { return __nv_nextafter(x, y); }

// What is one instruction, or a few exact ones.
WT_D float sqrtf(float x) { return __builtin_sqrtf(x); }
WT_D double sqrt(double x) { return __builtin_sqrt(x); }
WT_D float rsqrtf(float x) { return __nvvm_rsqrt_approx_f(x); }
WT_D double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
WT_D float fabsf(float x) { return __builtin_fabsf(x); }
WT_D double fabs(double x) { return __builtin_fabs(x); }
WT_D float floorf(float x) { return __builtin_floorf(x); }
WT_D double floor(double x) { return __builtin_floor(x); }
WT_D float ceilf(float x) { return __builtin_ceilf(x); }
WT_D double ceil(double x) { return __builtin_ceil(x); }
WT_D float truncf(float x) { return __builtin_truncf(x); }
WT_D double trunc(double x) { return __builtin_trunc(x); }
WT_D float rintf(float x) { return __builtin_rintf(x); }
WT_D double rint(double x) { return __builtin_rint(x); }
WT_D float nearbyintf(float x) { return __builtin_nearbyintf(x); }
WT_D double nearbyint(double x) { return __builtin_nearbyint(x); }
WT_D float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
WT_D double copysign(double x, double y) { return __builtin_copysign(x, y); }
WT_D float roundf(float x) { float t = __builtin_truncf(x); return __builtin_fabsf(x - t) >= 0.5f ? t + __builtin_copysignf(1.f, x) : __builtin_copysignf(t, x); }
WT_D double round(double x) { double t = __builtin_trunc(x); return __builtin_fabs(x - t) >= 0.5 ? t + __builtin_copysign(1.0, x) : __builtin_copysign(t, x); }
WT_D long lroundf(float x) { return (long)roundf(x); }
WT_D long lround(double x) { return (long)round(x); }
WT_D long long llroundf(float x) { return (long long)roundf(x); }
WT_D long long llround(double x) { return (long long)round(x); }
WT_D long lrintf(float x) { return (long)__builtin_rintf(x); }
WT_D long lrint(double x) { return (long)__builtin_rint(x); }
WT_D long long llrintf(float x) { return (long long)__builtin_rintf(x); }
WT_D long long llrint(double x) { return (long long)__builtin_rint(x); }
WT_D float fmaxf(float x, float y) { return __nvvm_fmax_f(x, y); }
WT_D double fmax(double x, double y) { return __nvvm_fmax_d(x, y); }
WT_D float fminf(float x, float y) { return __nvvm_fmin_f(x, y); }
WT_D double fmin(double x, double y) { return __nvvm_fmin_d(x, y); }
WT_D float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
WT_D double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
WT_D float fdimf(float x, float y) { return x > y ? x - y : (x <= y ? 0.f : x + y); }
WT_D double fdim(double x, double y) { return x > y ? x - y : (x <= y ? 0.0 : x + y); }
WT_D float fdividef(float x, float y) { return x / y; }
WT_D void sincosf(float x, float *s, float *c) { *s = sinf(x); *c = cosf(x); }
WT_D void sincos(double x, double *s, double *c) { *s = sin(x); *c = cos(x); }
WT_D void sincospif(float x, float *s, float *c) { *s = sinpif(x); *c = cospif(x); }
WT_D void sincospi(double x, double *s, double *c) { *s = sinpi(x); *c = cospi(x); }
WT_D float ldexpf(float x, int n) { return __nv_ldexpf(x, n); }
WT_D double ldexp(double x, int n) { return __nv_ldexp(x, n); }
WT_D float scalbnf(float x, int n) { return __nv_ldexpf(x, n); }
WT_D double scalbn(double x, int n) { return __nv_ldexp(x, n); }
WT_D float powif(float x, int n) { return __nv_powif(x, n); }
WT_D double powi(double x, int n) { return __nv_powi(x, n); }
WT_D float modff(float x, float *whole) { *whole = __builtin_truncf(x); return __builtin_isinf(x) ? __builtin_copysignf(0.f, x) : __builtin_copysignf(x - *whole, x); }
WT_D double modf(double x, double *whole) { *whole = __builtin_trunc(x); return __builtin_isinf(x) ? __builtin_copysign(0.0, x) : __builtin_copysign(x - *whole, x); }
WT_D int ilogbf(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); u &= 0x7fffffffu; if (!u) return -2147483647 - 1; if (u >= 0x7f800000u) return 2147483647; return u < 0x800000u ? -118 - __builtin_clz(u) : (int)(u >> 23) - 127; }
WT_D float logbf(float x) { return x == 0.f ? -__builtin_inff() : __builtin_isinf(x) ? __builtin_inff() : x != x ? x : (float)ilogbf(x); }
WT_D float frexpf(float x, int *e) { if (x == 0.f || x != x || __builtin_isinf(x)) { *e = 0; return x; } *e = ilogbf(x) + 1; return __nv_ldexpf(x, -*e); }
WT_D double frexp(double x, int *e) { if (x == 0.0 || x != x || __builtin_isinf(x)) { *e = 0; return x; } unsigned long long u; __builtin_memcpy(&u, &x, 8); int shift = 0; if (!(u << 1 >> 53)) { x *= 18014398509481984.0; shift = 54; __builtin_memcpy(&u, &x, 8); } *e = (int)(u << 1 >> 53) - 1022 - shift; u = (u & 0x800fffffffffffffull) | 0x3fe0000000000000ull; __builtin_memcpy(&x, &u, 8); return x; }
WT_D float norm3df(float a, float b, float c) { return __builtin_sqrtf(a * a + b * b + c * c); }
WT_D double norm3d(double a, double b, double c) { return __builtin_sqrt(a * a + b * b + c * c); }
WT_D float rnorm3df(float a, float b, float c) { return rsqrtf(a * a + b * b + c * c); }
WT_D float norm4df(float a, float b, float c, float d) { return __builtin_sqrtf(a * a + b * b + c * c + d * d); }
WT_D int abs(int x) { return x < 0 ? -x : x; }
WT_D long labs(long x) { return x < 0 ? -x : x; }
WT_D long long llabs(long long x) { return x < 0 ? -x : x; }
WT_D long abs(long x) { return x < 0 ? -x : x; }
WT_D long long abs(long long x) { return x < 0 ? -x : x; }
WT_D float abs(float x) { return __builtin_fabsf(x); }
WT_D double abs(double x) { return __builtin_fabs(x); }
WT_D bool isnan(float x) { return __builtin_isnan(x); }
WT_D bool isnan(double x) { return __builtin_isnan(x); }
WT_D bool isinf(float x) { return __builtin_isinf(x); }
WT_D bool isinf(double x) { return __builtin_isinf(x); }
WT_D bool isfinite(float x) { return __builtin_isfinite(x); }
WT_D bool isfinite(double x) { return __builtin_isfinite(x); }
WT_D bool signbit(float x) { return __builtin_signbitf(x); }
WT_D bool signbit(double x) { return __builtin_signbit(x); }
WT_D int __isnanf(float x) { return __builtin_isnan(x); }
WT_D int __isinff(float x) { return __builtin_isinf(x); }
WT_D int __finitef(float x) { return __builtin_isfinite(x); }
WT_D int __signbitf(float x) { return __builtin_signbitf(x); }

WT_D float exp(float x) { return expf(x); }
WT_D float exp2(float x) { return exp2f(x); }
WT_D float expm1(float x) { return expm1f(x); }
WT_D float log(float x) { return logf(x); }
WT_D float log2(float x) { return log2f(x); }
WT_D float log10(float x) { return log10f(x); }
WT_D float log1p(float x) { return log1pf(x); }
WT_D float sin(float x) { return sinf(x); }
WT_D float cos(float x) { return cosf(x); }
WT_D float tan(float x) { return tanf(x); }
WT_D float asin(float x) { return asinf(x); }
WT_D float acos(float x) { return acosf(x); }
WT_D float atan(float x) { return atanf(x); }
WT_D float sinh(float x) { return sinhf(x); }
WT_D float cosh(float x) { return coshf(x); }
WT_D float tanh(float x) { return tanhf(x); }
WT_D float asinh(float x) { return asinhf(x); }
WT_D float acosh(float x) { return acoshf(x); }
WT_D float atanh(float x) { return atanhf(x); }
WT_D float cbrt(float x) { return cbrtf(x); }
WT_D float erf(float x) { return erff(x); }
WT_D float erfc(float x) { return erfcf(x); }
WT_D float lgamma(float x) { return lgammaf(x); }
WT_D float tgamma(float x) { return tgammaf(x); }
WT_D float sqrt(float x) { return sqrtf(x); }
WT_D float fabs(float x) { return fabsf(x); }
WT_D float floor(float x) { return floorf(x); }
WT_D float ceil(float x) { return ceilf(x); }
WT_D float trunc(float x) { return truncf(x); }
WT_D float round(float x) { return roundf(x); }
WT_D float rint(float x) { return rintf(x); }
WT_D float nearbyint(float x) { return nearbyintf(x); }
WT_D float atan2(float x, float y) { return atan2f(x, y); }
WT_D float pow(float x, float y) { return powf(x, y); }
WT_D float fmod(float x, float y) { return fmodf(x, y); }
WT_D float remainder(float x, float y) { return remainderf(x, y); }
WT_D float hypot(float x, float y) { return hypotf(x, y); }
WT_D float nextafter(float x, float y) { return nextafterf(x, y); }
WT_D float fmax(float x, float y) { return fmaxf(x, y); }
WT_D float fmin(float x, float y) { return fminf(x, y); }
WT_D float fdim(float x, float y) { return fdimf(x, y); }
WT_D float copysign(float x, float y) { return copysignf(x, y); }
WT_D float fma(float x, float y, float z) { return fmaf(x, y, z); }
WT_D float rsqrt(float x) { return rsqrtf(x); }
WT_D float exp10(float x) { return exp10f(x); }
WT_D float sinpi(float x) { return sinpif(x); }
WT_D float cospi(float x) { return cospif(x); }
WT_D float rcbrt(float x) { return rcbrtf(x); }
WT_D float erfinv(float x) { return erfinvf(x); }
WT_D float erfcinv(float x) { return erfcinvf(x); }
WT_D float erfcx(float x) { return erfcxf(x); }
WT_D float normcdf(float x) { return normcdff(x); }
WT_D float normcdfinv(float x) { return normcdfinvf(x); }
WT_D float ldexp(float x, int n) { return ldexpf(x, n); }
WT_D float frexp(float x, int *e) { return frexpf(x, e); }
WT_D float modf(float x, float *w) { return modff(x, w); }
WT_D long lround(float x) { return lroundf(x); }
WT_D long lrint(float x) { return lrintf(x); }
WT_D float scalbn(float x, int n) { return ldexpf(x, n); }

// Integers and mixed types count as double, as in C++.
template <bool, class T = void> struct windtunnel_if {};
template <class T> struct windtunnel_if<true, T> { typedef T type; };
template <class T> struct windtunnel_integer { static constexpr bool value = __is_integral(T); };
template <class T, class U> struct windtunnel_mixed {
  static constexpr bool value = (__is_arithmetic(T) && __is_arithmetic(U)) && !(__is_same(T, U) && __is_floating_point(T)) && !__is_same(T, _Float16) && !__is_same(U, _Float16);
};
#define WINDTUNNEL_OF_INTEGERS(NAME) \
  template <class T> static __device__ __forceinline__ typename windtunnel_if<windtunnel_integer<T>::value, double>::type NAME(T x) { return NAME((double)x); }
#define WINDTUNNEL_OF_MIXED(NAME) \
  template <class T, class U> static __device__ __forceinline__ typename windtunnel_if<windtunnel_mixed<T, U>::value, double>::type NAME(T x, U y) { return NAME((double)x, (double)y); }
WINDTUNNEL_OF_INTEGERS(exp)
WINDTUNNEL_OF_INTEGERS(exp2)
WINDTUNNEL_OF_INTEGERS(expm1)
WINDTUNNEL_OF_INTEGERS(log)
WINDTUNNEL_OF_INTEGERS(log2)
WINDTUNNEL_OF_INTEGERS(log10)
WINDTUNNEL_OF_INTEGERS(log1p)
WINDTUNNEL_OF_INTEGERS(sin)
WINDTUNNEL_OF_INTEGERS(cos)
WINDTUNNEL_OF_INTEGERS(tan)
WINDTUNNEL_OF_INTEGERS(asin)
WINDTUNNEL_OF_INTEGERS(acos)
WINDTUNNEL_OF_INTEGERS(atan)
WINDTUNNEL_OF_INTEGERS(sinh)
WINDTUNNEL_OF_INTEGERS(cosh)
WINDTUNNEL_OF_INTEGERS(tanh)
WINDTUNNEL_OF_INTEGERS(asinh)
WINDTUNNEL_OF_INTEGERS(acosh)
WINDTUNNEL_OF_INTEGERS(atanh)
WINDTUNNEL_OF_INTEGERS(cbrt)
WINDTUNNEL_OF_INTEGERS(erf)
WINDTUNNEL_OF_INTEGERS(erfc)
WINDTUNNEL_OF_INTEGERS(lgamma)
WINDTUNNEL_OF_INTEGERS(tgamma)
WINDTUNNEL_OF_INTEGERS(sqrt)
WINDTUNNEL_OF_INTEGERS(fabs)
WINDTUNNEL_OF_INTEGERS(floor)
WINDTUNNEL_OF_INTEGERS(ceil)
WINDTUNNEL_OF_INTEGERS(trunc)
WINDTUNNEL_OF_INTEGERS(round)
WINDTUNNEL_OF_INTEGERS(rint)
WINDTUNNEL_OF_INTEGERS(nearbyint)
WINDTUNNEL_OF_INTEGERS(rsqrt)
WINDTUNNEL_OF_MIXED(atan2)
WINDTUNNEL_OF_MIXED(pow)
WINDTUNNEL_OF_MIXED(fmod)
WINDTUNNEL_OF_MIXED(remainder)
WINDTUNNEL_OF_MIXED(hypot)
WINDTUNNEL_OF_MIXED(nextafter)
WINDTUNNEL_OF_MIXED(fmax)
WINDTUNNEL_OF_MIXED(fmin)
WINDTUNNEL_OF_MIXED(fdim)
WINDTUNNEL_OF_MIXED(copysign)
#undef WINDTUNNEL_OF_INTEGERS
#undef WINDTUNNEL_OF_MIXED

// The same in std, where <cmath> has functions for the host alone, or constexpr ones that call the host's library.
namespace std {
using ::abs;
using ::acos;
using ::acosh;
using ::asin;
using ::asinh;
using ::atan;
using ::atan2;
using ::atanh;
using ::cbrt;
using ::ceil;
using ::copysign;
using ::cos;
using ::cosh;
using ::erf;
using ::erfc;
using ::exp;
using ::exp2;
using ::expm1;
using ::fabs;
using ::fdim;
using ::floor;
using ::fma;
using ::fmax;
using ::fmin;
using ::fmod;
using ::frexp;
using ::hypot;
using ::ldexp;
using ::lgamma;
using ::llrint;
using ::llround;
using ::log;
using ::log10;
using ::log1p;
using ::log2;
using ::lrint;
using ::lround;
using ::modf;
using ::nearbyint;
using ::nextafter;
using ::pow;
using ::remainder;
using ::rint;
using ::round;
using ::scalbn;
using ::sin;
using ::sinh;
using ::sqrt;
using ::tan;
using ::tanh;
using ::tgamma;
using ::trunc;
using ::expf;
using ::exp2f;
using ::expm1f;
using ::logf;
using ::log2f;
using ::log10f;
using ::log1pf;
using ::sinf;
using ::cosf;
using ::tanf;
using ::asinf;
using ::acosf;
using ::atanf;
using ::sinhf;
using ::coshf;
using ::tanhf;
using ::asinhf;
using ::acoshf;
using ::atanhf;
using ::cbrtf;
using ::erff;
using ::erfcf;
using ::lgammaf;
using ::tgammaf;
using ::sqrtf;
using ::fabsf;
using ::floorf;
using ::ceilf;
using ::truncf;
using ::roundf;
using ::rintf;
using ::nearbyintf;
using ::atan2f;
using ::powf;
using ::fmodf;
using ::remainderf;
using ::hypotf;
using ::fmaxf;
using ::fminf;
using ::fdimf;
using ::copysignf;
using ::nextafterf;
using ::fmaf;
using ::ldexpf;
}  // namespace std

// CUDA's min and max, on both sides.
#define WT_HD static __host__ __device__ __forceinline__
#define WINDTUNNEL_ORDER(T) WT_HD T min(T a, T b) { return b < a ? b : a; } WT_HD T max(T a, T b) { return a < b ? b : a; }
WINDTUNNEL_ORDER(int) WINDTUNNEL_ORDER(unsigned int) WINDTUNNEL_ORDER(long) WINDTUNNEL_ORDER(unsigned long)
WINDTUNNEL_ORDER(long long) WINDTUNNEL_ORDER(unsigned long long)
#define WINDTUNNEL_ORDER_NAMED(P, T) WT_HD T P##min(T a, T b) { return min(a, b); } WT_HD T P##max(T a, T b) { return max(a, b); }
WINDTUNNEL_ORDER_NAMED(u, unsigned int) WINDTUNNEL_ORDER_NAMED(ll, long long) WINDTUNNEL_ORDER_NAMED(ull, unsigned long long)
#define WINDTUNNEL_ORDER_MIXED(T, U, R) WT_HD R min(T a, U b) { return min((R)a, (R)b); } WT_HD R min(U a, T b) { return min((R)a, (R)b); } WT_HD R max(T a, U b) { return max((R)a, (R)b); } WT_HD R max(U a, T b) { return max((R)a, (R)b); }
WINDTUNNEL_ORDER_MIXED(int, unsigned int, unsigned int)
WINDTUNNEL_ORDER_MIXED(long, unsigned long, unsigned long)
WINDTUNNEL_ORDER_MIXED(long long, unsigned long long, unsigned long long)
WT_D float min(float a, float b) { return fminf(a, b); }
WT_D float max(float a, float b) { return fmaxf(a, b); }
WT_D double min(double a, double b) { return fmin(a, b); }
WT_D double max(double a, double b) { return fmax(a, b); }
WT_D double min(float a, double b) { return fmin((double)a, b); }
WT_D double min(double a, float b) { return fmin(a, (double)b); }
WT_D double max(float a, double b) { return fmax((double)a, b); }
WT_D double max(double a, float b) { return fmax(a, (double)b); }
static __host__ inline float min(float a, float b) { return __builtin_fminf(a, b); }
static __host__ inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static __host__ inline double min(double a, double b) { return __builtin_fmin(a, b); }
static __host__ inline double max(double a, double b) { return __builtin_fmax(a, b); }
// What CUDA has on the host, too, and C has not.
static __host__ inline float rsqrtf(float x) { return 1 / __builtin_sqrtf(x); }
static __host__ inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
static __host__ inline float rcbrtf(float x) { return 1 / __builtin_cbrtf(x); }
static __host__ inline double rcbrt(double x) { return 1 / __builtin_cbrt(x); }
static __host__ inline float normcdff(float x) { return (float)(0.5 * __builtin_erfc(-x * 0.70710678118654752440)); }
static __host__ inline double normcdf(double x) { return 0.5 * __builtin_erfc(-x * 0.70710678118654752440); }
#undef WINDTUNNEL_ORDER
#undef WINDTUNNEL_ORDER_MIXED
