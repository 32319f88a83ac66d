// Runs the blocks of a grid one after another, the warps of a block in rounds: a round ends when each warp waits or is done.
// Where blocks wait for each other, many are in between at the same time.
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
    f->alive = alive[w], f->mode = alive[w] == 0xffffffffu ? 0 : 1;
    f->resume = 0, f->budget = LOOPS, f->spins = f->loops = 0, f->arrivals = 0;
    if (f->straight) continue;
    memset(f->counter, 0, sizeof f->counter);
    f->waiting = 0, f->barrier = -1, f->barrier_count = 0;
    f->held = f->passes = f->forced = f->at_barrier = f->missed = 0, f->arrived = 0;
    f->straight = 1;
  }
}

enum { DONE, AT_BARRIER, ASKS };

// A warp until it waits at a barrier, is finished, or has asked in vain for what others write; `next` is what its code
// has answered already, or 0.
static int advance(Context *c, Frame *f, Step whole, Step partial, int next) {
  if (f->arrived) f->barrier = f->arrived - 1, f->arrived = 0;
  for (; f->mode != 2; next = 0) {
    if (!next) next = f->mode == 0 ? whole(c, f) : partial(c, f);
    if (next != -1 || f->mode == 1) f->straight = 0;
    if (c->trap) return DONE;
    if (next == 1) return AT_BARRIER;
    if (next == 2) f->mode = 1;
    else if (next == 3) f->mode = 0;
    else if (next == 4) {
      f->arrived = f->barrier + 1, f->barrier = -1;
      return ASKS;
    }
    else f->mode = 2, f->alive = 0;
  }
  return DONE;
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

// The usual case: all warps wait at one place for all threads, and votes are of no account or complete.
static int release_all(Context *c, char *frames, const uint32_t *alive) {
  Frame *first = frame_of(c, frames, 0);
  int number = first->barrier, site = first->barrier_site, votes = 0, all = 1;
  if (number < 0 || number == GRID) return 0;
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, frames, w);
    if (f->mode == 2 || f->barrier != number || f->barrier_site != site || f->barrier_count || f->alive != alive[w]) return 0;
    votes += __builtin_popcount(f->vote & f->alive), all &= (f->vote & f->alive) == f->alive;
  }
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, frames, w);
    f->waiting = 0, f->barrier = -1, f->votes = votes, f->agreement = all | (votes > 0) << 1;
  }
  uint32_t everyone = (uint32_t)((1ull << c->warps) - 1);
  pass_barrier(c, number, everyone, everyone);
  return 1;
}

// Lets those go whose barrier is complete; answers whether any could.
static int release(Context *c, char *frames, const uint32_t *alive) {
  if (release_all(c, frames, alive)) return 1;
  int released = 0, running = 0;
  uint32_t numbers = 0;
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, frames, w);
    if (f->mode == 2) continue;
    running++;
    if (f->barrier >= 0) numbers |= 1u << f->barrier;
  }
  for (numbers &= ~(1u << GRID); numbers; numbers &= numbers - 1) {
    int number = __builtin_ctz(numbers);
    int waiting = 0, wanted = 0, threads = 0;
    uint32_t ended = 0, here = 0;
    Frame *first = 0;
    for (int w = 0; w < c->warps; w++) {
      Frame *f = frame_of(c, frames, w);
      if (f->arrivals >> number & 1) threads += LANES;
      if (f->mode == 2) ended |= 1u << w;
      if (f->mode == 2 || f->barrier < 0 || f->barrier != number) continue;
      waiting++, threads += LANES, here |= 1u << w;
      if (f->barrier_count) wanted = f->barrier_count;
      if (!first) first = f;
    }
    if (!waiting || (wanted ? threads < wanted : waiting < running)) continue;
    int votes = 0, all = 1;
    for (int w = 0; w < c->warps; w++) {
      Frame *f = frame_of(c, frames, w);
      if (f->mode == 2 || f->barrier < 0 || f->barrier != number) continue;
      votes += __builtin_popcount(f->vote & f->alive), all &= (f->vote & f->alive) == f->alive;
    }
    if (!wanted) missed_barrier(c, frames, alive, first);
    pass_barrier(c, number, wanted ? here : here | ended, here);
    for (int w = 0; w < c->warps; w++) {
      Frame *f = frame_of(c, frames, w);
      f->arrivals &= ~(1u << number);
      if (f->mode == 2 || f->barrier < 0 || f->barrier != number) continue;
      if (!wanted && f->barrier_site != first->barrier_site) wrong_barrier(c, f, first);
      f->waiting = 0;
      f->votes = votes, f->agreement = all | (votes > 0) << 1;
      f->barrier = -1; // may go
    }
    released = 1;
  }
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

