// CUDA's vector types (CUDA C++ Programming Guide, "Built-in Vector Types": sizes and alignments).
#pragma once
#define __VECTOR_TYPES_H__
#include "host_defines.h"

struct char1 { signed char x; };
static __host__ __device__ __forceinline__ char1 make_char1(signed char x) { return char1{x}; }
struct __align__(2) char2 { signed char x, y; };
static __host__ __device__ __forceinline__ char2 make_char2(signed char x, signed char y) { return char2{x, y}; }
struct char3 { signed char x, y, z; };
static __host__ __device__ __forceinline__ char3 make_char3(signed char x, signed char y, signed char z) { return char3{x, y, z}; }
struct __align__(4) char4 { signed char x, y, z, w; };
static __host__ __device__ __forceinline__ char4 make_char4(signed char x, signed char y, signed char z, signed char w) { return char4{x, y, z, w}; }
struct uchar1 { unsigned char x; };
static __host__ __device__ __forceinline__ uchar1 make_uchar1(unsigned char x) { return uchar1{x}; }
struct __align__(2) uchar2 { unsigned char x, y; };
static __host__ __device__ __forceinline__ uchar2 make_uchar2(unsigned char x, unsigned char y) { return uchar2{x, y}; }
struct uchar3 { unsigned char x, y, z; };
static __host__ __device__ __forceinline__ uchar3 make_uchar3(unsigned char x, unsigned char y, unsigned char z) { return uchar3{x, y, z}; }
struct __align__(4) uchar4 { unsigned char x, y, z, w; };
static __host__ __device__ __forceinline__ uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return uchar4{x, y, z, w}; }
struct short1 { short x; };
static __host__ __device__ __forceinline__ short1 make_short1(short x) { return short1{x}; }
struct __align__(4) short2 { short x, y; };
static __host__ __device__ __forceinline__ short2 make_short2(short x, short y) { return short2{x, y}; }
struct short3 { short x, y, z; };
static __host__ __device__ __forceinline__ short3 make_short3(short x, short y, short z) { return short3{x, y, z}; }
struct __align__(8) short4 { short x, y, z, w; };
static __host__ __device__ __forceinline__ short4 make_short4(short x, short y, short z, short w) { return short4{x, y, z, w}; }
struct ushort1 { unsigned short x; };
static __host__ __device__ __forceinline__ ushort1 make_ushort1(unsigned short x) { return ushort1{x}; }
struct __align__(4) ushort2 { unsigned short x, y; };
static __host__ __device__ __forceinline__ ushort2 make_ushort2(unsigned short x, unsigned short y) { return ushort2{x, y}; }
struct ushort3 { unsigned short x, y, z; };
static __host__ __device__ __forceinline__ ushort3 make_ushort3(unsigned short x, unsigned short y, unsigned short z) { return ushort3{x, y, z}; }
struct __align__(8) ushort4 { unsigned short x, y, z, w; };
static __host__ __device__ __forceinline__ ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) { return ushort4{x, y, z, w}; }
struct int1 { int x; };
static __host__ __device__ __forceinline__ int1 make_int1(int x) { return int1{x}; }
struct __align__(8) int2 { int x, y; };
static __host__ __device__ __forceinline__ int2 make_int2(int x, int y) { return int2{x, y}; }
struct int3 { int x, y, z; };
static __host__ __device__ __forceinline__ int3 make_int3(int x, int y, int z) { return int3{x, y, z}; }
struct __align__(16) int4 { int x, y, z, w; };
static __host__ __device__ __forceinline__ int4 make_int4(int x, int y, int z, int w) { return int4{x, y, z, w}; }
struct uint1 { unsigned int x; };
static __host__ __device__ __forceinline__ uint1 make_uint1(unsigned int x) { return uint1{x}; }
struct __align__(8) uint2 { unsigned int x, y; };
static __host__ __device__ __forceinline__ uint2 make_uint2(unsigned int x, unsigned int y) { return uint2{x, y}; }
struct uint3 { unsigned int x, y, z; };
static __host__ __device__ __forceinline__ uint3 make_uint3(unsigned int x, unsigned int y, unsigned int z) { return uint3{x, y, z}; }
struct __align__(16) uint4 { unsigned int x, y, z, w; };
static __host__ __device__ __forceinline__ uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return uint4{x, y, z, w}; }
struct long1 { long x; };
static __host__ __device__ __forceinline__ long1 make_long1(long x) { return long1{x}; }
struct __align__(16) long2 { long x, y; };
static __host__ __device__ __forceinline__ long2 make_long2(long x, long y) { return long2{x, y}; }
struct long3 { long x, y, z; };
static __host__ __device__ __forceinline__ long3 make_long3(long x, long y, long z) { return long3{x, y, z}; }
struct __align__(16) long4 { long x, y, z, w; };
static __host__ __device__ __forceinline__ long4 make_long4(long x, long y, long z, long w) { return long4{x, y, z, w}; }
struct ulong1 { unsigned long x; };
static __host__ __device__ __forceinline__ ulong1 make_ulong1(unsigned long x) { return ulong1{x}; }
struct __align__(16) ulong2 { unsigned long x, y; };
static __host__ __device__ __forceinline__ ulong2 make_ulong2(unsigned long x, unsigned long y) { return ulong2{x, y}; }
struct ulong3 { unsigned long x, y, z; };
static __host__ __device__ __forceinline__ ulong3 make_ulong3(unsigned long x, unsigned long y, unsigned long z) { return ulong3{x, y, z}; }
struct __align__(16) ulong4 { unsigned long x, y, z, w; };
static __host__ __device__ __forceinline__ ulong4 make_ulong4(unsigned long x, unsigned long y, unsigned long z, unsigned long w) { return ulong4{x, y, z, w}; }
struct longlong1 { long long x; };
static __host__ __device__ __forceinline__ longlong1 make_longlong1(long long x) { return longlong1{x}; }
struct __align__(16) longlong2 { long long x, y; };
static __host__ __device__ __forceinline__ longlong2 make_longlong2(long long x, long long y) { return longlong2{x, y}; }
struct longlong3 { long long x, y, z; };
static __host__ __device__ __forceinline__ longlong3 make_longlong3(long long x, long long y, long long z) { return longlong3{x, y, z}; }
struct __align__(16) longlong4 { long long x, y, z, w; };
static __host__ __device__ __forceinline__ longlong4 make_longlong4(long long x, long long y, long long z, long long w) { return longlong4{x, y, z, w}; }
struct ulonglong1 { unsigned long long x; };
static __host__ __device__ __forceinline__ ulonglong1 make_ulonglong1(unsigned long long x) { return ulonglong1{x}; }
struct __align__(16) ulonglong2 { unsigned long long x, y; };
static __host__ __device__ __forceinline__ ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return ulonglong2{x, y}; }
struct ulonglong3 { unsigned long long x, y, z; };
static __host__ __device__ __forceinline__ ulonglong3 make_ulonglong3(unsigned long long x, unsigned long long y, unsigned long long z) { return ulonglong3{x, y, z}; }
struct __align__(16) ulonglong4 { unsigned long long x, y, z, w; };
static __host__ __device__ __forceinline__ ulonglong4 make_ulonglong4(unsigned long long x, unsigned long long y, unsigned long long z, unsigned long long w) { return ulonglong4{x, y, z, w}; }
struct float1 { float x; };
static __host__ __device__ __forceinline__ float1 make_float1(float x) { return float1{x}; }
struct __align__(8) float2 { float x, y; };
static __host__ __device__ __forceinline__ float2 make_float2(float x, float y) { return float2{x, y}; }
struct float3 { float x, y, z; };
static __host__ __device__ __forceinline__ float3 make_float3(float x, float y, float z) { return float3{x, y, z}; }
struct __align__(16) float4 { float x, y, z, w; };
static __host__ __device__ __forceinline__ float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
struct double1 { double x; };
static __host__ __device__ __forceinline__ double1 make_double1(double x) { return double1{x}; }
struct __align__(16) double2 { double x, y; };
static __host__ __device__ __forceinline__ double2 make_double2(double x, double y) { return double2{x, y}; }
struct double3 { double x, y, z; };
static __host__ __device__ __forceinline__ double3 make_double3(double x, double y, double z) { return double3{x, y, z}; }
struct __align__(16) double4 { double x, y, z, w; };
static __host__ __device__ __forceinline__ double4 make_double4(double x, double y, double z, double w) { return double4{x, y, z, w}; }

struct windtunnel_threadIdx;
struct windtunnel_blockIdx;
struct dim3 {
  unsigned int x, y, z;
  __host__ __device__ constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
  __host__ __device__ constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
#ifdef __CUDA__
  __device__ __forceinline__ dim3(const windtunnel_threadIdx &);
  __device__ __forceinline__ dim3(const windtunnel_blockIdx &);
#endif
  __host__ __device__ constexpr operator uint3() const { return uint3{x, y, z}; }
};
