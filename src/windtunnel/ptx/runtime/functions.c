// Functions of the special-function unit and of CUDA's mathematical library, over the lanes of a warp.
// Each is computed in double and rounded once, which keeps every error bound of the CUDA guide.
#include "runtime.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define M(name) double name(double);
M(exp) M(exp2) M(expm1) M(log) M(log2) M(log10) M(log1p) M(sin) M(cos) M(tan) M(asin) M(acos) M(atan) M(sinh) M(cosh) M(tanh)
M(asinh) M(acosh) M(atanh) M(erf) M(erfc) M(tgamma) M(lgamma) M(cbrt) M(j0) M(j1) M(y0) M(y1) M(round) M(logb)
#define M2(name) double name(double, double);
M2(pow) M2(atan2) M2(fmod) M2(remainder) M2(hypot) M2(fdim) M2(nextafter) M2(fmin) M2(fmax)

double ldexp(double, int);
int ilogb(double);
float nextafterf(float, float);

#define sqrt __builtin_sqrt // an instruction, also over vectors; freestanding code has no such names of its own
#define sqrtf __builtin_sqrtf
#define fabs __builtin_fabs
#define fabsf __builtin_fabsf
#define floor __builtin_floor
#define ceil __builtin_ceil
#define trunc __builtin_trunc
#define rint __builtin_rint
#define fma __builtin_fma
#define fmaf __builtin_fmaf
#define copysign __builtin_copysign
#define PI 3.141592653589793238462643383279502884

static float float_of(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static uint32_t bits_of(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }
static double double_of(uint64_t bits) { double f; memcpy(&f, &bits, 8); return f; }
static float nan_of(float f) { return f != f ? float_of(0x7fffffff) : f; }

// 2^x for |x| < 1100, to 1e-16: without branches, so that lanes go in vectors.
static inline double power_of_two(double x) {
  double whole = x + 6755399441055744.0, n = whole - 6755399441055744.0;
  double f = (x - n) * 0.6931471805599453094, r = 2.755731922398589e-07;
  int64_t k;
  memcpy(&k, &whole, 8);
  r = 2.505210838544172e-08, r = r * f + 2.755731922398589e-07, r = r * f + 2.7557319223985893e-06, r = r * f + 2.48015873015873e-05;
  r = r * f + 1.984126984126984e-04, r = r * f + 1.388888888888889e-03, r = r * f + 8.333333333333333e-03;
  r = r * f + 4.1666666666666664e-02, r = r * f + 1.6666666666666666e-01, r = r * f + 0.5, r = r * f + 1.0, r = r * f + 1.0;
  return r * double_of(((uint64_t)k << 52) + (1023ull << 52)); // the low bits of `whole` are n
}
static inline double limited(double x) { return x < -1000.0 ? -1000.0 : x > 1000.0 ? 1000.0 : x; }
// The following ones are for results in float: their relative error is below 1e-10, and lanes go in vectors. Coefficients
// are fits at Chebyshev's points.
#define SERIES(NAME, ...)                                                                                              \
  static inline double NAME(double x) {                                                                               \
    _Pragma("clang fp contract(fast)") const double c[] = {__VA_ARGS__};                                              \
    double r = c[sizeof c / 8 - 1];                                                                                   \
    for (int k = sizeof c / 8 - 2; k >= 0; k--) r = r * x + c[k];                                                     \
    return r;                                                                                                         \
  }
SERIES(atanh_series, 1.0000000000044313, 0.33333332590466996, 0.20000198988900028, 0.14267110094840452, 0.11816140470109167)
SERIES(sine_series, 0.99999999999545752, -0.16666666630194357, 0.0083333286469307235, -0.00019839161328383086, 2.7169683059515662e-06)
SERIES(cosine_series, 0.999999999950131, -0.49999999599570544, 0.041666615208461835, -0.0013886573215477649, 2.4375696452776505e-05)

// Eight lanes at once, and a table of 16 numbers that each of them chooses from by the low bits of its index.
typedef double Wide __attribute__((vector_size(64)));
typedef int64_t Whole __attribute__((vector_size(64)));
typedef float Narrow __attribute__((vector_size(32)));
typedef float Sixteen __attribute__((vector_size(64), aligned(4)));
typedef int32_t Bits __attribute__((vector_size(32)));
// Stored as they are read again: a processor hands on what it has just stored only to a load within one store.
#define EIGHTS(F, ...)                                                                                                 \
  for (int i = 0; i < LANES; i += 16) {                                                                               \
    Sixteen all = *(const Sixteen *)(x + i);                                                                          \
    Narrow low = F(__builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7), ##__VA_ARGS__);                         \
    Narrow high = F(__builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15), ##__VA_ARGS__);                  \
    *(Sixteen *)(out + i) = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); \
  }
