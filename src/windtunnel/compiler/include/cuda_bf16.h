// bfloat16: the arithmetic is the GPU's own, rounded once.
#pragma once
#include "cuda_runtime.h"
#ifndef WT_HD
#define WT_HD static __host__ __device__ __forceinline__
#define WT_D static __device__ __forceinline__
#endif
struct __nv_bfloat16_raw { unsigned short x; };
struct __nv_bfloat162_raw { unsigned short x, y; };
struct __align__(2) __nv_bfloat16 {
  unsigned short __x;
  __nv_bfloat16() = default;
  __host__ __device__ __forceinline__ __nv_bfloat16(const __nv_bfloat16_raw &r) : __x(r.x) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(__bf16 v) { __builtin_memcpy(&__x, &v, 2); }
  __host__ __device__ __forceinline__ __nv_bfloat16(float v) : __nv_bfloat16((__bf16)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(double v) : __nv_bfloat16((__bf16)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(int v) : __nv_bfloat16((__bf16)(float)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(unsigned int v) : __nv_bfloat16((__bf16)(float)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(short v) : __nv_bfloat16((__bf16)(float)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(unsigned short v) : __nv_bfloat16((__bf16)(float)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(long v) : __nv_bfloat16((__bf16)(float)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(unsigned long v) : __nv_bfloat16((__bf16)(float)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(long long v) : __nv_bfloat16((__bf16)(float)v) {}
  __host__ __device__ __forceinline__ __nv_bfloat16(unsigned long long v) : __nv_bfloat16((__bf16)(float)v) {}
  __host__ __device__ __forceinline__ operator __nv_bfloat16_raw() const { return __nv_bfloat16_raw{__x}; }
  __host__ __device__ __forceinline__ __bf16 windtunnel_value() const { __bf16 v; __builtin_memcpy(&v, &__x, 2); return v; }
  __host__ __device__ __forceinline__ operator float() const { return (float)windtunnel_value(); }
  __host__ __device__ __forceinline__ __nv_bfloat16 &operator=(float v) { *this = __nv_bfloat16(v); return *this; }
  __host__ __device__ __forceinline__ __nv_bfloat16 &operator=(double v) { *this = __nv_bfloat16(v); return *this; }
  __host__ __device__ __forceinline__ __nv_bfloat16 &operator=(int v) { *this = __nv_bfloat16(v); return *this; }
  __host__ __device__ __forceinline__ explicit operator bool() const { return (__x & 0x7fff) != 0; }
  __host__ __device__ __forceinline__ explicit operator int() const { return (int)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator unsigned int() const { return (unsigned int)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator short() const { return (short)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator unsigned short() const { return (unsigned short)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator signed char() const { return (signed char)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator unsigned char() const { return (unsigned char)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator long long() const { return (long long)(float)*this; }
};
struct __align__(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  __host__ __device__ __forceinline__ __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
  __host__ __device__ __forceinline__ __nv_bfloat162(const __nv_bfloat162_raw &r) : x(__nv_bfloat16_raw{r.x}), y(__nv_bfloat16_raw{r.y}) {}
};

typedef __nv_bfloat16 nv_bfloat16; typedef __nv_bfloat162 nv_bfloat162;
WT_HD float __bfloat162float(__nv_bfloat16 a) { return (float)a; }
WT_HD __nv_bfloat16 __float2bfloat16(float a) { return __nv_bfloat16(a); }
WT_HD __nv_bfloat16 __float2bfloat16_rn(float a) { return __nv_bfloat16(a); }
WT_HD __nv_bfloat16 __double2bfloat16(double a) { return __nv_bfloat16(a); }
WT_HD __nv_bfloat16 windtunnel_toward_zero(float a, __nv_bfloat16) { __nv_bfloat16 r(a); float b = r; if (__builtin_fabsf(b) > __builtin_fabsf(a)) r.__x -= 1; return r; }
WT_HD __nv_bfloat16 __float2bfloat16_rz(float a) { return windtunnel_toward_zero(a, __nv_bfloat16()); }
WT_HD __nv_bfloat16 __float2bfloat16_rd(float a) { __nv_bfloat16 r(a); float b = r; if (b > a) r.__x += a > 0.f ? -1 : 1; return r; }
WT_HD __nv_bfloat16 __float2bfloat16_ru(float a) { __nv_bfloat16 r(a); float b = r; if (b < a) r.__x += a > 0.f ? 1 : -1; return r; }
WT_HD unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.__x; }
WT_HD short __bfloat16_as_short(__nv_bfloat16 a) { return (short)a.__x; }
WT_HD __nv_bfloat16 __ushort_as_bfloat16(unsigned short a) { return __nv_bfloat16(__nv_bfloat16_raw{a}); }
WT_HD __nv_bfloat16 __short_as_bfloat16(short a) { return __nv_bfloat16(__nv_bfloat16_raw{(unsigned short)a}); }
WT_HD int __bfloat162int_rn(__nv_bfloat16 a) { return (int)__builtin_rintf((float)a); }
WT_HD int __bfloat162int_rz(__nv_bfloat16 a) { return (int)__builtin_truncf((float)a); }
WT_HD int __bfloat162int_rd(__nv_bfloat16 a) { return (int)__builtin_floorf((float)a); }
WT_HD int __bfloat162int_ru(__nv_bfloat16 a) { return (int)__builtin_ceilf((float)a); }
WT_HD __nv_bfloat16 __int2bfloat16_rn(int a) { return __nv_bfloat16(a); }
WT_HD unsigned int __bfloat162uint_rn(__nv_bfloat16 a) { return (unsigned int)__builtin_rintf((float)a); }
WT_HD unsigned int __bfloat162uint_rz(__nv_bfloat16 a) { return (unsigned int)__builtin_truncf((float)a); }
WT_HD unsigned int __bfloat162uint_rd(__nv_bfloat16 a) { return (unsigned int)__builtin_floorf((float)a); }
WT_HD unsigned int __bfloat162uint_ru(__nv_bfloat16 a) { return (unsigned int)__builtin_ceilf((float)a); }
WT_HD __nv_bfloat16 __uint2bfloat16_rn(unsigned int a) { return __nv_bfloat16(a); }
WT_HD short __bfloat162short_rn(__nv_bfloat16 a) { return (short)__builtin_rintf((float)a); }
WT_HD short __bfloat162short_rz(__nv_bfloat16 a) { return (short)__builtin_truncf((float)a); }
WT_HD short __bfloat162short_rd(__nv_bfloat16 a) { return (short)__builtin_floorf((float)a); }
WT_HD short __bfloat162short_ru(__nv_bfloat16 a) { return (short)__builtin_ceilf((float)a); }
WT_HD __nv_bfloat16 __short2bfloat16_rn(short a) { return __nv_bfloat16(a); }
WT_HD unsigned short __bfloat162ushort_rn(__nv_bfloat16 a) { return (unsigned short)__builtin_rintf((float)a); }
WT_HD unsigned short __bfloat162ushort_rz(__nv_bfloat16 a) { return (unsigned short)__builtin_truncf((float)a); }
WT_HD unsigned short __bfloat162ushort_rd(__nv_bfloat16 a) { return (unsigned short)__builtin_floorf((float)a); }
WT_HD unsigned short __bfloat162ushort_ru(__nv_bfloat16 a) { return (unsigned short)__builtin_ceilf((float)a); }
WT_HD __nv_bfloat16 __ushort2bfloat16_rn(unsigned short a) { return __nv_bfloat16(a); }
WT_HD long long __bfloat162ll_rn(__nv_bfloat16 a) { return (long long)__builtin_rintf((float)a); }
WT_HD long long __bfloat162ll_rz(__nv_bfloat16 a) { return (long long)__builtin_truncf((float)a); }
WT_HD long long __bfloat162ll_rd(__nv_bfloat16 a) { return (long long)__builtin_floorf((float)a); }
WT_HD long long __bfloat162ll_ru(__nv_bfloat16 a) { return (long long)__builtin_ceilf((float)a); }
WT_HD __nv_bfloat16 __ll2bfloat16_rn(long long a) { return __nv_bfloat16(a); }
WT_HD unsigned long long __bfloat162ull_rn(__nv_bfloat16 a) { return (unsigned long long)__builtin_rintf((float)a); }
WT_HD unsigned long long __bfloat162ull_rz(__nv_bfloat16 a) { return (unsigned long long)__builtin_truncf((float)a); }
WT_HD unsigned long long __bfloat162ull_rd(__nv_bfloat16 a) { return (unsigned long long)__builtin_floorf((float)a); }
WT_HD unsigned long long __bfloat162ull_ru(__nv_bfloat16 a) { return (unsigned long long)__builtin_ceilf((float)a); }
WT_HD __nv_bfloat16 __ull2bfloat16_rn(unsigned long long a) { return __nv_bfloat16(a); }
WT_HD __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
WT_HD __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return __nv_bfloat162(a, a); }
WT_HD __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
WT_HD __nv_bfloat162 __float2bfloat162_rn(float a) { return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(a)); }
WT_HD __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b)); }
WT_HD __nv_bfloat162 __float22bfloat162_rn(float2 a) { return __nv_bfloat162(__nv_bfloat16(a.x), __nv_bfloat16(a.y)); }
WT_HD float2 __bfloat1622float2(__nv_bfloat162 a) { return make_float2((float)a.x, (float)a.y); }
WT_HD __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
WT_HD __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
WT_HD __nv_bfloat162 __low2bfloat162(__nv_bfloat162 a) { return __nv_bfloat162(a.x, a.x); }
WT_HD __nv_bfloat162 __high2bfloat162(__nv_bfloat162 a) { return __nv_bfloat162(a.y, a.y); }
WT_HD float __low2float(__nv_bfloat162 a) { return (float)a.x; }
WT_HD float __high2float(__nv_bfloat162 a) { return (float)a.y; }
WT_HD __nv_bfloat162 __lowhigh2highlow(__nv_bfloat162 a) { return __nv_bfloat162(a.y, a.x); }
WT_HD __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(a.x, b.x); }
WT_HD __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(a.y, b.y); }
WT_HD __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16((float)a + (float)b); }
WT_HD __nv_bfloat16 __hadd_rn(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16((float)a + (float)b); }
WT_HD __nv_bfloat16 __hadd_sat(__nv_bfloat16 a, __nv_bfloat16 b) { float r = __hadd(a, b); return __nv_bfloat16(r > 0.f ? (r < 1.f ? r : 1.f) : 0.f); }
WT_HD __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) { return __hadd(a, b); }
WT_HD __nv_bfloat16 &operator+=(__nv_bfloat16 &a, __nv_bfloat16 b) { return a = __hadd(a, b); }
WT_HD __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(__hadd(a.x, b.x), __hadd(a.y, b.y)); }
WT_HD __nv_bfloat162 __hadd2_rn(__nv_bfloat162 a, __nv_bfloat162 b) { return __hadd2(a, b); }
WT_HD __nv_bfloat162 operator+(__nv_bfloat162 a, __nv_bfloat162 b) { return __hadd2(a, b); }
WT_HD __nv_bfloat162 &operator+=(__nv_bfloat162 &a, __nv_bfloat162 b) { return a = __hadd2(a, b); }
WT_HD __nv_bfloat16 __hsub(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16((float)a - (float)b); }
WT_HD __nv_bfloat16 __hsub_rn(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16((float)a - (float)b); }
WT_HD __nv_bfloat16 __hsub_sat(__nv_bfloat16 a, __nv_bfloat16 b) { float r = __hsub(a, b); return __nv_bfloat16(r > 0.f ? (r < 1.f ? r : 1.f) : 0.f); }
WT_HD __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b) { return __hsub(a, b); }
WT_HD __nv_bfloat16 &operator-=(__nv_bfloat16 &a, __nv_bfloat16 b) { return a = __hsub(a, b); }
WT_HD __nv_bfloat162 __hsub2(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(__hsub(a.x, b.x), __hsub(a.y, b.y)); }
WT_HD __nv_bfloat162 __hsub2_rn(__nv_bfloat162 a, __nv_bfloat162 b) { return __hsub2(a, b); }
WT_HD __nv_bfloat162 operator-(__nv_bfloat162 a, __nv_bfloat162 b) { return __hsub2(a, b); }
WT_HD __nv_bfloat162 &operator-=(__nv_bfloat162 &a, __nv_bfloat162 b) { return a = __hsub2(a, b); }
WT_HD __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16((float)a * (float)b); }
WT_HD __nv_bfloat16 __hmul_rn(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16((float)a * (float)b); }
WT_HD __nv_bfloat16 __hmul_sat(__nv_bfloat16 a, __nv_bfloat16 b) { float r = __hmul(a, b); return __nv_bfloat16(r > 0.f ? (r < 1.f ? r : 1.f) : 0.f); }
WT_HD __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) { return __hmul(a, b); }
WT_HD __nv_bfloat16 &operator*=(__nv_bfloat16 &a, __nv_bfloat16 b) { return a = __hmul(a, b); }
WT_HD __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(__hmul(a.x, b.x), __hmul(a.y, b.y)); }
WT_HD __nv_bfloat162 __hmul2_rn(__nv_bfloat162 a, __nv_bfloat162 b) { return __hmul2(a, b); }
WT_HD __nv_bfloat162 operator*(__nv_bfloat162 a, __nv_bfloat162 b) { return __hmul2(a, b); }
WT_HD __nv_bfloat162 &operator*=(__nv_bfloat162 &a, __nv_bfloat162 b) { return a = __hmul2(a, b); }
WT_HD __nv_bfloat16 __hdiv(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16((float)a / (float)b); }
WT_HD __nv_bfloat16 operator/(__nv_bfloat16 a, __nv_bfloat16 b) { return __hdiv(a, b); }
WT_HD __nv_bfloat16 &operator/=(__nv_bfloat16 &a, __nv_bfloat16 b) { return a = __hdiv(a, b); }
WT_HD __nv_bfloat162 __h2div(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(__hdiv(a.x, b.x), __hdiv(a.y, b.y)); }
WT_HD __nv_bfloat162 operator/(__nv_bfloat162 a, __nv_bfloat162 b) { return __h2div(a, b); }
WT_HD __nv_bfloat162 &operator/=(__nv_bfloat162 &a, __nv_bfloat162 b) { return a = __h2div(a, b); }
WT_HD __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) { 
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned short r; asm("fma.rn.bf16 %0, %1, %2, %3;" : "=h"(r) : "h"(a.__x), "h"(b.__x), "h"(c.__x)); return __ushort_as_bfloat16(r);
#else
  return __nv_bfloat16((float)((double)(float)a * (double)(float)b + (double)(float)c));
#endif
 }
WT_HD __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) { return __nv_bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
WT_HD __nv_bfloat16 __hfma_relu(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) { __nv_bfloat16 r = __hfma(a, b, c); return (float)r < 0.f ? __nv_bfloat16(0.f) : r; }
#define WT_T __nv_bfloat16
#define WT_T2 __nv_bfloat162
#define WT_NAME "bf16"
#define WT_RAW __nv_bfloat16_raw
#include "windtunnel/half_operations.h"
#undef WT_T
#undef WT_T2
#undef WT_RAW
#undef WT_NAME
