// Atomics, a lane at a time; the schedule's seed says which lane is first.
#include "runtime.h"

enum { ADD, MIN, MAX, AND, OR, XOR, EXCH, CAS, INC, DEC };
enum { U32, S32, U64, S64, F32, F64, F16, BF16, F16X2, BF16X2, U16 };

float wt_from_half(uint16_t h);
uint16_t wt_to_half(float f);
float wt_from_bfloat(uint16_t h);
uint16_t wt_to_bfloat(float f);

#define INTEGER(NAME, U, S)                                                                                            \
  static U NAME(int operation, int is_signed, U old, U x, U y) {                                                      \
    switch (operation) {                                                                                               \
    case ADD: return old + x;                                                                                          \
    case MIN: return is_signed ? ((S)old < (S)x ? old : x) : (old < x ? old : x);                                      \
    case MAX: return is_signed ? ((S)old > (S)x ? old : x) : (old > x ? old : x);                                      \
    case AND: return old & x;                                                                                          \
    case OR: return old | x;                                                                                           \
    case XOR: return old ^ x;                                                                                          \
    case CAS: return old == x ? y : old;                                                                               \
    case INC: return old >= x ? 0 : old + 1;                                                                           \
    case DEC: return old == 0 || old > x ? x : old - 1;                                                                \
    default: return x;                                                                                                 \
    }                                                                                                                  \
  }
INTEGER(integer32, uint32_t, int32_t)
INTEGER(integer64, uint64_t, int64_t)

static float number(int operation, float old, float x) {
  if (operation == ADD) return old + x;
  if (x != x) return old;
  if (old != old) return x;
  return operation == MIN ? (x < old ? x : old) : (x > old ? x : old);
}

static uint16_t small(int operation, int bfloat, uint16_t old, uint16_t x) {
  if (operation == EXCH) return x;
  return bfloat ? wt_to_bfloat(number(operation, wt_from_bfloat(old), wt_from_bfloat(x)))
                : wt_to_half(number(operation, wt_from_half(old), wt_from_half(x)));
}

static uint32_t real32(int operation, uint32_t old, uint32_t x) {
  float a, b;
  memcpy(&a, &old, 4), memcpy(&b, &x, 4);
  if (operation == ADD) {
    a += b;
    memcpy(&old, &a, 4);
    return (old & 0x7f800000) ? old : old & 0x80000000; // atom.add.f32 on global memory flushes denormals
  }
  return operation == EXCH ? x : old;
}

static uint64_t real64(int operation, uint64_t old, uint64_t x) {
  double a, b;
  memcpy(&a, &old, 8), memcpy(&b, &x, 8);
  a += b;
  memcpy(&old, &a, 8);
  return operation == ADD ? old : x;
}

void wt_atomic(int operation, int type, int bits, const uint64_t *a, const char *x, const char *y, char *out, Context *c) {
  int turn = c->schedule ? (int)((c->schedule * 0x9e3779b97f4a7c15ull + c->linear) >> 59) : 0;
  for (int i = 0; i < LANES; i++) {
    int lane = (i + turn) & 31;
    if (!((uint32_t)bits >> lane & 1)) continue;
    if (type == U64 || type == S64 || type == F64) {
      uint64_t *p = (uint64_t *)a[lane], old = *p, v = ((const uint64_t *)x)[lane], w = ((const uint64_t *)y)[lane];
      *p = type == F64 ? real64(operation, old, v) : integer64(operation, type == S64, old, v, w);
      ((uint64_t *)out)[lane] = old;
    } else if (type == F16 || type == BF16 || type == U16) {
      uint16_t *p = (uint16_t *)a[lane], old = *p, v = ((const uint16_t *)x)[lane], w = ((const uint16_t *)y)[lane];
      *p = type == U16 ? (operation == CAS ? (old == v ? w : old) : v) : small(operation, type == BF16, old, v);
      ((uint16_t *)out)[lane] = old;
    } else {
      uint32_t *p = (uint32_t *)a[lane], old = *p, v = ((const uint32_t *)x)[lane], w = ((const uint32_t *)y)[lane];
      if (type == F32) *p = real32(operation, old, v);
      else if (type == F16X2 || type == BF16X2)
        *p = small(operation, type == BF16X2, (uint16_t)old, (uint16_t)v) | (uint32_t)small(operation, type == BF16X2, old >> 16, v >> 16) << 16;
      else *p = integer32(operation, type == S32, old, v, w);
      ((uint32_t *)out)[lane] = old;
    }
  }
}

// An operation on barriers in shared memory, as semantics/arrivals.py numbers them and lays out their words.
enum { INIT, INVAL, ARRIVE, ARRIVE_DROP, TEST, PARITY, EXPECT, COMPLETE };
#define COUNT_BITS 20
#define BYTES_BITS 22
#define MOST ((1ull << COUNT_BITS) - 1)
#define MOST_BYTES ((1ull << BYTES_BITS) - 1)

// What a warp's operation on a barrier in memory orders: `ends` says that the phase is over, `passed` that it has seen so.
static void order_by(Context *c, int warp, int operation, uint64_t address, int ends, int passed) {
  Machine *m = c->machine;
  if (!m->clocks) { m->epoch += ends; return; }
  Meeting *one = meeting_at(c, address - c->shared_base);
  if (operation == INIT) memset(one->gathered, 0, sizeof one->gathered), memset(one->released, 0, sizeof one->released);
  if (operation == ARRIVE || operation == ARRIVE_DROP || operation == COMPLETE) hand_on(c, one->gathered, warp);
  if (ends) memcpy(one->released, one->gathered, sizeof one->released);
  if (passed) take_over(c, one->released, warp);
}

void wt_mbarrier(int operation, int bits, const uint64_t *a, const uint64_t *x, uint64_t *out, Context *c, Frame *f) {
  for (uint32_t b = (uint32_t)bits; b; b &= b - 1) {
    int lane = __builtin_ctz(b);
    uint64_t *word = (uint64_t *)a[lane], old = *word, given = x[lane], phase = old >> 63;
    uint64_t left = old & MOST, all = old >> COUNT_BITS & MOST, bytes = old >> 2 * COUNT_BITS & MOST_BYTES;
    out[lane] = old;
    switch (operation) {
    case INIT: *word = (given & MOST) | (given & MOST) << COUNT_BITS; order_by(c, f->warp, operation, a[lane], 0, 0); continue;
    case INVAL: *word = 0; continue;
    case TEST: out[lane] = given >> 63 != phase; order_by(c, f->warp, operation, a[lane], 0, (int)out[lane]); continue;
    case PARITY: out[lane] = (given & 1) != phase; order_by(c, f->warp, operation, a[lane], 0, (int)out[lane]); continue;
    case EXPECT: bytes += given; break;
    case COMPLETE: bytes -= given; break;
    case ARRIVE_DROP: all -= given; // and
    default: left -= given;
    }
    left &= MOST, all &= MOST, bytes &= MOST_BYTES;
    int ends = !left && !bytes;
    if (ends) left = all, phase ^= 1;
    order_by(c, f->warp, operation, a[lane], ends, 0);
    *word = left | all << COUNT_BITS | bytes << 2 * COUNT_BITS | phase << 63;
  }
}