// Whether all threads of the block that have not ended wait for the whole grid.
static int at_grid(Context *c, char *frames, const uint32_t *alive) {
  Frame *first = 0;
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, frames, w);
    if (f->mode == 2) continue;
    if (f->barrier != GRID) return 0;
    if (!first) first = f;
    else if (f->barrier_site != first->barrier_site) wrong_barrier(c, f, first);
  }
  missed_barrier(c, frames, alive, first);
  return 1;
}

static void hangs(Context *c, char *frames) {
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, frames, w);
    if (f->mode == 2 || f->barrier < 0) continue;
    report(c, HANGING, f->barrier_site, w * LANES, 0, 0, f->barrier);
    break;
  }
  c->trap = TRAP_DEADLOCK;
}

static void begin_block(Context *c, char *frames, const uint32_t *alive) {
  wt_block(c);
  start(c, frames, alive);
}

static void choose(Context *c, uint64_t block) {
  uint64_t x = c->grid[0], y = c->grid[1];
  c->linear = block;
  if (y == 1 && c->grid[2] == 1) { c->block[0] = (int32_t)block, c->block[1] = c->block[2] = 0; return; }
  c->block[0] = (int32_t)(block % x), c->block[1] = (int32_t)(block / x % y), c->block[2] = (int32_t)(block / x / y);
}

enum { ENDED, AT_GRID, WAITS };

// Whether all warps stand whole at one place.
static int in_step(Context *c, char *frames) {
  int resume = frame_of(c, frames, 0)->resume;
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, frames, w);
    if (f->mode || f->barrier >= 0 || f->arrived || f->resume != resume) return 0;
  }
  return 1;
}

// Takes the warps from barrier to barrier in one call; answers what the code said of the one at which it came back. Those
// before that one wait or have ended.
static int in_a_row(Context *c, char *frames, Step whole) {
  c->last = frame_of(c, frames, c->warps - 1);
  int next = whole(c, frame_of(c, frames, 0));
  c->last = 0;
  for (Frame *f = c->stopped; f < frame_of(c, frames, c->warps); f = (Frame *)((char *)f + c->frame_bytes))
    if (f != c->stopped) f->barrier = -1; // of a barrier that it has passed
  return next;
}

// Whether a warp is the last one and those before it have ended.
static int ended_before(Context *c, char *frames, Frame *last) {
  if (last != frame_of(c, frames, c->warps - 1)) return 0;
  for (Frame *f = (Frame *)frames; f < last; f = (Frame *)((char *)f + c->frame_bytes))
    if (f->mode != 2) return 0;
  return 1;
}

// A block until it has ended, waits for the grid, or only asks for what other blocks write.
static int run_block(Context *c, char *frames, Step whole, Step partial, const uint32_t *alive) {
  for (uint64_t round = 0;; round++) {
    int waits = 0, asks = 0, moved = 0, next = 0;
    Frame *stopped = 0;
    if (!c->schedule && !c->machine->clocks && in_step(c, frames)) {
      next = in_a_row(c, frames, whole), stopped = c->stopped, moved = 1;
      if (next == -1 && ended_before(c, frames, stopped)) { // the usual end: all in their turn
        stopped->mode = 2, stopped->alive = 0;
        return ENDED;
      }
    }
    if (c->trap) return ENDED;
    for (int i = 0; i < c->warps; i++) {
      uint64_t seed = c->schedule ? c->schedule * 0x2545f4914f6cdd1dull + c->linear * 31 + round : 0;
      Frame *f = frame_of(c, frames, (int)permuted(seed, c->warps, i));
      if (f->mode == 2) continue;
      if (f->barrier >= 0 && f != stopped) { waits++; continue; }
      int now = advance(c, f, whole, partial, f == stopped ? next : 0);
      if (c->trap) return ENDED;
      waits += now == AT_BARRIER, asks += now == ASKS, moved |= now != ASKS;
    }
    if (!waits && !asks) return ENDED;
    if (waits && release(c, frames, alive)) continue;
    if (asks && moved) continue;
    if (asks) return WAITS;
    if (at_grid(c, frames, alive)) return AT_GRID;
    hangs(c, frames);
    return ENDED;
  }
}

