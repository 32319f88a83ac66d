// Half precision: the arithmetic is the GPU's own, rounded once.
#pragma once
#include "cuda_runtime.h"
#ifndef WT_HD
#define WT_HD static __host__ __device__ __forceinline__
#define WT_D static __device__ __forceinline__
#endif
struct __half_raw { unsigned short x; };
struct __half2_raw { unsigned short x, y; };
struct __align__(2) __half {
  unsigned short __x;
  __half() = default;
  __host__ __device__ __forceinline__ __half(const __half_raw &r) : __x(r.x) {}
  __host__ __device__ __forceinline__ __half(_Float16 v) { __builtin_memcpy(&__x, &v, 2); }
  __host__ __device__ __forceinline__ __half(float v) : __half((_Float16)v) {}
  __host__ __device__ __forceinline__ __half(double v) : __half((_Float16)v) {}
  __host__ __device__ __forceinline__ __half(int v) : __half((_Float16)(float)v) {}
  __host__ __device__ __forceinline__ __half(unsigned int v) : __half((_Float16)(float)v) {}
  __host__ __device__ __forceinline__ __half(short v) : __half((_Float16)(float)v) {}
  __host__ __device__ __forceinline__ __half(unsigned short v) : __half((_Float16)(float)v) {}
  __host__ __device__ __forceinline__ __half(long v) : __half((_Float16)(float)v) {}
  __host__ __device__ __forceinline__ __half(unsigned long v) : __half((_Float16)(float)v) {}
  __host__ __device__ __forceinline__ __half(long long v) : __half((_Float16)(float)v) {}
  __host__ __device__ __forceinline__ __half(unsigned long long v) : __half((_Float16)(float)v) {}
  __host__ __device__ __forceinline__ operator __half_raw() const { return __half_raw{__x}; }
  __host__ __device__ __forceinline__ _Float16 windtunnel_value() const { _Float16 v; __builtin_memcpy(&v, &__x, 2); return v; }
  __host__ __device__ __forceinline__ operator float() const { return (float)windtunnel_value(); }
  __host__ __device__ __forceinline__ __half &operator=(float v) { *this = __half(v); return *this; }
  __host__ __device__ __forceinline__ __half &operator=(double v) { *this = __half(v); return *this; }
  __host__ __device__ __forceinline__ __half &operator=(int v) { *this = __half(v); return *this; }
  __host__ __device__ __forceinline__ explicit operator bool() const { return (__x & 0x7fff) != 0; }
  __host__ __device__ __forceinline__ explicit operator int() const { return (int)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator unsigned int() const { return (unsigned int)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator short() const { return (short)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator unsigned short() const { return (unsigned short)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator signed char() const { return (signed char)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator unsigned char() const { return (unsigned char)(float)*this; }
  __host__ __device__ __forceinline__ explicit operator long long() const { return (long long)(float)*this; }
};
struct __align__(4) __half2 {
  __half x, y;
  __half2() = default;
  __host__ __device__ __forceinline__ __half2(__half a, __half b) : x(a), y(b) {}
  __host__ __device__ __forceinline__ __half2(const __half2_raw &r) : x(__half_raw{r.x}), y(__half_raw{r.y}) {}
};

typedef __half half; typedef __half2 half2;
typedef __half __nv_half; typedef __half2 __nv_half2; typedef __half nv_half; typedef __half2 nv_half2;
WT_HD float __half2float(__half a) { return (float)a; }
WT_HD __half __float2half(float a) { return __half(a); }
WT_HD __half __float2half_rn(float a) { return __half(a); }
WT_HD __half __double2half(double a) { return __half(a); }
WT_HD __half windtunnel_toward_zero(float a, __half) { __half r(a); float b = r; if (__builtin_fabsf(b) > __builtin_fabsf(a)) r.__x -= 1; return r; }
WT_HD __half __float2half_rz(float a) { return windtunnel_toward_zero(a, __half()); }
WT_HD __half __float2half_rd(float a) { __half r(a); float b = r; if (b > a) r.__x += a > 0.f ? -1 : 1; return r; }
WT_HD __half __float2half_ru(float a) { __half r(a); float b = r; if (b < a) r.__x += a > 0.f ? 1 : -1; return r; }
WT_HD unsigned short __half_as_ushort(__half a) { return a.__x; }
WT_HD short __half_as_short(__half a) { return (short)a.__x; }
WT_HD __half __ushort_as_half(unsigned short a) { return __half(__half_raw{a}); }
WT_HD __half __short_as_half(short a) { return __half(__half_raw{(unsigned short)a}); }
WT_HD int __half2int_rn(__half a) { return (int)__builtin_rintf((float)a); }
WT_HD int __half2int_rz(__half a) { return (int)__builtin_truncf((float)a); }
WT_HD int __half2int_rd(__half a) { return (int)__builtin_floorf((float)a); }
WT_HD int __half2int_ru(__half a) { return (int)__builtin_ceilf((float)a); }
WT_HD __half __int2half_rn(int a) { return __half(a); }
WT_HD unsigned int __half2uint_rn(__half a) { return (unsigned int)__builtin_rintf((float)a); }
WT_HD unsigned int __half2uint_rz(__half a) { return (unsigned int)__builtin_truncf((float)a); }
WT_HD unsigned int __half2uint_rd(__half a) { return (unsigned int)__builtin_floorf((float)a); }
WT_HD unsigned int __half2uint_ru(__half a) { return (unsigned int)__builtin_ceilf((float)a); }
WT_HD __half __uint2half_rn(unsigned int a) { return __half(a); }
WT_HD short __half2short_rn(__half a) { return (short)__builtin_rintf((float)a); }
WT_HD short __half2short_rz(__half a) { return (short)__builtin_truncf((float)a); }
WT_HD short __half2short_rd(__half a) { return (short)__builtin_floorf((float)a); }
WT_HD short __half2short_ru(__half a) { return (short)__builtin_ceilf((float)a); }
WT_HD __half __short2half_rn(short a) { return __half(a); }
WT_HD unsigned short __half2ushort_rn(__half a) { return (unsigned short)__builtin_rintf((float)a); }
WT_HD unsigned short __half2ushort_rz(__half a) { return (unsigned short)__builtin_truncf((float)a); }
WT_HD unsigned short __half2ushort_rd(__half a) { return (unsigned short)__builtin_floorf((float)a); }
WT_HD unsigned short __half2ushort_ru(__half a) { return (unsigned short)__builtin_ceilf((float)a); }
WT_HD __half __ushort2half_rn(unsigned short a) { return __half(a); }
WT_HD long long __half2ll_rn(__half a) { return (long long)__builtin_rintf((float)a); }
WT_HD long long __half2ll_rz(__half a) { return (long long)__builtin_truncf((float)a); }
WT_HD long long __half2ll_rd(__half a) { return (long long)__builtin_floorf((float)a); }
WT_HD long long __half2ll_ru(__half a) { return (long long)__builtin_ceilf((float)a); }
WT_HD __half __ll2half_rn(long long a) { return __half(a); }
WT_HD unsigned long long __half2ull_rn(__half a) { return (unsigned long long)__builtin_rintf((float)a); }
WT_HD unsigned long long __half2ull_rz(__half a) { return (unsigned long long)__builtin_truncf((float)a); }
WT_HD unsigned long long __half2ull_rd(__half a) { return (unsigned long long)__builtin_floorf((float)a); }
WT_HD unsigned long long __half2ull_ru(__half a) { return (unsigned long long)__builtin_ceilf((float)a); }
WT_HD __half __ull2half_rn(unsigned long long a) { return __half(a); }
WT_HD __half2 make_half2(__half a, __half b) { return __half2(a, b); }
WT_HD __half2 __half2half2(__half a) { return __half2(a, a); }
WT_HD __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
WT_HD __half2 __float2half2_rn(float a) { return __half2(__half(a), __half(a)); }
WT_HD __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
WT_HD __half2 __float22half2_rn(float2 a) { return __half2(__half(a.x), __half(a.y)); }
WT_HD float2 __half22float2(__half2 a) { return make_float2((float)a.x, (float)a.y); }
WT_HD __half __low2half(__half2 a) { return a.x; }
WT_HD __half __high2half(__half2 a) { return a.y; }
WT_HD __half2 __low2half2(__half2 a) { return __half2(a.x, a.x); }
WT_HD __half2 __high2half2(__half2 a) { return __half2(a.y, a.y); }
WT_HD float __low2float(__half2 a) { return (float)a.x; }
WT_HD float __high2float(__half2 a) { return (float)a.y; }
WT_HD __half2 __lowhigh2highlow(__half2 a) { return __half2(a.y, a.x); }
WT_HD __half2 __lows2half2(__half2 a, __half2 b) { return __half2(a.x, b.x); }
WT_HD __half2 __highs2half2(__half2 a, __half2 b) { return __half2(a.y, b.y); }
WT_HD __half __hadd(__half a, __half b) { return __half((_Float16)(a.windtunnel_value() + b.windtunnel_value())); }
WT_HD __half __hadd_rn(__half a, __half b) { return __half((_Float16)(a.windtunnel_value() + b.windtunnel_value())); }
WT_HD __half __hadd_sat(__half a, __half b) { float r = __hadd(a, b); return __half(r > 0.f ? (r < 1.f ? r : 1.f) : 0.f); }
WT_HD __half operator+(__half a, __half b) { return __hadd(a, b); }
WT_HD __half &operator+=(__half &a, __half b) { return a = __hadd(a, b); }
WT_HD __half2 __hadd2(__half2 a, __half2 b) { return __half2(__hadd(a.x, b.x), __hadd(a.y, b.y)); }
WT_HD __half2 __hadd2_rn(__half2 a, __half2 b) { return __hadd2(a, b); }
WT_HD __half2 operator+(__half2 a, __half2 b) { return __hadd2(a, b); }
WT_HD __half2 &operator+=(__half2 &a, __half2 b) { return a = __hadd2(a, b); }
WT_HD __half __hsub(__half a, __half b) { return __half((_Float16)(a.windtunnel_value() - b.windtunnel_value())); }
WT_HD __half __hsub_rn(__half a, __half b) { return __half((_Float16)(a.windtunnel_value() - b.windtunnel_value())); }
WT_HD __half __hsub_sat(__half a, __half b) { float r = __hsub(a, b); return __half(r > 0.f ? (r < 1.f ? r : 1.f) : 0.f); }
WT_HD __half operator-(__half a, __half b) { return __hsub(a, b); }
WT_HD __half &operator-=(__half &a, __half b) { return a = __hsub(a, b); }
WT_HD __half2 __hsub2(__half2 a, __half2 b) { return __half2(__hsub(a.x, b.x), __hsub(a.y, b.y)); }
WT_HD __half2 __hsub2_rn(__half2 a, __half2 b) { return __hsub2(a, b); }
WT_HD __half2 operator-(__half2 a, __half2 b) { return __hsub2(a, b); }
WT_HD __half2 &operator-=(__half2 &a, __half2 b) { return a = __hsub2(a, b); }
WT_HD __half __hmul(__half a, __half b) { return __half((_Float16)(a.windtunnel_value() * b.windtunnel_value())); }
WT_HD __half __hmul_rn(__half a, __half b) { return __half((_Float16)(a.windtunnel_value() * b.windtunnel_value())); }
WT_HD __half __hmul_sat(__half a, __half b) { float r = __hmul(a, b); return __half(r > 0.f ? (r < 1.f ? r : 1.f) : 0.f); }
WT_HD __half operator*(__half a, __half b) { return __hmul(a, b); }
WT_HD __half &operator*=(__half &a, __half b) { return a = __hmul(a, b); }
WT_HD __half2 __hmul2(__half2 a, __half2 b) { return __half2(__hmul(a.x, b.x), __hmul(a.y, b.y)); }
WT_HD __half2 __hmul2_rn(__half2 a, __half2 b) { return __hmul2(a, b); }
WT_HD __half2 operator*(__half2 a, __half2 b) { return __hmul2(a, b); }
WT_HD __half2 &operator*=(__half2 &a, __half2 b) { return a = __hmul2(a, b); }
WT_HD __half __hdiv(__half a, __half b) { return __half((_Float16)(a.windtunnel_value() / b.windtunnel_value())); }
WT_HD __half operator/(__half a, __half b) { return __hdiv(a, b); }
WT_HD __half &operator/=(__half &a, __half b) { return a = __hdiv(a, b); }
WT_HD __half2 __h2div(__half2 a, __half2 b) { return __half2(__hdiv(a.x, b.x), __hdiv(a.y, b.y)); }
WT_HD __half2 operator/(__half2 a, __half2 b) { return __h2div(a, b); }
WT_HD __half2 &operator/=(__half2 &a, __half2 b) { return a = __h2div(a, b); }
WT_HD __half __hfma(__half a, __half b, __half c) { return __half((_Float16)__builtin_fmaf16(a.windtunnel_value(), b.windtunnel_value(), c.windtunnel_value())); }
WT_HD __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
WT_HD __half __hfma_relu(__half a, __half b, __half c) { __half r = __hfma(a, b, c); return (float)r < 0.f ? __half(0.f) : r; }
#define WT_T __half
#define WT_T2 __half2
#define WT_NAME "f16"
#define WT_RAW __half_raw
#include "windtunnel/half_operations.h"
#undef WT_T
#undef WT_T2
#undef WT_RAW
#undef WT_NAME