static inline Narrow either(Bits which, float one, Narrow other) {
  return (Narrow)((which & (Bits){} + (int32_t)bits_of(one)) | (~which & (Bits)other));
}
static inline Wide chosen(const void *table, Whole index) {
#ifdef __AVX512F__
  return _mm512_permutex2var_pd(_mm512_loadu_pd(table), (__m512i)index, _mm512_loadu_pd((const char *)table + 64));
#else
  Wide r;
  for (int k = 0; k < 8; k++) memcpy((char *)&r + 8 * k, (const char *)table + 8 * (index[k] & 15), 8);
  return r;
#endif
}
static const double ROUNDING = 6755399441055744.0; // what is added to it is a whole number, in its low bits

// 2^(k / 16) less what k << 48 adds to its bits.
static const uint64_t POWERS[16] = {
  0x3ff0000000000000, 0x3fefb5586cf9890f, 0x3fef72b83c7d517b, 0x3fef387a6e756238,
  0x3fef06fe0a31b715, 0x3feedea64c123422, 0x3feebfdad5362a27, 0x3feeab07dd485429,
  0x3feea09e667f3bcd, 0x3feea11473eb0187, 0x3feeace5422aa0db, 0x3feec49182a3f090,
  0x3feee89f995ad3ad, 0x3fef199bdd85529c, 0x3fef5818dcfba487, 0x3fefa4afa2a490da,
};
// e^(x / limit) and its like: beyond the limits, an underflow is zero and an overflow infinite in float.
static inline Narrow exponential(Narrow x, double scale) {
  _Pragma("clang fp contract(fast)") float edge = (float)(300.0 / scale);
  Narrow low = either(x < -edge, -edge, x), inner = either(low > edge, edge, low);
  Wide y = __builtin_convertvector(inner, Wide) * scale, whole = y * 16.0 + ROUNDING, f = y - (whole - ROUNDING) * 0.0625;
  Wide r = 1.0 + f * (0.6931471801625687 + f * (0.24022650691319414 + f * (0.055505736314614036 + f * 0.009618317140580765)));
  Wide power = (Wide)((Whole)chosen(POWERS, (Whole)whole) + ((Whole)whole << 48));
  return either(x != x, float_of(0x7fffffff), __builtin_convertvector(r * power, Narrow));
}