// Blocks numbers[0] ... numbers[count - 1], or all of first ... first + count where numbers is null.
int wt_run(Context *c, char *frames, Step whole, Step partial, const uint32_t *alive, const int64_t *numbers, int64_t first, int64_t count) {
  c->machine->thread = c->machine->let_go();
  for (int64_t i = 0; i < count && !c->trap; i++) {
    if (i % BLOCKS == BLOCKS - 1) interrupted(c);
    uint64_t block = numbers ? (uint64_t)numbers[i] : first + permuted(c->schedule, count, i);
    choose(c, block);
    begin_block(c, frames, alive);
    run_block(c, frames, whole, partial, alive);
  }
  settle(c->machine);
  c->machine->take_back(c->machine->thread);
  return c->trap;
}

// What an instrumented variant of a kernel and a plain one are, and which blocks are looked at: all where it is null.
typedef struct {
  Step whole[2], partial[2];
  const uint8_t *looked_at;
  int32_t checking, padding;
} Variants;

static char *enter(Context *c, Residents *r, int64_t slot) {
  choose(c, (uint64_t)r->block[slot] - 1);
  c->shared_base = r->shared + slot * r->shared_step;
  if (r->shadow) c->machine->shadow = (uint32_t *)(r->shadow + slot * r->shadow_step);
  return r->frames + slot * c->warps * c->frame_bytes;
}

// A slot's frames are those of the block that they are made after, with local memory of their own.
static void furnish(Context *c, Residents *r, int64_t slot, char *frames, char *made) {
  for (int w = 0; w < c->warps; w++) {
    Frame *f = frame_of(c, made, w);
    *f = *frame_of(c, frames, w);
    f->local = r->local + (slot * c->warps + w) * r->local_step;
  }
}

// What blocks did before a barrier of the grid is ordered before all that follows.
static void pass_grid(Context *c, Residents *r, int64_t used) {
  Machine *m = c->machine;
  m->grid_barriers++, m->epoch++;
  for (Region *g = m->regions; g < m->regions + m->region_count; g++) {
    if (!g->writer || !g->touched_high) continue;
    int grain = m->global_grain;
    uint64_t first = (g->touched_low - g->low) >> grain, words = ((g->touched_high - g->low - 1) >> grain) + 1 - first;
    memset(g->writer + first, 0, 4 * words);
    if (g->reader) memset(g->reader + first, 0, 4 * words);
  }
  for (int64_t slot = 0; slot < used; slot++) {
    if (!r->block[slot]) continue;
    char *frames = r->frames + slot * c->warps * c->frame_bytes;
    for (int w = 0; w < c->warps; w++) frame_of(c, frames, w)->barrier = -1, frame_of(c, frames, w)->waiting = 0;
    r->at_grid[slot] = 0;
    if (!m->clocks) continue;
    m->shadow = (uint32_t *)(r->shadow + slot * r->shadow_step);
    begin_clocks(c);
  }
}

