// Number formats, directed rounding by the host's own modes, and products of matrices.
#include "runtime.h"

int fesetround(int mode);
double fma(double a, double b, double c);
float fmaf(float a, float b, float c);
double sqrt(double x);
float sqrtf(float x);

static int64_t modes[4];
void wt_modes(const int64_t *given) { memcpy(modes, given, sizeof modes); }

enum { ADD, SUB, MUL, DIV, FMA, SQRT, RCP };

#define ROUNDED(NAME, T, FUSED, ROOT)                                                                                  \
  void NAME(int operation, int direction, const T *a, const T *b, const T *c, T *out) {                               \
    fesetround((int)modes[direction + 1]);                                                                            \
    for (int i = 0; i < LANES; i++) {                                                                                  \
      volatile T x = a[i], y = b[i], z = c[i], r;                                                                      \
      switch (operation) {                                                                                             \
      case ADD: r = x + y; break;                                                                                      \
      case SUB: r = x - y; break;                                                                                      \
      case MUL: r = x * y; break;                                                                                      \
      case DIV: r = x / y; break;                                                                                      \
      case FMA: r = FUSED(x, y, z); break;                                                                             \
      case SQRT: r = ROOT(x); break;                                                                                   \
      default: y = 1, r = y / x;                                                                                       \
      }                                                                                                                \
      out[i] = r;                                                                                                      \
    }                                                                                                                  \
    fesetround((int)modes[0]);                                                                                        \
  }
ROUNDED(wt_round_float, float, fmaf, sqrtf)
ROUNDED(wt_round_double, double, fma, sqrt)

