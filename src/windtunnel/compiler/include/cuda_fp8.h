// Numbers of eight bits, by the conversions of the GPU (PTX ISA, cvt with .e4m3x2 and .e5m2x2).
#pragma once
#include "cuda_fp16.h"
#include "cuda_bf16.h"
#ifdef __CUDA__
typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
static __device__ __forceinline__ __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t, __nv_fp8_interpretation_t kind) {
  unsigned short r;
  if (kind == __NV_E4M3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(v.y), "f"(v.x));
  else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(v.y), "f"(v.x));
  return r;
}
static __device__ __forceinline__ __nv_fp8_storage_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t s, __nv_fp8_interpretation_t kind) { return (__nv_fp8_storage_t)__nv_cvt_float2_to_fp8x2(make_float2(v, 0.f), s, kind); }
static __device__ __forceinline__ __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t kind) {
  unsigned int r;
  if (kind == __NV_E4M3) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(v));
  else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"(v));
  return __half2_raw{(unsigned short)r, (unsigned short)(r >> 16)};
}
static __device__ __forceinline__ __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t kind) { return __half_raw{__nv_cvt_fp8x2_to_halfraw2(v, kind).x}; }
#define WINDTUNNEL_FP8(NAME, KIND) \
  struct NAME { \
    __nv_fp8_storage_t __x; \
    NAME() = default; \
    __device__ explicit NAME(float v) : __x(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, KIND)) {} \
    __device__ explicit NAME(double v) : NAME((float)v) {} \
    __device__ explicit NAME(__half v) : NAME((float)v) {} \
    __device__ explicit NAME(__nv_bfloat16 v) : NAME((float)v) {} \
    __device__ operator float() const { return (float)__half(__nv_cvt_fp8_to_halfraw(__x, KIND)); } \
    __device__ explicit operator __half() const { return __half(__nv_cvt_fp8_to_halfraw(__x, KIND)); } \
  };
WINDTUNNEL_FP8(__nv_fp8_e4m3, __NV_E4M3)
WINDTUNNEL_FP8(__nv_fp8_e5m2, __NV_E5M2)
#undef WINDTUNNEL_FP8
#endif