// All blocks of a grid, as many at the same time as there is room for.
int wt_run_together(Context *c, char *frames, Residents *r, const Variants *v, const uint32_t *alive, int64_t count) {
  int64_t next = 0, live = 0, waiting = 0, ended = 0, used = 0;
  c->machine->thread = c->machine->let_go();
  for (uint64_t pass = 1; !c->trap; pass++) {
    if (pass % BLOCKS == 0) interrupted(c);
    for (int64_t slot = 0; slot < r->room && !c->trap; slot++) {
      if (slot >= used && next == count) break;
      if (r->at_grid[slot]) continue;
      int fresh = !r->block[slot];
      if (fresh && next == count) continue;
      if (fresh) r->block[slot] = (int64_t)permuted(c->schedule, count, next++) + 1, live++;
      char *own = enter(c, r, slot);
      if (slot >= used) furnish(c, r, slot, frames, own), used = slot + 1;
      if (fresh) begin_block(c, own, alive);
      int plain = v->looked_at && !v->looked_at[c->linear];
      c->checking = plain ? 0 : v->checking;
      int now = run_block(c, own, v->whole[plain], v->partial[plain], alive);
      if (now == AT_GRID) r->at_grid[slot] = 1, waiting++;
      if (now == ENDED) r->block[slot] = 0, live--, ended++, slot -= next < count; // its slot is free for the next
    }
    if (c->trap || (!live && next == count)) break;
    if (waiting < live) continue;
    if (!ended && next == count) pass_grid(c, r, used), waiting = 0;
    else {
      int64_t slot = 0;
      while (!r->at_grid[slot]) slot++;
      hangs(c, enter(c, r, slot));
    }
  }
  settle(c->machine);
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
int wt_gather(const uint32_t *named, int bits, int beyond, int barrier, int sign, Frame *f) {
  uint32_t here = (uint32_t)bits, go = here & f->passes, past = barrier ? 0 : (uint32_t)beyond & f->alive, called = go;
  for (uint32_t b = here; b; b &= b - 1) f->missed |= named[__builtin_ctz(b)] & past;
  for (uint32_t b = sign && called ? 0 : here & ~go; b; b &= b - 1) {
    int lane = __builtin_ctz(b);
    f->named[lane] = named[lane], f->sign[lane] = sign;
    if (named[lane] & f->alive & ~(here | past)) continue;
    go |= 1u << lane;
    if (!barrier && named[lane] & f->missed & ~here) f->forced |= 1u << lane;
  }
  f->held = (f->held | here) & ~go;
  f->at_barrier = ((barrier ? f->at_barrier | here : f->at_barrier & ~here)) & ~go;
  f->passes &= ~go;
  if (!f->held) f->missed = 0;
  if (!called) f->together = go;
  return (int)go;
}

// Lanes that wait at several instructions of one kind, and name the same lanes: all of these.
static uint32_t met_in_branches(const Frame *f) {
  for (uint32_t b = f->held & ~f->at_barrier; b; b &= b - 1) {
    int lane = __builtin_ctz(b);
    uint32_t same = 0;
    for (uint32_t d = f->held & ~f->at_barrier; d; d &= d - 1) {
      int other = __builtin_ctz(d);
      if (f->sign[other] == f->sign[lane] && f->named[other] == f->named[lane]) same |= d & -d;
    }
    if (f->sign[lane] && !(f->named[lane] & f->alive & ~same)) return same;
  }
  return 0;
}

// No lane can go on but those that are held: those at a __syncwarp may meet at several; else someone never comes.
void wt_stuck(Frame *f) {
  uint32_t met = f->held & f->at_barrier;
  for (uint32_t before = 0; met != before;) {
    before = met;
    for (uint32_t b = met; b; b &= b - 1)
      if (f->named[__builtin_ctz(b)] & f->alive & ~before) met &= ~(b & -b);
  }
  if (!met) met = met_in_branches(f);
  if (!met) {
    int lowest = 0x7fffffff;
    for (uint32_t b = f->held; b; b &= b - 1)
      if (f->counter[__builtin_ctz(b)] < lowest) lowest = f->counter[__builtin_ctz(b)];
    for (uint32_t b = f->held; b; b &= b - 1)
      if (f->counter[__builtin_ctz(b)] == lowest) met |= b & -b;
    for (uint32_t b = met; b; b &= b - 1)
      if (f->named[__builtin_ctz(b)] & (f->alive | f->missed) & ~met) f->forced |= b & -b;
  }
  f->passes |= met, f->held &= ~met, f->together = met;
}

// `bar.arrive`: the warp is counted at a barrier, and goes on.
void wt_bar_arrive(int number, Context *c, Frame *f) {
  f->arrivals |= 1u << number;
  if (c->machine->clocks) hand_on(c, ((Clocks *)((char *)c->machine->shadow + c->machine->clocks))->handed[number], f->warp);
}

void wt_arrive(int bits, int site, Context *c, Frame *f) {
  if (f->waiting && f->barrier_site != site)
    report(c, DIVERGENT_BARRIER, site, f->warp * LANES + __builtin_ctz(bits), f->warp * LANES + __builtin_ctz(f->waiting), f->barrier_site, 0);
  f->barrier_site = site;
}

// A warp asks for what another warp or block writes: from time to time it lets them go on (2); it waits for ever (1).
int wt_spin(int site, Context *c, Frame *f) {
  if (++f->spins < MOST_SPINS) return c->trap ? 1 : (f->spins & PATIENCE) ? 0 : 2;
  report(c, SPINNING, site, f->warp * LANES, 0, 0, 0);
  if (!c->trap) c->trap = TRAP_DEADLOCK;
  return 1;
}

uint64_t wt_clock(Context *c) { return c->machine->clock += 128; }
