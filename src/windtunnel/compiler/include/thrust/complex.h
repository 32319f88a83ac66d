// thrust::complex as far as PyTorch's headers name it.
#pragma once
#include <complex>
#include "../host_defines.h"
namespace thrust {
template <class T> struct complex {
  T r, i;
  __host__ __device__ complex(T a = 0, T b = 0) : r(a), i(b) {}
  __host__ __device__ T real() const { return r; }
  __host__ __device__ T imag() const { return i; }
};
template <class T> __host__ __device__ T abs(complex<T>);
template <class T> __host__ __device__ complex<T> polar(T, T = 0);
template <class A, class B> __host__ __device__ complex<double> pow(A, B);
template <class T> __host__ __device__ complex<T> pow(complex<T>, complex<T>);
template <class T> __host__ __device__ complex<T> pow(complex<T>, T);
template <class T> __host__ __device__ complex<T> pow(T, complex<T>);
#define X(NAME) template <class T> __host__ __device__ complex<T> NAME(complex<T>);
X(exp) X(log) X(log10) X(sqrt) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh)
#undef X
}  // namespace thrust
