// CUDA's intrinsics: bits, casts, rounding, votes and shuffles of a warp, barriers and fences.
#pragma once
#include "math.h"
#include "../vector_types.h"

// ---------------------------------------------------------------- bits
WT_D int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
WT_D int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
WT_D int __ffs(int x) { return __builtin_ffs(x); }
WT_D int __ffsll(long long x) { return __builtin_ffsll(x); }
WT_D int __popc(unsigned int x) { return __builtin_popcount(x); }
WT_D int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
WT_D unsigned int __brev(unsigned int x) { return __builtin_bitreverse32(x); }
WT_D unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
WT_D unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int s) { unsigned int r; asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(s)); return r; }
WT_D unsigned int __funnelshift_l(unsigned int lo, unsigned int hi, unsigned int n) { n &= 31; return n ? hi << n | lo >> (32 - n) : hi; }
WT_D unsigned int __funnelshift_r(unsigned int lo, unsigned int hi, unsigned int n) { n &= 31; return n ? lo >> n | hi << (32 - n) : lo; }
WT_D unsigned int __funnelshift_lc(unsigned int lo, unsigned int hi, unsigned int n) { return n < 32 ? __funnelshift_l(lo, hi, n) : lo; }
WT_D unsigned int __funnelshift_rc(unsigned int lo, unsigned int hi, unsigned int n) { return n < 32 ? __funnelshift_r(lo, hi, n) : hi; }
WT_D int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
WT_D unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)((unsigned long long)a * b >> 32); }
WT_D long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
WT_D unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
WT_D int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
WT_D unsigned int __umul24(unsigned int a, unsigned int b) { return (a & 0xffffffu) * (b & 0xffffffu); }
WT_D unsigned int __sad(int a, int b, unsigned int c) { return (a > b ? (unsigned)a - (unsigned)b : (unsigned)b - (unsigned)a) + c; }
WT_D unsigned int __usad(unsigned int a, unsigned int b, unsigned int c) { return (a > b ? a - b : b - a) + c; }
WT_D int __dp4a(int a, int b, int c) { for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i); return c; }
WT_D unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int c) { for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255); return c; }
WT_D int __hadd(int a, int b) { return (a & b) + ((a ^ b) >> 1); }
WT_D unsigned int __uhadd(unsigned int a, unsigned int b) { return (a & b) + ((a ^ b) >> 1); }

// ---------------------------------------------------------------- casts
#define WINDTUNNEL_CAST(NAME, TO, FROM) WT_D TO NAME(FROM x) { TO y; __builtin_memcpy(&y, &x, sizeof(y)); return y; }
WINDTUNNEL_CAST(__float_as_int, int, float) WINDTUNNEL_CAST(__int_as_float, float, int)
WINDTUNNEL_CAST(__float_as_uint, unsigned int, float) WINDTUNNEL_CAST(__uint_as_float, float, unsigned int)
WINDTUNNEL_CAST(__double_as_longlong, long long, double) WINDTUNNEL_CAST(__longlong_as_double, double, long long)
#undef WINDTUNNEL_CAST
WT_D int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
WT_D int __double2loint(double x) { return (int)__double_as_longlong(x); }
WT_D double __hiloint2double(int hi, int lo) { return __longlong_as_double((long long)hi << 32 | (unsigned int)lo); }