static float float_of(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static uint32_t bits_of(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }

float wt_from_half(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
  if (!exponent) return float_of(sign | bits_of((float)fraction * (1.f / 16777216.f)));
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

// Rounds a float to `keep` bits of fraction with a least exponent, nearest even; the value stays a float.
static float round_to(float f, int keep, int least) {
  uint32_t bits = bits_of(f), sign = bits & 0x80000000, size = bits & 0x7fffffff;
  int exponent = (int)(size >> 23) - 127;
  if (size >= 0x7f800000) return f;
  if (exponent < least) { // a multiple of 2^(least - keep)
    float unit = float_of((uint32_t)(least - keep + 23 + 127) << 23); // adding it leaves that multiple
    float sum = float_of(size) + unit;
    return float_of(sign | bits_of(sum - unit));
  }
  uint32_t drop = 23 - keep, odd = size >> drop & 1;
  size = (size + ((1u << (drop - 1)) - 1) + odd) >> drop << drop;
  return float_of(sign | size);
}

uint16_t wt_to_half(float f) {
  if (f != f) return 0x7fff;
  float r = round_to(f, 10, -14);
  uint32_t bits = bits_of(r), size = bits & 0x7fffffff;
  uint16_t sign = bits >> 16 & 0x8000;
  if (size >= 0x47800000) return sign | 0x7c00;
  if (size < 0x38800000) return sign | (uint16_t)(float_of(size) * 16777216.f);
  return sign | (uint16_t)((size >> 13) - (112 << 10));
}

float wt_from_bfloat(uint16_t h) { return float_of((uint32_t)h << 16); }
uint16_t wt_to_bfloat(float f) {
  uint32_t bits = bits_of(f);
  return f != f ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Small floats (OCP): bits of fraction, least exponent, largest number, bits in all. Only e5m2 has infinities, and only
// it and e4m3, whose one NaN is 0x7f, have NaNs.
static const struct { int keep, least, width; float top; } SMALL[] = {
  {3, -6, 8, 448.f}, {2, -14, 8, 57344.f}, {1, 0, 4, 6.f}, {3, 0, 6, 7.5f}, {2, -2, 6, 28.f},
};

static float widened(int kind, uint8_t b) {
  if (kind == 1) return wt_from_half((uint16_t)b << 8);
  int keep = SMALL[kind].keep, least = SMALL[kind].least, width = SMALL[kind].width;
  uint32_t size = b & ((1u << (width - 1)) - 1), exponent = size >> keep, fraction = size & ((1u << keep) - 1);
  float unit = float_of((uint32_t)(least - keep + 127) << 23);
  float value = kind == 0 && size == 0x7f ? float_of(0x7fc00000)
              : exponent ? float_of((exponent + 126 + least) << 23 | fraction << (23 - keep)) : (float)fraction * unit;
  return float_of(bits_of(value) | (uint32_t)(b >> (width - 1) & 1) << 31);
}

static uint32_t narrowed(int kind, float number, float size) { // the code of a size that fits, with a number's sign
  int keep = SMALL[kind].keep, least = SMALL[kind].least;
  float r = size < SMALL[kind].top ? size : SMALL[kind].top, normal = float_of((uint32_t)(least + 127) << 23);
  float units = r * float_of((uint32_t)(keep - least + 127) << 23);
  uint32_t code = r < normal ? (uint32_t)units : (bits_of(r) >> (23 - keep)) - ((uint32_t)(126 + least) << keep);
  return code | bits_of(number) >> 31 << (SMALL[kind].width - 1);
}

void wt_narrow(int kind, const float *x, uint32_t *out) {
  for (int i = 0; i < LANES; i++) {
    float size = float_of(bits_of(x[i]) & 0x7fffffff);
    // satfinite: infinities are the largest number too
    if (size != size) out[i] = (1u << (SMALL[kind].width - 1)) - 1;
    else out[i] = narrowed(kind, x[i], round_to(size, SMALL[kind].keep, SMALL[kind].least));
  }
}

// The same, rounded up by what is cut off and the lowest eight bits of `out`, which carry into it.
void wt_narrow_by_chance(int kind, const float *x, uint32_t *out) {
  int keep = SMALL[kind].keep, least = SMALL[kind].least;
  for (int i = 0; i < LANES; i++) {
    float size = float_of(bits_of(x[i]) & 0x7fffffff);
    if (size != size) { out[i] = (1u << (SMALL[kind].width - 1)) - 1; continue; }
    if (size < SMALL[kind].top) {
      int exponent = (int)(bits_of(size) >> 23) - 127;
      if (exponent < least) exponent = least;
      float units = size * float_of((uint32_t)(keep - exponent + 127) << 23);
      uint32_t whole = (uint32_t)units, rest = (uint32_t)((units - (float)whole) * 256.f);
      size = (float)(whole + (rest + (out[i] & 255) > 255)) * float_of((uint32_t)(exponent - keep + 127) << 23);
    }
    out[i] = narrowed(kind, x[i], size);
  }
}

// The exponent of a size, as `cvt` to ue8m0 gives it: bit 0 of `kind` rounds up, bit 1 keeps infinities finite.
void wt_scale(int kind, const float *x, uint32_t *out) {
  for (int i = 0; i < LANES; i++) {
    uint32_t size = bits_of(x[i]) & 0x7fffffff, found = size >> 23;
    if ((kind & 1) && size < 0x7f800000 && (found ? size & 0x7fffff : size > 0x400000)) found++;
    out[i] = (kind & 2) && size <= 0x7f800000 && found == 255 ? 254 : found;
  }
}

void wt_widen(int kind, const uint32_t *x, uint32_t *out) {
  int apart = kind == 2 ? 4 : 8;
  for (int i = 0; i < LANES; i++) out[i] = wt_to_half(widened(kind, x[i])) | (uint32_t)wt_to_half(widened(kind, x[i] >> apart)) << 16;
}

enum { F16K, BF16K, TF32K, F64K, S8K, U8K, S4K, U4K, F32K, S32K, E4M3K, E5M2K };

static int width_of(int kind) { return kind <= BF16K ? 16 : kind == TF32K ? 32 : kind <= U8K ? 8 : kind <= U4K ? 4 : 8; }

// Element e of the register words of lane `lane` in a fragment.
static uint32_t element(const uint32_t *words, int lane, int width, int e) {
  int each = 32 / width;
  return words[(e / each) * LANES + lane] >> (e % each * width) & (width == 32 ? 0xffffffffu : (1u << width) - 1);
}

static float real_of(int kind, uint32_t bits) {
  switch (kind) {
  case F16K: return wt_from_half((uint16_t)bits);
  case BF16K: return wt_from_bfloat((uint16_t)bits);
  case TF32K: return float_of(bits & 0xffffe000u);
  case E4M3K: return widened(0, (uint8_t)bits);
  default: return widened(1, (uint8_t)bits);
  }
}

static int whole_of(int kind, uint32_t bits) {
  switch (kind) {
  case S8K: return (int8_t)bits;
  case S4K: return (int)(bits << 28) >> 28;
  default: return (int)bits;
  }
}

// Lane l holds rows l / 4 and l / 4 + 8 of A, column l / 4 of B, and the columns that its words' elements stand for:
// `per` neighbours a word, four words apart.
static void fragments(const uint32_t *words, int width, int rows, int registers, int lane, int r, int *row, int *column) {
  int per = 32 / width;
  *row = lane / 4 + (rows > 8 ? 8 * (r & 1) : 0);
  *column = lane % 4 * per + (rows > 8 ? r >> 1 : r) * 4 * per;
  (void)words, (void)registers;
}

static void mma_double(double *scratch, int m, int n, int k, int na, int nb) {
  double A[16][16], B[16][8], *a = scratch, *b = a + LANES * na, *c = b + LANES * nb;
  int high = m > 8 ? 2 : 1;
  for (int lane = 0; lane < LANES; lane++) {
    for (int r = 0; r < na; r++) A[lane / 4 + 8 * (r % high)][lane % 4 + 4 * (r / high)] = a[r * LANES + lane];
    for (int r = 0; r < nb; r++) B[lane % 4 + 4 * r][lane / 4] = b[r * LANES + lane];
  }
  for (int lane = 0; lane < LANES; lane++)
    for (int r = 0; r < 2 * high; r++) {
      int row = lane / 4 + 8 * (r >> 1), column = lane % 4 * 2 + (r & 1);
      double s = c[r * LANES + lane];
      for (int j = 0; j < k; j++) s = fma(A[row][j], B[j][column], s);
      c[r * LANES + lane] = s;
    }
  (void)n;
}

// Products are exact, sums of a step are made in double, and the result is rounded once to the accumulator's type.
void wt_mma(char *scratch, int m, int n, int k, int td, int ta, int tb, int tc, int na, int nb, int saturate) {
  float A[16][64], B[64][8];
  int IA[16][64], IB[64][8];
  if (ta == F64K) { mma_double((double *)scratch, m, n, k, na, nb); return; }
  const uint32_t *a = (const uint32_t *)scratch, *b = a + LANES * na;
  uint32_t *c = (uint32_t *)(b + LANES * nb);
  int width = width_of(ta), per = 32 / width, whole = ta >= S8K && ta <= U4K;
  for (int lane = 0; lane < LANES; lane++) {
    for (int r = 0; r < na; r++)
      for (int e = 0; e < per; e++) {
        int row, column;
        fragments(a, width, 16, na, lane, r, &row, &column);
        uint32_t bits = element(a, lane, width, r * per + e);
        if (whole) IA[row][column + e] = whole_of(ta, bits); else A[row][column + e] = real_of(ta, bits);
      }
    for (int r = 0; r < nb; r++)
      for (int e = 0; e < per; e++) {
        int row, column;
        fragments(b, width, 8, nb, lane, r, &row, &column);
        uint32_t bits = element(b, lane, width, r * per + e);
        if (whole) IB[column + e][row] = whole_of(tb, bits); else B[column + e][row] = real_of(tb, bits);
      }
  }
  int packed = td == F16K;
  for (int lane = 0; lane < LANES; lane++)
    for (int r = 0; r < 4; r++) {
      int row = lane / 4 + 8 * (r >> 1), column = lane % 4 * 2 + (r & 1);
      uint32_t *word = packed ? &c[(r >> 1) * LANES + lane] : &c[r * LANES + lane];
      if (whole) {
        int64_t s = (int32_t)*word;
        for (int j = 0; j < k; j++) s += (int64_t)IA[row][j] * IB[j][column];
        if (saturate) s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
        *word = (uint32_t)s;
        continue;
      }
      double s = packed ? wt_from_half(*word >> (r & 1) * 16) : float_of(*word);
      for (int j = 0; j < k; j++) s += (double)A[row][j] * (double)B[j][column];
      if (packed) {
        uint32_t half = wt_to_half((float)s);
        *word = r & 1 ? (*word & 0xffff) | half << 16 : (*word & 0xffff0000u) | half;
      } else *word = bits_of((float)s);
    }
  (void)n, (void)tc;
}