// erf(x) / x between k / 4 and (k + 1) / 4, a row a power of the distance from the middle in quarters.
static const double ERROR_FUNCTION[][16] = {
  {1.1225296384106704, 1.0776450918261928, 0.9971854115014688, 0.896085784068411, 0.7896784281792958, 0.6895782347506112, 0.6021192204553746, 0.5290613640907307, 0.4693392803014201, 0.4207229733819406, 0.3808741425767081, 0.3478094417948717, 0.31999683304491994, 0.2962957584351326, 0.2758619875475331, 0.25806450515769186},
  {-0.02328873710660266, -0.0648615203868898, -0.09347434941082279, -0.1060973537952483, -0.1047565492516926, -0.09440335708417062, -0.08025337897701337, -0.06606873812756807, -0.053764524583197824, -0.043864894171910813, -0.0361644063676269, -0.030219062021834935, -0.025594565943860875, -0.021946889385849835, -0.01902481183852282, -0.0166493009911294},
  {-0.022852853973353706, -0.018031036226933295, -0.010328980942577051, -0.002483035729139647, 0.0033871106216718096, 0.006516760806463861, 0.007317157490457154, 0.006712550826909193, 0.005553936914797206, 0.004366952421438909, 0.0033724869828657793, 0.002609605254737203, 0.0020435178568791405, 0.001624898525838226, 0.0013119174937006076, 0.0010741272121020792},
  {0.0008652704572782312, 0.002234146473157893, 0.0027397679738660366, 0.0023687842624347203, 0.001503605046943245, 0.0006098979468948171, -2.147036287495589e-05, -0.0003329964325953992, -0.00041048499471751183, -0.0003693497340961363, -0.0002920813567409854, -0.00021875696555037145, -0.00016148149194924902, -0.0001199341942475208, -9.039650908575911e-05, -6.928521362303128e-05},
  {0.00041651862111986675, 0.0002457877199756346, 6.957993594823687e-06, -0.00017502339657571683, -0.00023700049894102978, -0.00019753741655651816, -0.00011621306455324321, -4.3642527709334746e-05, -1.6559484145111358e-07, 1.727802994771098e-05, 1.9760275630073853e-05, 1.6465644717300853e-05, 1.2221581603581026e-05, 8.719805730310157e-06, 6.2006598069725944e-06, 4.464034696736706e-06},
  {-1.8992072546073224e-05, -4.514303502994523e-05, -4.538875136673532e-05, -2.4974063477180636e-05, -6.766850977331802e-07, 1.404348226269431e-05, 1.652021579397503e-05, 1.1779151622356026e-05, 5.783902254608266e-06, 1.6416230426197327e-06, -2.983639779312927e-07, -8.440351243225264e-07, -7.961288181897375e-07, -5.988021715564255e-07, -4.1751943172239607e-07, -2.863828313026083e-07},
  {-5.9808775378629935e-06, -2.326608330588603e-06, 2.0764377998388664e-06, 4.228697705391924e-06, 3.486427585393478e-06, 1.3608611276068494e-06, -3.782862855590626e-07, -1.0309579274666865e-06, -8.853823930852266e-07, -4.912445294211993e-07, -1.8046153085660096e-07, -2.3732408182086935e-08, 2.811566099696855e-08, 3.365613357633039e-08, 2.609506238385445e-08, 1.789781451320544e-08},
};
static inline Narrow error_function(Narrow x) {
  _Pragma("clang fp contract(fast)") Bits sign = (Bits)x & INT32_MIN;
  Narrow size = (Narrow)((Bits)x & INT32_MAX), inner = either(size > 3.99f, 3.99f, size); // from there on it is 1
  Wide y = __builtin_convertvector(inner, Wide), place = y * 4.0 - 0.5, whole = place + ROUNDING, f = place - (whole - ROUNDING);
  Wide r = chosen(ERROR_FUNCTION[6], (Whole)whole);
  for (int k = 5; k >= 0; k--) r = r * f + chosen(ERROR_FUNCTION[k], (Whole)whole);
  return either(x != x, float_of(0x7fffffff), (Narrow)((Bits)__builtin_convertvector(r * y, Narrow) | sign));
}
static inline float logarithm(float x, double scale) {
  _Pragma("clang fp contract(fast)") double wide = (double)x;
  uint64_t bits;
  memcpy(&bits, &wide, 8);
  int64_t exponent = (int64_t)(bits - 0x3fe6a09e667f3bcdull) >> 52; // of a mantissa between the roots of 1/2 and 2
  double m = double_of(bits - ((uint64_t)exponent << 52)), s = (m - 1.0) / (m + 1.0);
  float r = (float)(((double)(int32_t)exponent * 0.69314718055994531 + 2.0 * s * atanh_series(s * s)) * scale);
  float edge = x == 0.0f ? float_of(0xff800000) : x > 0.0f ? x : float_of(0x7fffffff); // infinity stays; NaN, or below zero
  return x > 0.0f && x < float_of(0x7f800000) ? r : edge;
}
// Of arguments that are not too large: the sine, or the cosine by a quarter of a turn more.
#define FEW_TURNS 100000.0f
static inline float circular(float x, int quarters) {
  _Pragma("clang fp contract(fast)") double whole = (double)x * 0.63661977236758134308 + 6755399441055744.0, n = whole - 6755399441055744.0;
  double r = ((double)x - n * 1.5707963267341256) - n * 6.077100506506192e-11, q = r * r;
  int64_t turn;
  memcpy(&turn, &whole, 8);
  turn += quarters;
  double sine = r * sine_series(q), cosine = cosine_series(q), value = turn & 1 ? cosine : sine;
  float out = (float)(turn & 2 ? -value : value);
  return x == 0.0f && !quarters ? x : out;
}
static int few_turns(const float *x) {
  int few = 1;
  for (int i = 0; i < LANES; i++) few &= x[i] < FEW_TURNS && x[i] > -FEW_TURNS;
  return few;
}