// ---------------------------------------------------------------- arithmetic and conversions with a given rounding
#define WINDTUNNEL_ROUNDED(R, P) \
  WT_D float __fadd_##R(float a, float b) { return __nvvm_add_##P##_f(a, b); } \
  WT_D float __fsub_##R(float a, float b) { return __nvvm_add_##P##_f(a, -b); } \
  WT_D float __fmul_##R(float a, float b) { return __nvvm_mul_##P##_f(a, b); } \
  WT_D float __fdiv_##R(float a, float b) { return __nvvm_div_##P##_f(a, b); } \
  WT_D float __fmaf_##R(float a, float b, float c) { return __nvvm_fma_##P##_f(a, b, c); } \
  WT_D float __frcp_##R(float a) { return __nvvm_rcp_##P##_f(a); } \
  WT_D float __fsqrt_##R(float a) { return __nvvm_sqrt_##P##_f(a); } \
  WT_D double __dadd_##R(double a, double b) { return __nvvm_add_##P##_d(a, b); } \
  WT_D double __dsub_##R(double a, double b) { return __nvvm_add_##P##_d(a, -b); } \
  WT_D double __dmul_##R(double a, double b) { return __nvvm_mul_##P##_d(a, b); } \
  WT_D double __ddiv_##R(double a, double b) { return __nvvm_div_##P##_d(a, b); } \
  WT_D double __fma_##R(double a, double b, double c) { return __nvvm_fma_##P##_d(a, b, c); } \
  WT_D double __drcp_##R(double a) { return __nvvm_rcp_##P##_d(a); } \
  WT_D double __dsqrt_##R(double a) { return __nvvm_sqrt_##P##_d(a); } \
  WT_D float __int2float_##R(int a) { return __nvvm_i2f_##P(a); } \
  WT_D float __uint2float_##R(unsigned int a) { return __nvvm_ui2f_##P(a); } \
  WT_D float __ll2float_##R(long long a) { return __nvvm_ll2f_##P(a); } \
  WT_D float __ull2float_##R(unsigned long long a) { return __nvvm_ull2f_##P(a); } \
  WT_D double __ll2double_##R(long long a) { return __nvvm_ll2d_##P(a); } \
  WT_D double __ull2double_##R(unsigned long long a) { return __nvvm_ull2d_##P(a); } \
  WT_D float __double2float_##R(double a) { return __nvvm_d2f_##P(a); } \
  WT_D int __float2int_##R(float a) { return __nvvm_f2i_##P(a); } \
  WT_D unsigned int __float2uint_##R(float a) { return __nvvm_f2ui_##P(a); } \
  WT_D long long __float2ll_##R(float a) { return __nvvm_f2ll_##P(a); } \
  WT_D unsigned long long __float2ull_##R(float a) { return __nvvm_f2ull_##P(a); } \
  WT_D int __double2int_##R(double a) { return __nvvm_d2i_##P(a); } \
  WT_D unsigned int __double2uint_##R(double a) { return __nvvm_d2ui_##P(a); } \
  WT_D long long __double2ll_##R(double a) { return __nvvm_d2ll_##P(a); } \
  WT_D unsigned long long __double2ull_##R(double a) { return __nvvm_d2ull_##P(a); }
WINDTUNNEL_ROUNDED(rn, rn) WINDTUNNEL_ROUNDED(rz, rz) WINDTUNNEL_ROUNDED(ru, rp) WINDTUNNEL_ROUNDED(rd, rm)
#undef WINDTUNNEL_ROUNDED
WT_D double __int2double_rn(int a) { return a; }
WT_D double __uint2double_rn(unsigned int a) { return a; }
WT_D float __frsqrt_rn(float a) { return __nvvm_rsqrt_approx_f(a); }

// ---------------------------------------------------------------- loads and stores with a hint for the caches, which changes no value
template <class T> WT_D T __ldg(const T *p) { return *p; }
template <class T> WT_D T __ldcg(const T *p) { return *p; }
template <class T> WT_D T __ldca(const T *p) { return *p; }
template <class T> WT_D T __ldcs(const T *p) { return *p; }
template <class T> WT_D T __ldlu(const T *p) { return *p; }
template <class T> WT_D T __ldcv(const T *p) { return *(const volatile T *)p; }
template <class T> WT_D void __stwb(T *p, T v) { *p = v; }
template <class T> WT_D void __stcg(T *p, T v) { *p = v; }
template <class T> WT_D void __stcs(T *p, T v) { *p = v; }
template <class T> WT_D void __stwt(T *p, T v) { *p = v; }

