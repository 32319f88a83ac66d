// threadIdx, blockIdx, blockDim, gridDim and warpSize, read from the special registers.
#pragma once
#include "../vector_types.h"

#define WINDTUNNEL_REGISTER(AXIS, READ) \
  __declspec(property(get = read_##AXIS)) unsigned int AXIS; \
  static __device__ __forceinline__ unsigned int read_##AXIS() { return READ; }
#define WINDTUNNEL_VARIABLE(NAME, TYPE, REGISTER) \
  struct windtunnel_##NAME { \
    WINDTUNNEL_REGISTER(x, REGISTER##_x()) \
    WINDTUNNEL_REGISTER(y, REGISTER##_y()) \
    WINDTUNNEL_REGISTER(z, REGISTER##_z()) \
    __device__ __forceinline__ operator TYPE() const { return TYPE{read_x(), read_y(), read_z()}; } \
    __device__ windtunnel_##NAME() = delete; \
    __device__ windtunnel_##NAME(const windtunnel_##NAME &) = delete; \
    __device__ windtunnel_##NAME *operator&() const = delete; \
  }; \
  extern const __device__ __attribute__((weak)) windtunnel_##NAME NAME

WINDTUNNEL_VARIABLE(threadIdx, uint3, __nvvm_read_ptx_sreg_tid);
WINDTUNNEL_VARIABLE(blockIdx, uint3, __nvvm_read_ptx_sreg_ctaid);
WINDTUNNEL_VARIABLE(blockDim, dim3, __nvvm_read_ptx_sreg_ntid);
WINDTUNNEL_VARIABLE(gridDim, dim3, __nvvm_read_ptx_sreg_nctaid);
__device__ __forceinline__ dim3::dim3(const windtunnel_threadIdx &v) : dim3(v.x, v.y, v.z) {}
__device__ __forceinline__ dim3::dim3(const windtunnel_blockIdx &v) : dim3(v.x, v.y, v.z) {}
#undef WINDTUNNEL_VARIABLE
#undef WINDTUNNEL_REGISTER
__attribute__((device)) const int warpSize = 32;
