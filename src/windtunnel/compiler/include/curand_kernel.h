// Random numbers in kernels: Philox4x32-10 and XORWOW's interface on it, by the published algorithm (Salmon et al., SC11).
// The numbers of curandStatePhilox4_32_10_t are cuRAND's; those of curandState are of the same quality and not the same.
#pragma once
#include "cuda_runtime.h"
#ifdef __CUDA__
struct curandStatePhilox4_32_10 { uint4 ctr, output; uint2 key; unsigned int state; float saved; int has_saved; };
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t, curandState, curandState_t, curandStateXORWOW_t;
#define WT_R static __device__ __forceinline__
WT_R uint4 windtunnel_philox(uint4 c, uint2 k) {
  for (int i = 0; i < 10; i++) {
    unsigned int h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x, h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
    c = make_uint4(h1 ^ c.y ^ k.x, l1, h0 ^ c.w ^ k.y, l0);
    k.x += 0x9E3779B9u; k.y += 0xBB67AE85u;
  }
  return c;
}
WT_R void windtunnel_advance(curandStatePhilox4_32_10 *s, unsigned long long n) {
  unsigned long long low = (unsigned long long)s->ctr.y << 32 | s->ctr.x, sum = low + n;
  if (sum < low) { if (++s->ctr.z == 0) ++s->ctr.w; }
  s->ctr.x = (unsigned int)sum; s->ctr.y = (unsigned int)(sum >> 32);
}
WT_R void skipahead(unsigned long long n, curandStatePhilox4_32_10 *s) {
  s->state += (unsigned int)(n & 3); n /= 4;
  if (s->state > 3) { n++; s->state -= 4; }
  windtunnel_advance(s, n);
  s->output = windtunnel_philox(s->ctr, s->key);
}
WT_R void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset, curandStatePhilox4_32_10 *s) {
  s->ctr = make_uint4(0, 0, (unsigned int)subsequence, (unsigned int)(subsequence >> 32));
  s->key = make_uint2((unsigned int)seed, (unsigned int)(seed >> 32));
  s->state = 0; s->has_saved = 0;
  skipahead(offset, s);
}
WT_R unsigned int curand(curandStatePhilox4_32_10 *s) {
  unsigned int v = s->state == 0 ? s->output.x : s->state == 1 ? s->output.y : s->state == 2 ? s->output.z : s->output.w;
  if (++s->state == 4) { windtunnel_advance(s, 1); s->output = windtunnel_philox(s->ctr, s->key); s->state = 0; }
  return v;
}
WT_R uint4 curand4(curandStatePhilox4_32_10 *s) {
  uint4 now = s->output, r;
  windtunnel_advance(s, 1);
  s->output = windtunnel_philox(s->ctr, s->key);
  if (s->state == 0) return now;
  uint4 next = s->output;
  r = s->state == 1 ? make_uint4(now.y, now.z, now.w, next.x) : s->state == 2 ? make_uint4(now.z, now.w, next.x, next.y) : make_uint4(now.w, next.x, next.y, next.z);
  return r;
}
#define WINDTUNNEL_2POW32_INV 2.3283064e-10f
WT_R float windtunnel_uniform(unsigned int x) { return x * WINDTUNNEL_2POW32_INV + (WINDTUNNEL_2POW32_INV / 2.0f); }
WT_R float2 windtunnel_normal2(unsigned int x, unsigned int y) {
  float u = windtunnel_uniform(x), v = y * (WINDTUNNEL_2POW32_INV * 6.2831855f) + (WINDTUNNEL_2POW32_INV * 6.2831855f / 2.0f), r = sqrtf(-2.0f * logf(u));
  return make_float2(r * sinf(v), r * cosf(v));
}
WT_R float curand_uniform(curandStatePhilox4_32_10 *s) { return windtunnel_uniform(curand(s)); }
WT_R float4 curand_uniform4(curandStatePhilox4_32_10 *s) { uint4 v = curand4(s); return make_float4(windtunnel_uniform(v.x), windtunnel_uniform(v.y), windtunnel_uniform(v.z), windtunnel_uniform(v.w)); }
WT_R double curand_uniform_double(curandStatePhilox4_32_10 *s) { return curand(s) * 2.3283064365386963e-10 + 2.3283064365386963e-10 / 2.0; }
WT_R float2 curand_normal2(curandStatePhilox4_32_10 *s) { unsigned int x = curand(s), y = curand(s); return windtunnel_normal2(x, y); }
WT_R float curand_normal(curandStatePhilox4_32_10 *s) { if (s->has_saved) { s->has_saved = 0; return s->saved; } float2 v = curand_normal2(s); s->saved = v.y; s->has_saved = 1; return v.x; }
WT_R float4 curand_normal4(curandStatePhilox4_32_10 *s) { uint4 v = curand4(s); float2 a = windtunnel_normal2(v.x, v.y), b = windtunnel_normal2(v.z, v.w); return make_float4(a.x, a.y, b.x, b.y); }
#undef WT_R
#endif