// ---------------------------------------------------------------- barriers and fences
WT_D void __syncwarp(unsigned int mask = 0xffffffffu) { __nvvm_bar_warp_sync(mask); }
WT_D int __syncthreads_count(int p) { return __nvvm_bar0_popc(p); }
WT_D int __syncthreads_and(int p) { return __nvvm_bar0_and(p); }
WT_D int __syncthreads_or(int p) { return __nvvm_bar0_or(p); }
WT_D void __threadfence_block() { __nvvm_membar_cta(); }
WT_D void __threadfence() { __nvvm_membar_gl(); }
WT_D void __threadfence_system() { __nvvm_membar_sys(); }
WT_D void __trap() { __builtin_trap(); }
WT_D void __brkpt() { asm volatile("brkpt;"); }
WT_D void __nanosleep(unsigned int ns) { asm volatile("nanosleep.u32 %0;" : : "r"(ns)); }
WT_D long long clock64() { return __nvvm_read_ptx_sreg_clock64(); }
WT_D int clock() { return __nvvm_read_ptx_sreg_clock(); }
WT_D unsigned long long globaltimer() { unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }

// ---------------------------------------------------------------- votes
WT_D unsigned int __activemask() { unsigned int m; asm volatile("activemask.b32 %0;" : "=r"(m)); return m; }
WT_D int __all_sync(unsigned int mask, int p) { return __nvvm_vote_all_sync(mask, p); }
WT_D int __any_sync(unsigned int mask, int p) { return __nvvm_vote_any_sync(mask, p); }
WT_D int __uni_sync(unsigned int mask, int p) { return __nvvm_vote_uni_sync(mask, p); }
WT_D unsigned int __ballot_sync(unsigned int mask, int p) { return __nvvm_vote_ballot_sync(mask, p); }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 700
WT_D int __all(int p) { return __nvvm_vote_all_sync(0xffffffffu, p); }
WT_D int __any(int p) { return __nvvm_vote_any_sync(0xffffffffu, p); }
WT_D unsigned int __ballot(int p) { return __nvvm_vote_ballot_sync(0xffffffffu, p); }
#endif
WT_D unsigned int __windtunnel_match_any32(unsigned int mask, unsigned int v) { unsigned int r; asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(mask)); return r; }
WT_D unsigned int __windtunnel_match_any64(unsigned int mask, unsigned long long v) { unsigned int r; asm volatile("match.any.sync.b64 %0, %1, %2;" : "=r"(r) : "l"(v), "r"(mask)); return r; }
WT_D unsigned int __windtunnel_match_all32(unsigned int mask, unsigned int v, int *p) { unsigned int r; int q; asm volatile("{ .reg .pred %%p; match.all.sync.b32 %0|%%p, %2, %3; selp.u32 %1, 1, 0, %%p; }" : "=r"(r), "=r"(q) : "r"(v), "r"(mask)); *p = q; return r; }
template <class T> WT_D unsigned int __match_any_sync(unsigned int mask, T v) {
  if constexpr (sizeof(T) == 8) { unsigned long long u; __builtin_memcpy(&u, &v, 8); return __windtunnel_match_any64(mask, u); }
  else { unsigned int u; __builtin_memcpy(&u, &v, 4); return __windtunnel_match_any32(mask, u); }
}
template <class T> WT_D unsigned int __match_all_sync(unsigned int mask, T v, int *p) { static_assert(sizeof(T) == 4); unsigned int u; __builtin_memcpy(&u, &v, 4); return __windtunnel_match_all32(mask, u, p); }
#define WINDTUNNEL_REDUX(NAME, OP, T) WT_D T NAME(unsigned int mask, T v) { T r; asm volatile("redux.sync." OP " %0, %1, %2;" : "=r"(r) : "r"(v), "r"(mask)); return r; }
WINDTUNNEL_REDUX(__reduce_add_sync, "add.s32", int) WINDTUNNEL_REDUX(__reduce_add_sync, "add.u32", unsigned int)
WINDTUNNEL_REDUX(__reduce_min_sync, "min.s32", int) WINDTUNNEL_REDUX(__reduce_min_sync, "min.u32", unsigned int)
WINDTUNNEL_REDUX(__reduce_max_sync, "max.s32", int) WINDTUNNEL_REDUX(__reduce_max_sync, "max.u32", unsigned int)
WINDTUNNEL_REDUX(__reduce_and_sync, "and.b32", unsigned int) WINDTUNNEL_REDUX(__reduce_or_sync, "or.b32", unsigned int)
WINDTUNNEL_REDUX(__reduce_xor_sync, "xor.b32", unsigned int)
#undef WINDTUNNEL_REDUX