#define LOOP for (int i = 0; i < LANES; i++)
// For long chains of arithmetic: as many at once as there are lanes.
#define SIDE_BY_SIDE _Pragma("clang loop vectorize_width(16) interleave_count(2)") LOOP
void wt_ex2_float(float *restrict out, const float *restrict x) { EIGHTS(exponential, 1.0) }
void wt_lg2_float(float *restrict out, const float *restrict x) { SIDE_BY_SIDE out[i] = logarithm(x[i], 1.4426950408889634074); }
// The unit takes turns, not radians: x / 2 pi is rounded towards zero to a float, so large arguments have no fraction.
static double turns(float x) {
  uint32_t size = bits_of(x) & 0x7fffffff;
  if (size < 0x00800000) return 0.0;
  double exact = (double)x * (double)float_of(0x3e22f983);
  float near = (float)exact;
  if (fabs((double)near) > fabs(exact)) near = float_of(bits_of(near) - 1);
  double whole = trunc((double)near);
  return trunc(((double)near - whole) * 33554432.0) / 33554432.0; // of which it sees 25 bits
}
void wt_sin_float(float *out, const float *x) {
  LOOP {
    double t = turns(x[i]);
    out[i] = nan_of(t == 0.0 ? float_of(bits_of(x[i]) & 0x80000000) : (float)sin(2.0 * PI * t));
  }
}
void wt_cos_float(float *out, const float *x) { LOOP { double t = turns(x[i]); out[i] = nan_of(fabs(t) == 0.25 || fabs(t) == 0.75 ? 0.0f : (float)cos(2.0 * PI * t)); } }
void wt_tanh_float(float *out, const float *x) {
  LOOP {
    double e = power_of_two(limited((double)x[i] * 2.8853900817779268));
    double small = (double)x[i] * (1.0 - (double)x[i] * x[i] / 3.0), size = x[i] < 0 ? -x[i] : x[i];
    out[i] = x[i] != x[i] ? float_of(0x7fffffff) : (float)(size < 1e-4 ? small : size > 20.0 ? (x[i] < 0 ? -1.0 : 1.0) : (e - 1.0) / (e + 1.0));
  }
}
void wt_rcp_float(float *out, const float *x) { LOOP out[i] = nan_of(1.0f / x[i]); }
void wt_sqrt_float(float *out, const float *x) { LOOP out[i] = nan_of(sqrtf(x[i])); }
void wt_rsqrt_float(float *out, const float *x) { LOOP out[i] = nan_of((float)(1.0 / sqrt((double)x[i]))); }
void wt_rcp_double(double *out, const double *x) { LOOP out[i] = 1.0 / x[i]; }
void wt_rsqrt_double(double *out, const double *x) { LOOP out[i] = 1.0 / sqrt(x[i]); }
void wt_sqrt_double(double *out, const double *x) { LOOP out[i] = sqrt(x[i]); }
// The guide: for 2^126 < |y| < 2^128 the quotient is 0, and NaN if x is infinite.
void wt_divide_approx(float *out, const float *x, const float *y) {
  LOOP {
    float size = y[i] < 0 ? -y[i] : y[i];
    float r = x[i] * (1.0f / y[i]); // as the unit does it: a reciprocal and a product
    if (size > float_of(0x7e800000) && size < float_of(0x7f800000)) r = x[i] * 0.0f;
    out[i] = nan_of(r);
  }
}
void wt_divide_full(float *out, const float *x, const float *y) { LOOP out[i] = nan_of((float)((double)x[i] / (double)y[i])); }

