// Runs the blocks of a grid one after another, the warps of a block in rounds: a round ends when each warp waits or is done.
#include "runtime.h"

typedef int (*Step)(Context *, Frame *);

static Frame *frame_of(Context *c, char *frames, int warp) { return (Frame *)(frames + (int64_t)warp * c->frame_bytes); }

// A permutation of n numbers: a seeded linear congruence walked over the next power of two (Knuth 3.2.1).
static uint64_t permuted(uint64_t seed, uint64_t n, uint64_t i) {
  if (!seed || n < 2) return i;
  uint64_t size = 1;
  while (size < n) size *= 2;
  uint64_t a = (seed * 0x9e3779b97f4a7c15ull >> 32) * 4 + 1, b = seed * 0xd1342543de82ef95ull | 1;
  do i = (a * i + b) & (size - 1); while (i >= n);
  return i;
}

static void start(Context *c, char *frames, const uint32_t *alive) {
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, frames, w);
    memset(f->counter, 0, sizeof f->counter);
    f->alive = alive[w], f->waiting = 0, f->resume = 0, f->barrier = 0, f->barrier_count = 0, f->spins = 0, f->loops = 0, f->budget = LOOPS;
    f->held = f->passes = f->forced = f->at_barrier = f->missed = 0;
    f->mode = alive[w] == 0xffffffffu ? 0 : 1;
  }
}

// A warp until it waits at a barrier (1), or is finished (0).
static int advance(Context *c, Frame *f, Step whole, Step partial) {
  while (f->mode != 2) {
    int next = f->mode == 0 ? whole(c, f) : partial(c, f);
    if (c->trap) return 0;
    if (next == 1) return 1;
    if (next == 2) f->mode = 1;
    else if (next == 3) f->mode = 0;
    else f->mode = 2, f->alive = 0;
  }
  return 0;
}

static void wrong_barrier(Context *c, Frame *f, Frame *first) {
  report(c, DIVERGENT_BARRIER, f->barrier_site, f->warp * LANES, first->warp * LANES, first->barrier_site, 0);
}

// Threads that have ended do not hold the others up, but they have missed the barrier.
static void missed_barrier(Context *c, char *frames, const uint32_t *alive, Frame *first) {
  for (int w = 0; w < c->warps; w++) {
    uint32_t gone = alive[w] & ~frame_of(c, frames, w)->alive;
    if (!gone) continue;
    report(c, EXITED, first->barrier_site, first->warp * LANES, w * LANES + __builtin_ctz(gone), 0, 0);
    return;
  }
}

// Lets those go whose barrier is complete; answers whether any could.
static int release(Context *c, char *frames, const uint32_t *alive) {
  int released = 0, running = 0;
  uint32_t numbers = 0;
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, frames, w);
    if (f->mode == 2) continue;
    running++;
    if (f->barrier >= 0) numbers |= 1u << (f->barrier & 15);
  }
  for (; numbers; numbers &= numbers - 1) {
    int number = __builtin_ctz(numbers);
    int waiting = 0, wanted = 0, threads = 0;
    Frame *first = 0;
    for (int w = 0; w < c->warps; w++) {
      Frame *f = frame_of(c, frames, w);
      if (f->mode == 2 || f->barrier < 0 || (f->barrier & 15) != number) continue;
      waiting++, threads += LANES;
      if (f->barrier_count) wanted = f->barrier_count;
      if (!first) first = f;
    }
    if (!waiting || (wanted ? threads < wanted : waiting < running)) continue;
    int votes = 0, all = 1;
    for (int w = 0; w < c->warps; w++) {
      Frame *f = frame_of(c, frames, w);
      if (f->mode == 2 || f->barrier < 0 || (f->barrier & 15) != number) continue;
      votes += __builtin_popcount(f->vote & f->alive), all &= (f->vote & f->alive) == f->alive;
    }
    if (!wanted) missed_barrier(c, frames, alive, first);
    for (int w = 0; w < c->warps; w++) {
      Frame *f = frame_of(c, frames, w);
      if (f->mode == 2 || f->barrier < 0 || (f->barrier & 15) != number) continue;
      if (f->barrier_site != first->barrier_site) wrong_barrier(c, f, first);
      f->waiting = 0;
      f->votes = votes, f->agreement = all | (votes > 0) << 1;
      f->barrier = -1; // may go
    }
    released = 1;
  }
  c->machine->epoch++;
  return released;
}

void wt_block(Context *c);

// Ctrl-C: Python's exception is set, and ctypes raises it once the launch has ended.
static void interrupted(Context *c) {
  Machine *m = c->machine;
  m->take_back(m->thread);
  if (m->signals()) c->trap = TRAP_INTERRUPTED;
  m->thread = m->let_go();
}