// ---------------------------------------------------------------- shuffles, of any type of whole 32-bit words
#define WINDTUNNEL_SHUFFLE(NAME, MODE, ARGUMENT, CLAMP) \
  template <class T> WT_D T NAME(unsigned int mask, T v, ARGUMENT n, int width = warpSize) { \
    constexpr int words = (sizeof(T) + 3) / 4; \
    int w[words] = {}; \
    __builtin_memcpy(w, &v, sizeof(T)); \
    for (int i = 0; i < words; i++) w[i] = __nvvm_shfl_sync_##MODE##_i32(mask, w[i], (int)n, (32 - width) << 8 | (CLAMP)); \
    __builtin_memcpy(&v, w, sizeof(T)); \
    return v; \
  }
WINDTUNNEL_SHUFFLE(__shfl_sync, idx, int, 31)
WINDTUNNEL_SHUFFLE(__shfl_up_sync, up, unsigned int, 0)
WINDTUNNEL_SHUFFLE(__shfl_down_sync, down, unsigned int, 31)
WINDTUNNEL_SHUFFLE(__shfl_xor_sync, bfly, int, 31)
#undef WINDTUNNEL_SHUFFLE
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 700
template <class T> WT_D T __shfl(T v, int n, int width = 32) { return __shfl_sync(0xffffffffu, v, n, width); }
template <class T> WT_D T __shfl_up(T v, unsigned int n, int width = 32) { return __shfl_up_sync(0xffffffffu, v, n, width); }
template <class T> WT_D T __shfl_down(T v, unsigned int n, int width = 32) { return __shfl_down_sync(0xffffffffu, v, n, width); }
template <class T> WT_D T __shfl_xor(T v, int n, int width = 32) { return __shfl_xor_sync(0xffffffffu, v, n, width); }
#endif

// ---------------------------------------------------------------- address spaces, asynchronous copies
WT_D size_t __cvta_generic_to_shared(const void *p) { return (size_t)(unsigned int)(size_t)(__attribute__((address_space(3))) const void *)p; }
WT_D size_t __cvta_generic_to_global(const void *p) { return (size_t)(__attribute__((address_space(1))) const void *)p; }
WT_D void *__cvta_shared_to_generic(size_t p) { return (void *)(__attribute__((address_space(3))) void *)(unsigned int)p; }
WT_D void *__cvta_global_to_generic(size_t p) { return (void *)(__attribute__((address_space(1))) void *)p; }
WT_D unsigned int __isShared(const void *p) { return __nvvm_isspacep_shared(p); }
WT_D unsigned int __isClusterShared(const void *p) { return __nvvm_isspacep_shared(p); } // a block is its own cluster
WT_D unsigned int __isGridConstant(const void *) { return 0; }
WT_D unsigned int __isGlobal(const void *p) { return __nvvm_isspacep_global(p); }
WT_D unsigned int __isConstant(const void *p) { return __nvvm_isspacep_const(p); }
WT_D unsigned int __isLocal(const void *p) { return __nvvm_isspacep_local(p); }
WT_D void __pipeline_memcpy_async(void *to, const void *from, size_t size, size_t zfill = 0) {
  unsigned int a = (unsigned int)__cvta_generic_to_shared(to);
  int keep = (int)(size - zfill);
  if (size == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(a), "l"(from), "r"(keep) : "memory");
  else if (size == 8) asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" : : "r"(a), "l"(from), "r"(keep) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(a), "l"(from), "r"(keep) : "memory");
}
WT_D void __pipeline_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
#define __pipeline_wait_prior(N) asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory")

// ---------------------------------------------------------------- what device code may call of C's library
extern "C" {
__device__ int vprintf(const char *, const char *);
__device__ int printf(const char *, ...);
__device__ void __assertfail(const char *message, const char *file, unsigned int line, const char *function, size_t size) __attribute__((noreturn));
WT_D void __assert_fail(const char *message, const char *file, unsigned int line, const char *function) { __assertfail(message, file, line, function, 1); }
__device__ void *malloc(size_t);
__device__ void free(void *);
}
WT_D void *memcpy(void *to, const void *from, size_t n) { return __builtin_memcpy(to, from, n); }
WT_D void *memset(void *to, int c, size_t n) { return __builtin_memset(to, c, n); }