static double exp10_(double x) { return pow(10.0, x); }
static double rsqrt_(double x) { return 1.0 / sqrt(x); }
static double rcbrt_(double x) { return 1.0 / cbrt(x); }
static double sinpi_(double x) {
  double r = fmod(fabs(x), 2.0), sign = copysign(1.0, x);
  if (r >= 1.0) r -= 1.0, sign = -sign;
  if (r == 0.0) return copysign(0.0, x);
  return sign * (r == 0.5 ? 1.0 : r > 0.5 ? sin(PI * (1.0 - r)) : sin(PI * r));
}
static double cospi_(double x) { double r = fmod(fabs(x), 2.0); return r == 0.5 || r == 1.5 ? 0.0 : cos(PI * r); }
static double normcdf_(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
// Inverse error function: Giles' approximation, then two of Halley's steps.
static double erfinv_(double y) {
  if (!(y > -1.0 && y < 1.0)) return y == 1.0 ? double_of(0x7ff0000000000000ull) : y == -1.0 ? double_of(0xfff0000000000000ull) : double_of(0x7ff8000000000000ull);
  if (y == 0.0) return y;
  double w = -log((1.0 - y) * (1.0 + y)), a = 0.147, t = 2.0 / (PI * a) - w * 0.5;
  double x = copysign(sqrt(sqrt(t * t + w / a) - t), y);
  for (int step = 0; step < 4; step++) {
    double error = (fabs(y) > 0.5 ? copysign(1.0, y) * ((1.0 - fabs(y)) - erfc(fabs(x))) : erf(x) - y), slope = 1.1283791670955126 * exp(-x * x);
    if (slope == 0.0) break;
    double u = error / slope;
    x -= u / (1.0 + x * u);
  }
  return x;
}
static double erfcinv_(double y) {
  if (!(y > 0.0 && y < 2.0)) return y == 0.0 ? double_of(0x7ff0000000000000ull) : y == 2.0 ? double_of(0xfff0000000000000ull) : double_of(0x7ff8000000000000ull);
  double x = y > 0.1 && y < 1.9 ? erfinv_(1.0 - y) : 0.0;
  if (x == 0.0 && y != 1.0) { double small = y < 1.0 ? y : 2.0 - y, t = sqrt(-2.0 * log(small * 0.5)); x = t * 0.70710678118654752 * (1.0 - 0.1 / t); if (y > 1.0) x = -x; }
  for (int step = 0; step < 8; step++) {
    double slope = -1.1283791670955126 * exp(-x * x);
    if (slope == 0.0) break;
    double u = (erfc(x) - y) / slope;
    x -= u / (1.0 + x * u);
  }
  return x;
}
static double normcdfinv_(double y) { return -1.41421356237309504880 * erfcinv_(2.0 * y); }
static double erfcx_(double x) {
  if (x < 10.0) return exp(x * x) * erfc(x);
  double f = 0.0;
  for (int k = 60; k > 0; k--) f = k * 0.5 / (x + f);
  return 0.56418958354775628695 / (x + f);
}

// Modified Bessel functions: the series for small arguments, the asymptotic one beyond.
static double bessel(double x, int order) {
  double size = fabs(x), sum = 0.0;
  if (size < 30.0) {
    double term = order ? size / 2.0 : 1.0, q = size * size / 4.0;
    for (int k = 1; k < 200 && term > sum * 1e-18; k++) sum += term, term *= q / ((double)k * (k + order));
  } else {
    double term = 1.0, mu = 4.0 * order * order;
    for (int k = 1; k < 30; k++) {
      double next = -term * (mu - (2.0 * k - 1.0) * (2.0 * k - 1.0)) / (k * 8.0 * size);
      sum += term;
      if (fabs(next) >= fabs(term)) break;
      term = next;
    }
    sum *= exp(size) / sqrt(2.0 * PI * size);
  }
  return order && x < 0 ? -sum : sum;
}
static double cyl_bessel_i0_(double x) { return bessel(x, 0); }
static double cyl_bessel_i1_(double x) { return bessel(x, 1); }
static double rhypot(double x, double y) { return 1.0 / hypot(x, y); }

#define ONE(NAME, F)                                                                                                   \
  void wt__nv_##NAME##f(float *out, const float *x) { LOOP out[i] = nan_of((float)F((double)x[i])); }                 \
  void wt__nv_##NAME(double *out, const double *x) { LOOP out[i] = F(x[i]); }
#define WIDE(NAME) void wt__nv_##NAME(double *out, const double *x) { LOOP out[i] = NAME(x[i]); }
#define TWO(NAME)                                                                                                      \
  void wt__nv_##NAME##f(float *out, const float *x, const float *y) { LOOP out[i] = nan_of((float)NAME((double)x[i], (double)y[i])); } \
  void wt__nv_##NAME(double *out, const double *x, const double *y) { LOOP out[i] = NAME(x[i], y[i]); }
void wt__nv_expf(float *restrict out, const float *restrict x) { EIGHTS(exponential, 1.4426950408889634074) }
void wt__nv_exp2f(float *restrict out, const float *restrict x) { EIGHTS(exponential, 1.0) }
void wt__nv_exp10f(float *restrict out, const float *restrict x) { EIGHTS(exponential, 3.3219280948873623479) }
void wt__nv_logf(float *restrict out, const float *restrict x) { SIDE_BY_SIDE out[i] = logarithm(x[i], 1.0); }
void wt__nv_log2f(float *restrict out, const float *restrict x) { SIDE_BY_SIDE out[i] = logarithm(x[i], 1.4426950408889634074); }
void wt__nv_log10f(float *restrict out, const float *restrict x) { SIDE_BY_SIDE out[i] = logarithm(x[i], 0.43429448190325182765); }
void wt__nv_erff(float *restrict out, const float *restrict x) { EIGHTS(error_function) }
void wt__nv_sinf(float *out, const float *x) {
  if (few_turns(x)) LOOP out[i] = circular(x[i], 0);
  else LOOP out[i] = nan_of((float)sin((double)x[i]));
}
void wt__nv_cosf(float *out, const float *x) {
  if (few_turns(x)) LOOP out[i] = circular(x[i], 1);
  else LOOP out[i] = nan_of((float)cos((double)x[i]));
}
void wt__nv_exp(double *out, const double *x) { LOOP out[i] = exp(x[i]); }
void wt__nv_exp2(double *out, const double *x) { LOOP out[i] = exp2(x[i]); }
void wt__nv_exp10(double *out, const double *x) { LOOP out[i] = exp10_(x[i]); }
void wt__nv_tanhf(float *out, const float *x) { wt_tanh_float(out, x); }
void wt__nv_tanh(double *out, const double *x) { LOOP out[i] = tanh(x[i]); }
ONE(expm1, expm1) WIDE(log) WIDE(log2) WIDE(log10) ONE(log1p, log1p) WIDE(sin) WIDE(cos) ONE(tan, tan)
ONE(sinpi, sinpi_) ONE(cospi, cospi_) ONE(asin, asin) ONE(acos, acos) ONE(atan, atan) ONE(sinh, sinh) ONE(cosh, cosh)
ONE(asinh, asinh) ONE(acosh, acosh) ONE(atanh, atanh) WIDE(erf) ONE(erfc, erfc) ONE(erfinv, erfinv_) ONE(erfcinv, erfcinv_)
ONE(erfcx, erfcx_) ONE(tgamma, tgamma) ONE(lgamma, lgamma) ONE(cbrt, cbrt) ONE(rcbrt, rcbrt_) ONE(rsqrt, rsqrt_) ONE(sqrt, sqrt)
ONE(normcdf, normcdf_) ONE(normcdfinv, normcdfinv_) ONE(j0, j0) ONE(j1, j1) ONE(y0, y0) ONE(y1, y1) ONE(cyl_bessel_i0, cyl_bessel_i0_) ONE(cyl_bessel_i1, cyl_bessel_i1_) ONE(ceil, ceil) ONE(floor, floor)
ONE(trunc, trunc) ONE(rint, rint) ONE(nearbyint, rint) ONE(round, round) ONE(fabs, fabs) ONE(logb, logb)
TWO(pow) TWO(atan2) TWO(fmod) TWO(remainder) TWO(hypot) TWO(rhypot) TWO(fdim) TWO(copysign) TWO(fmin) TWO(fmax)
void wt__nv_nextafterf(float *out, const float *x, const float *y) { LOOP out[i] = nextafterf(x[i], y[i]); }
void wt__nv_nextafter(double *out, const double *x, const double *y) { LOOP out[i] = nextafter(x[i], y[i]); }
void wt__nv_fmaf(float *out, const float *x, const float *y, const float *z) { LOOP out[i] = fmaf(x[i], y[i], z[i]); }
void wt__nv_fma(double *out, const double *x, const double *y, const double *z) { LOOP out[i] = fma(x[i], y[i], z[i]); }
void wt__nv_ldexpf(float *out, const float *x, const int *y) { LOOP out[i] = (float)ldexp(x[i], y[i] < -400 ? -400 : y[i] > 400 ? 400 : y[i]); }
void wt__nv_ldexp(double *out, const double *x, const int *y) { LOOP out[i] = ldexp(x[i], y[i]); }
void wt__nv_powif(float *out, const float *x, const int *y) { LOOP out[i] = (float)pow(x[i], y[i]); }
void wt__nv_powi(double *out, const double *x, const int *y) { LOOP out[i] = pow(x[i], y[i]); }
void wt__nv_ilogbf(int *out, const float *x) { LOOP out[i] = ilogb(x[i]); }
void wt__nv_ilogb(int *out, const double *x) { LOOP out[i] = ilogb(x[i]); }
