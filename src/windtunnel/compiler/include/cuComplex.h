// CUDA's complex numbers.
#pragma once
#include "vector_types.h"
typedef float2 cuFloatComplex;
typedef cuFloatComplex cuComplex;
typedef double2 cuDoubleComplex;
#define WINDTUNNEL_HD static __host__ __device__ __inline__
WINDTUNNEL_HD float cuCrealf(cuFloatComplex a) { return a.x; }
WINDTUNNEL_HD float cuCimagf(cuFloatComplex a) { return a.y; }
WINDTUNNEL_HD cuFloatComplex make_cuFloatComplex(float a, float b) { return make_float2(a, b); }
WINDTUNNEL_HD cuFloatComplex make_cuComplex(float a, float b) { return make_float2(a, b); }
WINDTUNNEL_HD cuFloatComplex cuConjf(cuFloatComplex a) { return make_float2(a.x, -a.y); }
WINDTUNNEL_HD cuFloatComplex cuCaddf(cuFloatComplex a, cuFloatComplex b) { return make_float2(a.x + b.x, a.y + b.y); }
WINDTUNNEL_HD cuFloatComplex cuCsubf(cuFloatComplex a, cuFloatComplex b) { return make_float2(a.x - b.x, a.y - b.y); }
WINDTUNNEL_HD cuFloatComplex cuCmulf(cuFloatComplex a, cuFloatComplex b) { return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
WINDTUNNEL_HD double cuCreal(cuDoubleComplex a) { return a.x; }
WINDTUNNEL_HD double cuCimag(cuDoubleComplex a) { return a.y; }
WINDTUNNEL_HD cuDoubleComplex make_cuDoubleComplex(double a, double b) { return make_double2(a, b); }
WINDTUNNEL_HD cuDoubleComplex cuConj(cuDoubleComplex a) { return make_double2(a.x, -a.y); }
WINDTUNNEL_HD cuDoubleComplex cuCadd(cuDoubleComplex a, cuDoubleComplex b) { return make_double2(a.x + b.x, a.y + b.y); }
WINDTUNNEL_HD cuDoubleComplex cuCsub(cuDoubleComplex a, cuDoubleComplex b) { return make_double2(a.x - b.x, a.y - b.y); }
WINDTUNNEL_HD cuDoubleComplex cuCmul(cuDoubleComplex a, cuDoubleComplex b) { return make_double2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
#undef WINDTUNNEL_HD