static void run_block(Context *c, char *frames, Step whole, Step partial, const uint32_t *alive) {
  start(c, frames, alive);
  for (int w = 0; w < c->warps; w++) frame_of(c, frames, w)->barrier = -1;
  for (uint64_t round = 0;; round++) {
    int waits = 0;
    for (int i = 0; i < c->warps; i++) {
      uint64_t seed = c->schedule ? c->schedule * 0x2545f4914f6cdd1dull + c->linear * 31 + round : 0;
      Frame *f = frame_of(c, frames, (int)permuted(seed, c->warps, i));
      if (f->mode != 2 && f->barrier >= 0) { waits++; continue; }
      waits += advance(c, f, whole, partial);
      if (c->trap) return;
    }
    if (!waits) return;
    if (!release(c, frames, alive)) {
      for (int w = 0; w < c->warps; w++) {
        Frame *f = frame_of(c, frames, w);
        if (f->mode != 2) { report(c, HANGING, f->barrier_site, w * LANES, 0, 0, f->barrier); break; }
      }
      c->trap = TRAP_DEADLOCK;
      return;
    }
  }
}

// Blocks numbers[0] ... numbers[count - 1], or all of first ... first + count where numbers is null.
int wt_run(Context *c, char *frames, Step whole, Step partial, const uint32_t *alive, const int64_t *numbers, int64_t first, int64_t count) {
  c->machine->thread = c->machine->let_go();
  for (int64_t i = 0; i < count && !c->trap; i++) {
    if (i % BLOCKS == BLOCKS - 1) interrupted(c);
    uint64_t block = numbers ? (uint64_t)numbers[i] : first + permuted(c->schedule, count, i);
    uint64_t x = c->grid[0], y = c->grid[1];
    c->linear = block;
    c->block[0] = (int32_t)(block % x), c->block[1] = (int32_t)(block / x % y), c->block[2] = (int32_t)(block / x / y);
    wt_block(c);
    run_block(c, frames, whole, partial, alive);
  }
  c->machine->take_back(c->machine->thread);
  return c->trap;
}

// A warp has been in loops for long: it ends where it would go on for ever.
int wt_loop(int site, Context *c, Frame *f) {
  interrupted(c);
  if (c->trap || ++f->loops < c->machine->most_loops) return c->trap;
  report(c, ENDLESS, site, f->warp * LANES + __builtin_ctz(f->alive), 0, 0, LOOPS * c->machine->most_loops);
  if (!c->trap) c->trap = TRAP_DEADLOCK;
  return 1;
}

// The lanes that need not wait for others of their warp at this instruction; the rest is held until these have come.
// Lanes beyond it have passed by, and never come.
int wt_gather(const uint32_t *named, int bits, int beyond, int barrier, Frame *f) {
  uint32_t here = (uint32_t)bits, go = here & f->passes, past = barrier ? 0 : (uint32_t)beyond & f->alive;
  for (uint32_t b = here; b; b &= b - 1) f->missed |= named[__builtin_ctz(b)] & past;
  for (uint32_t b = here & ~go; b; b &= b - 1) {
    int lane = __builtin_ctz(b);
    f->named[lane] = named[lane];
    if (named[lane] & f->alive & ~(here | past)) continue;
    go |= 1u << lane;
    if (!barrier && named[lane] & f->missed & ~here) f->forced |= 1u << lane;
  }
  f->held = (f->held | here) & ~go;
  f->at_barrier = ((barrier ? f->at_barrier | here : f->at_barrier & ~here)) & ~go;
  f->passes &= ~go;
  if (!f->held) f->missed = 0;
  return (int)go;
}

// No lane can go on but those that are held: those at a __syncwarp may meet at several; else someone never comes.
void wt_stuck(Frame *f) {
  uint32_t met = f->held & f->at_barrier;
  for (uint32_t before = 0; met != before;) {
    before = met;
    for (uint32_t b = met; b; b &= b - 1)
      if (f->named[__builtin_ctz(b)] & f->alive & ~before) met &= ~(b & -b);
  }
  if (!met) {
    int lowest = 0x7fffffff;
    for (uint32_t b = f->held; b; b &= b - 1)
      if (f->counter[__builtin_ctz(b)] < lowest) lowest = f->counter[__builtin_ctz(b)];
    for (uint32_t b = f->held; b; b &= b - 1)
      if (f->counter[__builtin_ctz(b)] == lowest) met |= b & -b;
    for (uint32_t b = met; b; b &= b - 1)
      if (f->named[__builtin_ctz(b)] & (f->alive | f->missed) & ~met) f->forced |= b & -b;
  }
  f->passes |= met, f->held &= ~met;
}

void wt_arrive(int bits, int site, Context *c, Frame *f) {
  if (f->waiting && f->barrier_site != site)
    report(c, DIVERGENT_BARRIER, site, f->warp * LANES + __builtin_ctz(bits), f->warp * LANES + __builtin_ctz(f->waiting), f->barrier_site, 0);
  f->barrier_site = site;
}

// A warp that waits for what another warp or block writes would wait for ever: they run when this one is done.
int wt_spin(int site, Context *c, Frame *f) {
  if (++f->spins < MOST_SPINS) return c->trap;
  report(c, SPINNING, site, f->warp * LANES, 0, 0, 0);
  if (!c->trap) c->trap = TRAP_DEADLOCK;
  return 1;
}

uint64_t wt_clock(Context *c) { return c->machine->clock += 128; }
