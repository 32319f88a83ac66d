// What blocks did to global memory, and the threads of a block to shared memory: who wrote, who read, and when.
#include "runtime.h"

// A function of a number of cells, for those that most accesses have: loops of known length become a few instructions.
// They are not unrolled before they go in vectors: what is left of them then is bits, one after another.
#define CELLS _Pragma("clang loop unroll(disable) vectorize(enable)") for (int j = 0; j < n; j++)
#define INLINED static inline __attribute__((always_inline))
#define OF_CELLS(run, n, shift, ...) \
  (shift ? run(__VA_ARGS__, n, shift) : n == 32 ? run(__VA_ARGS__, 32, 0) : n == 16 ? run(__VA_ARGS__, 16, 0) \
   : n == 8 ? run(__VA_ARGS__, 8, 0) : run(__VA_ARGS__, n, 0))

// Whether a block's number is of this launch: memory is used again, also for the other purpose, and ATOMICALLY is a sign.
static inline int current(uint32_t number, uint32_t base) { return (int32_t)number > (int32_t)base; }

static Clocks *clocks_of(Machine *m) { return (Clocks *)((char *)m->shadow + m->clocks); }

// Of the places that may be barriers.
static Meeting *meetings_of(Context *c) {
  Machine *m = c->machine;
  return (Meeting *)((Touch *)(clocks_of(m) + 1) + 2 * (int64_t)m->shared_room * c->warps);
}

// The barrier at an offset of shared memory.
Meeting *meeting_at(Context *c, uint64_t offset) {
  Meeting *all = meetings_of(c), *of = &all[offset / 8];
  Clocks *k = clocks_of(c->machine);
  if (!of->of_place) {
    of->of_place = ++k->used;
    all[k->used - 1].place = (uint32_t)(offset / 8);
  }
  return &all[of->of_place - 1];
}

void begin_clocks(Context *c) {
  Clocks *k = clocks_of(c->machine);
  Meeting *all = meetings_of(c);
  for (uint32_t i = 0; i < k->used; i++) {
    all[all[i].place].of_place = 0;
    memset(all[i].gathered, 0, sizeof all->gathered), memset(all[i].released, 0, sizeof all->released);
  }
  memset(k, 0, sizeof *k);
  for (int w = 0; w < c->warps; w++)
    for (int other = 0; other < WARPS; other++) k->seen[w][other] = c->machine->epoch;
}

// What a warp has done and learnt goes to those who take it over; what it does from now on is of another epoch.
void hand_on(Context *c, uint32_t *to, int warp) {
  Machine *m = c->machine;
  uint32_t *seen = clocks_of(m)->seen[warp], own = ++m->epoch;
  for (int w = 0; w < c->warps; w++) {
    uint32_t known = w == warp ? own : seen[w];
    if (known > to[w]) to[w] = known;
  }
}

void take_over(Context *c, const uint32_t *from, int warp) {
  Machine *m = c->machine;
  uint32_t *seen = clocks_of(m)->seen[warp];
  for (int w = 0; w < c->warps; w++)
    if (w != warp && from[w] > seen[w]) seen[w] = from[w];
  all_meet(m, warp, 1);
}

// All lanes of a warp meet: what they have read, they have before that; what they did to memory is over, if it says so.
void all_meet(Machine *m, int warp, int memory) {
  warp &= 63;
  m->warp_epoch[warp] += memory, m->warp_met[warp]++;
  if (!m->lanes) return;
  if (memory) m->lanes[2 * warp + MEMORY].floor = m->warp_epoch[warp];
  m->lanes[2 * warp + ANYTHING].floor = m->warp_met[warp];
}

static void learn(Lanes *l, uint32_t now, uint32_t who) {
  for (int other = 0; other < LANES; other++) {
    uint32_t best = 0;
    for (uint32_t b = who; b; b &= b - 1)
      if (l->known[__builtin_ctz(b)][other] > best) best = l->known[__builtin_ctz(b)][other];
    if (who >> other & 1) best = now;
    for (uint32_t b = who; b; b &= b - 1) l->known[__builtin_ctz(b)][other] = best;
  }
}

// Only some lanes meet.
void some_meet(Machine *m, int warp, int memory, uint32_t who) {
  warp &= 63;
  if (memory) learn(&m->lanes[2 * warp + MEMORY], ++m->warp_epoch[warp], who);
  learn(&m->lanes[2 * warp + ANYTHING], ++m->warp_met[warp], who);
}

// Whether a thread has met another lane of its warp since that did something; `at` has the low bits of when.
static int met_since(Machine *m, uint32_t thread, uint32_t other, uint32_t at, int which) {
  uint32_t warp = thread / LANES & 63, now = which == MEMORY ? m->warp_epoch[warp] : m->warp_met[warp];
  uint32_t ago = (now - at) & 0xffff;
  if (!m->lanes || !ago) return ago != 0;
  Lanes *l = &m->lanes[2 * warp + which];
  uint32_t known = l->known[thread % LANES][other % LANES];
  return (known > l->floor ? known : l->floor) > now - ago;
}

// Warps pass a barrier: those of `arrived` have done so since it was passed last.
void pass_barrier(Context *c, int number, uint32_t arrived, uint32_t waiting) {
  Machine *m = c->machine;
  m->epoch++;
  if (!m->clocks) return;
  uint32_t *handed = clocks_of(m)->handed[number];
  for (uint32_t b = arrived; b; b &= b - 1) hand_on(c, handed, __builtin_ctz(b));
  for (uint32_t b = waiting; b; b &= b - 1) take_over(c, handed, __builtin_ctz(b));
  memset(handed, 0, sizeof *clocks_of(m)->handed);
}

// Whether a warp has met another one at no barrier since that did something.
static inline int since(Machine *m, uint32_t warp, uint32_t other, uint32_t epoch) {
  return m->clocks ? epoch >= clocks_of(m)->seen[warp][other] : epoch == m->epoch;
}

// How the warps touched a cell of shared memory, in kernels with Clocks: by reads, or by atomics.
static Touch *touches(Context *c, uint64_t q, int by_atomics) {
  Machine *m = c->machine;
  return m->clocks ? (Touch *)(clocks_of(m) + 1) + (q + (uint64_t)by_atomics * m->shared_room) * c->warps : 0;
}

// Notes how a thread touched a cell: `cell` has the last epoch, who it was, and its lanes.
static void note(Context *c, Touch *warps, uint32_t *cell, int64_t step, uint32_t tag, uint32_t bit) {
  uint32_t epoch = c->machine->epoch, warp = tag >> 16;
  if (warps) {
    Touch *t = &warps[warp];
    int again = t->tag == tag && since(c->machine, warp, warp, t->at);
    *t = (Touch){epoch, tag, again ? t->lanes | bit : bit};
    return;
  }
  int now = cell[0] == epoch;
  cell[2 * step] = now && cell[step] == tag ? cell[2 * step] | bit : bit;
  cell[step] = now && cell[step] >> 16 != warp ? MANY : tag;
  cell[0] = epoch;
}

// Of the lanes that did something at `tag`, those that this one has not met since.
static uint32_t not_met(Context *c, uint32_t by, uint32_t tag, uint32_t lanes, uint32_t bit, int which) {
  if (by == tag || by >> 16 != tag >> 16 || !c->machine->lanes) return by == tag ? lanes & ~bit : 0;
  uint32_t found = 0, thread = (tag >> 16) * LANES + __builtin_ctz(bit);
  for (uint32_t b = lanes & ~bit; b; b &= b - 1)
    if (!met_since(c->machine, thread, __builtin_ctz(b), by & 0xffff, which)) found |= b & -b;
  return found;
}

// Who else has touched a cell so, with no barrier since: another warp or a lane of the same one; or nobody.
enum { NOBODY, LANE, WARP };
static int touched(Context *c, const Touch *warps, const uint32_t *cell, int64_t step, uint32_t tag, uint32_t bit, int which, int *other) {
  uint32_t warp = tag >> 16;
  if (warps) {
    int found = NOBODY;
    for (int w = 0; w < c->warps; w++) {
      uint32_t lanes = w != (int)warp ? warps[w].lanes : not_met(c, warps[w].tag, tag, warps[w].lanes, bit, which);
      if (!lanes || !since(c->machine, warp, w, warps[w].at)) continue;
      *other = w * LANES + __builtin_ctz(lanes), found = w != (int)warp ? WARP : LANE;
      if (found == WARP) break;
    }
    return found;
  }
  uint32_t by = cell[step], lanes = cell[2 * step];
  if (cell[0] != c->machine->epoch) return NOBODY;
  uint32_t unmet = not_met(c, by, tag, lanes, bit, which);
  int found = by >> 16 != warp ? WARP : unmet ? LANE : NOBODY;
  *other = by == MANY ? -1 : (int)(by >> 16) * LANES + __builtin_ctz((found == WARP ? lanes : unmet) | 0x80000000);
  return found;
}

// What this block did to a cell, and behind it to its neighbours of the same page.
static uint32_t *own(Context *c, Region *r, int64_t q) {
  Machine *m = c->machine;
  uint64_t *page = &r->pages[q / PAGE];
  if (*page >> 32 != m->generation) *page = (uint64_t)m->generation << 32 | m->pool_used++;
  int64_t words = OWN_WORDS + (m->clocks ? (int64_t)sizeof(Touch) / 4 * c->warps : 0);
  return m->pool + (int64_t)(uint32_t)*page * PAGE * words + q % PAGE;
}

// Notes that lanes of a warp read neighbouring cells: `bits` are those of the first cell.
INLINED void note_readers(uint32_t *restrict readers, uint32_t *restrict reader, uint32_t *restrict read_at, int n, int shift, uint32_t bits, uint32_t tag, uint32_t epoch) {
  uint32_t fewer = 0;
  CELLS fewer |= (read_at[j] ^ epoch) | (reader[j] ^ MANY);
  if (!fewer) return; // several warps have read all of them already
  CELLS {
    uint32_t before = read_at[j] == epoch;
    readers[j] = bits << (j >> shift) | (before & (reader[j] == tag) ? readers[j] : 0);
    reader[j] = before & (reader[j] >> 16 != tag >> 16) ? MANY : tag;
    read_at[j] = epoch;
  }
}

// Whether anyone but the lane of each cell has read it in this epoch.
INLINED uint32_t read_by_others(const uint32_t *readers, const uint32_t *reader, const uint32_t *read_at, int n, int shift, int lane, uint32_t warp, uint32_t epoch) {
  uint32_t bad = 0;
  CELLS bad |= (read_at[j] == epoch) & ((reader[j] >> 16 != warp) | (readers[j] != 1u << (lane + (j >> shift))));
  return bad;
}

// Whether neighbouring lanes meet nothing of other threads of their block in neighbouring cells; notes what they do.
INLINED int own_run(Context *c, Region *r, int64_t q, uint32_t me, int warp, int lane, int kind, int n, int shift) {
  Machine *m = c->machine;
  if (m->clocks || q / PAGE != (q + n - 1) / PAGE) return 0;
  uint32_t *at = own(c, r, q), *restrict wrote = at + OWN_WROTE * PAGE, *restrict writer = at + OWN_WRITER * PAGE, *restrict access = at + OWN_ACCESS * PAGE;
  uint32_t *restrict read_at = at + OWN_READ_AT * PAGE, *restrict reader = at + OWN_READER * PAGE, *restrict readers = at + OWN_READERS * PAGE;
  uint32_t epoch = m->epoch, now = m->warp_epoch[warp & 63] & 0xffff, tag = (uint32_t)warp << 16 | (m->warp_met[warp & 63] & 0xffff), thread = warp * LANES + lane, bad = 0;
  CELLS bad |= (wrote[j] == epoch) & ((writer[j] & 0xffff) != thread + (j >> shift));
  if (kind == LOAD) {
    if (bad) return 0;
    note_readers(readers, reader, read_at, n, shift, 1u << lane, tag, epoch);
    return 1;
  }
  if (bad | read_by_others(readers, reader, read_at, n, shift, lane, (uint32_t)warp, epoch)) return 0;
  uint32_t this = m->access;
  CELLS wrote[j] = epoch;
  CELLS writer[j] = now << 16 | (thread + (j >> shift));
  CELLS access[j] = this;
  return 1;
}

// The same for one cell, with a report; `wrote` and `read` say whether that was this block.
static void own_shadow(Context *c, Region *r, int64_t q, int site, int thread, int kind, uint64_t p, int wrote, int read) {
  Machine *m = c->machine;
  uint32_t warp = thread / LANES, now = m->warp_epoch[warp & 63] & 0xffff, tag = warp << 16 | (m->warp_met[warp & 63] & 0xffff), bit = 1u << thread % LANES;
  uint32_t *at = own(c, r, q), *reads = at + OWN_READ_AT * PAGE;
  const int64_t step = PAGE;
  Touch *warps = m->clocks ? (Touch *)(at - q % PAGE + OWN_WORDS * PAGE) + q % PAGE * c->warps : 0;
  int writer = at[OWN_WRITER * step] & 0xffff, reader = -1;
  if (kind == LOAD) {
    if (wrote && writer != thread && since(m, warp, writer / LANES, at[OWN_WROTE * step])) {
      if (writer / LANES != (int)warp) report(c, OWN_RACE, site, thread, writer, p, 1);
      else if (!met_since(m, thread, writer, at[OWN_WRITER * step] >> 16, MEMORY) && at[OWN_ACCESS * step] != m->access) report(c, OWN_WARP_RACE, site, thread, writer, p, 1);
    }
    if (!read) { // what it says is of another block
      *reads = m->epoch - 1;
      if (warps) memset(warps, 0, sizeof(Touch) * c->warps);
    }
    note(c, warps, reads, step, tag, bit);
    return;
  }
  int found = read ? touched(c, warps, reads, step, tag, bit, ANYTHING, &reader) : NOBODY;
  if (found) report(c, found == WARP ? OWN_RACE : OWN_WARP_RACE, site, thread, reader, p, 2);
  at[OWN_WROTE * step] = m->epoch, at[OWN_WRITER * step] = now << 16 | thread, at[OWN_ACCESS * step] = m->access;
}

enum { AHEAD = 1024 }; // cells

// Cells of neighbouring lanes, all at once; answers 0 if there is something to report.
INLINED int global_cells(Context *c, Region *r, uint64_t offset, int bytes, int part, int warp, int lane, int kind, int n, int shift) {
  int g = c->machine->global_grain;
  uint32_t me = c->machine->base + (uint32_t)c->linear + 1, base = c->machine->base, several = c->machine->several;
  uint32_t by = c->machine->unfenced || c->machine->sums ? NUMBER : ~0u; // what was written by an atomic may be read
  uint32_t bad = 0, *restrict writer = r->writer + (offset >> g), *restrict reader = r->reader + (offset >> g);
  if (kind == LOAD) {
    if (r->blank)
      for (int i = 0; i < bytes; i++) bad |= r->blank[offset + i];
    if (r->writer && !bad) {
      CELLS bad |= current(writer[j] & by, base) & (writer[j] != me);
      if (bad || (r->pages && !own_run(c, r, offset >> g, me, warp, lane, kind, n, shift))) return 0;
      if (r->reader)
        CELLS reader[j] = current(reader[j], base) & (reader[j] != me) ? several : me;
    }
    return !bad;
  }
  if (r->writer && !part) {
    for (int j = 0; j < n; j += 16) __builtin_prefetch(writer + j + AHEAD, 1); // where a row's next block comes by
    CELLS bad |= current(writer[j] & NUMBER, base) & ((writer[j] & NUMBER) != me);
    if (r->reader)
      CELLS bad |= current(reader[j], base) & (reader[j] != me);
    if (bad || (r->pages && !own_run(c, r, offset >> g, me, warp, lane, kind, n, shift))) return 0;
    CELLS writer[j] = me;
  }
  if (r->blank) memset(r->blank + offset, 0, bytes);
  return 1;
}

int global_run(Context *c, Region *r, uint64_t offset, int bytes, int size, int warp, int lane, int kind) {
  int g = c->machine->global_grain, n = bytes >> g, part = size < 1 << g, shift = part ? 0 : __builtin_ctz(size) - g;
  if (!r->writer && !r->blank) return 1;
  return OF_CELLS(global_cells, n, shift, c, r, offset, bytes, part, warp, lane, kind);
}

// Whether what a block did is handed on to this one: it has passed a fence and an atomic or the like since, and this one
// has asked for such. What is handed on by one variable is taken for handed on by all.
static int ordered(Context *c, uint32_t block) {
  Machine *m = c->machine;
  if (!m->order) return 0;
  uint32_t acquired = m->order[c->linear].acquired;
  if (block == m->several) return acquired > 0;
  uint32_t released = m->order[block - m->base - 1].released;
  return released && released <= acquired;
}

void wt_fence(Context *c) {
  if (c->machine->order) c->machine->order[c->linear].fenced = 1;
}

// An access of global memory by which blocks tell each other: an atomic, or a volatile one.
void wt_order(int bits, Context *c) {
  Machine *m = c->machine;
  if (!m->order || !bits) return;
  Order *own = &m->order[c->linear];
  own->acquired = m->time;
  if (own->fenced) own->released = ++m->time;
}

void global_shadow(Context *c, Region *r, uint64_t p, int size, int site, int thread, int kind, int special) {
  Machine *m = c->machine;
  uint64_t offset = p - r->low;
  uint32_t base = m->base, me = base + (uint32_t)c->linear + 1;
  int g = m->global_grain;
  if (kind != STORE && r->blank) {
    int unset = 0;
    for (int j = 0; j < size; j++) unset += r->blank[offset + j] != 0;
    // Of a structure or a vector that is read whole, what lies between its members is nothing's value.
    if (unset) report(c, unset < size ? PARTLY_UNINITIALIZED : UNINITIALIZED, site, thread, 0, p, (int64_t)offset);
  }
  if (!r->writer) return;
  for (uint64_t w = offset >> g; w <= (offset + size - 1) >> g; w++) {
    uint32_t wrote = r->writer[w] & NUMBER, atomically = r->writer[w] & ATOMICALLY, read = r->reader ? r->reader[w] : 0;
    int writer = wrote == m->several ? -1 : (int)(wrote - base) - 1, summed = (r->writer[w] & SUMMED) != 0;
    int other_wrote = current(wrote, base) && wrote != me && !ordered(c, wrote);
    if (kind == LOAD && special && current(wrote, base)) report(c, CACHED, site, thread, writer, p, 0);
    if (r->pages && kind != ATOMIC) own_shadow(c, r, w, site, thread, kind, p, wrote == me && !atomically, read == me);
    if (kind == LOAD) {
      if (other_wrote && (!atomically || m->unfenced || summed)) report(c, CONFLICT, site, thread, writer, p, atomically ? 3 : 0);
      if (r->reader) r->reader[w] = current(read, base) && read != me ? m->several : me;
    } else if (kind == STORE) {
      if (other_wrote) suspect(c, (Fault){CONFLICT, site, thread, (int32_t)c->linear, writer, 1, p, 1}, SAME_VALUE, p, size);
      if (current(read, base) && read != me && !ordered(c, read)) report(c, CONFLICT, site, thread, read == m->several ? -1 : (int)(read - base) - 1, p, 2);
      r->writer[w] = me;
    } else {
      if (special && other_wrote && !atomically) report(c, CONFLICT, site, thread, writer, p, 1);
      if (special && wrote == me && !atomically) continue; // what it has set is still no sum for others to add to
      uint32_t by = special == SUMS && current(wrote, base) && wrote != me ? m->several : me;
      r->writer[w] = by | ATOMICALLY | (special == SUMS ? SUMMED : 0);
    }
  }
}

// What looked like a read of memory that nothing wrote was a read before its write: a race.
static void too_early(Context *c, int kind, int site, int reader, int writer, uint64_t offset) {
  Machine *m = c->machine;
  for (int64_t i = 0; i < m->fault_count; i++)
    if (m->faults[i].site == site && m->faults[i].kind == SHARED_UNINITIALIZED) { m->faults[i] = m->faults[--m->fault_count]; break; }
  report(c, kind, site, reader < 0 ? 0 : reader, writer, offset, 1);
}

static uint32_t *array(Machine *m, int which) { return m->shadow + SHADOW_HEAD + (int64_t)which * m->shared_room; }

static Copies *copies_of(Machine *m, int thread) { return (Copies *)((char *)m->shadow + m->copies) + thread; }

void begin_copies(Context *c) { memset(copies_of(c->machine, 0), 0, sizeof(Copies) * c->threads); }

// Asynchronous copies of a warp have begun to write.
void wt_copy(const uint64_t *a, int bits, int size, Context *c, Frame *f) {
  Machine *m = c->machine;
  if (!(c->checking & CHECK) || !m->copies || c->trap) return;
  for (uint32_t b = (uint32_t)bits; b; b &= b - 1) {
    int lane = __builtin_ctz(b), thread = f->warp * LANES + lane;
    uint64_t offset = a[lane] - c->shared_base;
    if (offset + size > (uint64_t)c->shared_bytes) continue;
    for (uint64_t q = offset >> m->grain; q <= (offset + size - 1) >> m->grain; q++)
      array(m, COPIER)[q] = thread + 1, array(m, COPIED)[q] = copies_of(m, thread)->closed;
  }
}

// `commit_group`, and `wait_group` for all but the last `left` groups; `left` is -1 where there is no wait.
void wt_groups_of_copies(int bits, int commits, int left, Context *c, Frame *f) {
  Machine *m = c->machine;
  if (!(c->checking & CHECK) || !m->copies) return;
  m->access++;
  for (uint32_t b = (uint32_t)bits; b; b &= b - 1) {
    Copies *own = copies_of(m, f->warp * LANES + __builtin_ctz(b));
    own->closed += commits;
    if (left < 0 || own->closed < (uint32_t)left) continue;
    for (; own->over < own->closed - left; own->over++)
      own->epoch[own->over % ENDS] = m->epoch, own->warp_epoch[own->over % ENDS] = m->warp_epoch[f->warp & 63] & 0xffff;
  }
}

// A cell that a copy has written is touched: answers 1 if the copy is under way still; else it counts as written when
// its thread waited for it.
static int under_way(Context *c, uint64_t q, int site, int thread, int kind) {
  Machine *m = c->machine;
  uint32_t copier = array(m, COPIER)[q], group = array(m, COPIED)[q];
  if (!copier) return 0;
  if (array(m, WROTE)[q] >= m->shadow[0]) {
    Copies *of = copies_of(m, copier - 1);
    if (group >= of->over) {
      report(c, UNDER_WAY, site, thread, (int)copier - 1, q << m->grain, kind);
      return 1;
    }
    if (of->over - group <= ENDS) {
      array(m, WROTE)[q] = of->epoch[group % ENDS], array(m, WRITE_ACCESS)[q] = 0;
      array(m, WRITER)[q] = of->warp_epoch[group % ENDS] << 16 | (copier - 1);
    }
  }
  array(m, COPIER)[q] = 0;
  return 0;
}

// An atomic is noted; another thread's access that is none needs a barrier in between.
static void beside_atomics(Context *c, uint64_t q, int site, int thread, int kind, uint64_t offset) {
  Machine *m = c->machine;
  int64_t step = m->shared_room;
  uint32_t warp = thread / LANES, bit = 1u << thread % LANES, tag = warp << 16 | (m->warp_epoch[warp & 63] & 0xffff);
  uint32_t *cell = array(m, ATOMIC_AT) + q;
  Touch *warps = touches(c, q, 1);
  int other = -1;
  if (kind == ATOMIC) {
    note(c, warps, cell, step, tag, bit);
    return;
  }
  int found = touched(c, warps, cell, step, tag, bit, MEMORY, &other);
  if (found) report(c, found == WARP ? RACE : WARP_RACE, site, thread, other, offset, 3);
}

// Two accesses to a byte, one of them a write, need a barrier between two warps, and `__syncwarp` between two lanes of a warp.
void shared_shadow(Context *c, uint64_t offset, int size, int site, int thread, int kind) {
  Machine *m = c->machine;
  int warp = thread / LANES;
  uint32_t epoch = m->epoch, first = m->shadow[0], now = m->warp_epoch[warp & 63] & 0xffff, bit = 1u << thread % LANES;
  uint32_t tag = (uint32_t)warp << 16 | (m->warp_met[warp & 63] & 0xffff);
  for (uint64_t q = offset >> m->grain; q <= (offset + size - 1) >> m->grain; q++) {
    uint32_t *cell = array(m, 0) + q;
    int64_t step = m->shared_room;
    if (m->copies && under_way(c, q, site, thread, kind)) continue;
    if (kind != STORE && cell[WROTE * step] < first) {
      report(c, SHARED_UNINITIALIZED, site, thread, 0, offset, 0);
      cell[WROTE * step] = first, cell[EARLY * step] = site + 1;
    }
    int writer = cell[WRITER * step] & 0xffff, other = -1;
    if (m->atomics) beside_atomics(c, q, site, thread, kind, offset);
    else if (kind == ATOMIC) continue;
    if (writer != thread && since(m, warp, writer / LANES, cell[WROTE * step])) {
      int race = writer / LANES != warp ? RACE : !met_since(m, thread, writer, cell[WRITER * step] >> 16, MEMORY) && cell[WRITE_ACCESS * step] != m->access ? WARP_RACE : 0;
      if (race && kind == STORE) suspect(c, (Fault){race, site, thread, (int32_t)c->linear, writer, 1, offset, 1}, 0, c->shared_base + offset, size);
      else if (race) report(c, race, site, thread, writer, offset, 1);
    }
    if (kind == ATOMIC) continue;
    if (kind == LOAD) {
      note(c, touches(c, q, 0), &cell[READ_AT * step], step, tag, bit);
      continue;
    }
    int found = touched(c, touches(c, q, 0), &cell[READ_AT * step], step, tag, bit, ANYTHING, &other), race = found == WARP ? RACE : WARP_RACE;
    if (found && cell[EARLY * step] && cell[WROTE * step] >= first) too_early(c, race, cell[EARLY * step] - 1, other, thread, offset);
    else if (found) report(c, race, site, thread, other, offset, 2);
    if (cell[WROTE * step] < first) cell[EARLY * step] = 0;
    cell[WROTE * step] = epoch, cell[WRITER * step] = now << 16 | thread, cell[WRITE_ACCESS * step] = m->access;
  }
}

// The accesses of neighbouring lanes to neighbouring cells, all at once; answers 0 if one needs a look of its own.
// `twice`: both halves of a warp read the same.
INLINED int shared_cells(Context *c, int64_t q, int warp, int lane, int twice, int kind, int n, int shift) {
  Machine *m = c->machine;
  uint32_t *restrict wrote = array(m, WROTE) + q, *restrict read_at = array(m, READ_AT) + q, *restrict reader = array(m, READER) + q;
  uint32_t *restrict readers = array(m, READERS) + q, *restrict writer = array(m, WRITER) + q;
  uint32_t *restrict access = array(m, WRITE_ACCESS) + q, *restrict early = array(m, EARLY) + q;
  uint32_t epoch = m->epoch, first = m->shadow[0], now = m->warp_epoch[warp & 63] & 0xffff, tag = (uint32_t)warp << 16 | (m->warp_met[warp & 63] & 0xffff);
  uint32_t bad = 0, thread = warp * LANES + lane, this = m->access, *restrict copier = array(m, COPIER) + q;
  if (m->clocks) return 0;
  if (m->copies)
    CELLS bad |= copier[j];
  if (m->atomics)
    CELLS bad |= array(m, ATOMIC_AT)[q + j] == epoch;
  if (bad) return 0;
  if (kind == LOAD) {
    CELLS bad |= wrote[j] - first >= epoch - first; // not yet, or in this epoch
    if (bad) return 0;
    note_readers(readers, reader, read_at, n, shift, twice ? 0x00010001u : 1u << lane, tag, epoch);
    return 1;
  }
  CELLS bad |= (wrote[j] == epoch) & ((writer[j] & 0xffff) != thread + (j >> shift));
  if (bad | read_by_others(readers, reader, read_at, n, shift, lane, (uint32_t)warp, epoch)) return 0;
  CELLS early[j] &= -(uint32_t)(wrote[j] >= first); // an array a loop: these go in vectors
  CELLS wrote[j] = epoch;
  CELLS writer[j] = now << 16 | (thread + (j >> shift));
  CELLS access[j] = this;
  return 1;
}

// What products in tiles write: a word a lane.
static __attribute__((noinline)) int write_32(Context *c, int64_t q, int warp) { return shared_cells(c, q, warp, 0, 0, STORE, 32, 0); }

int shared_run(Context *c, uint64_t offset, int bytes, int size, int warp, int lane, int twice, int kind) {
  if (size == 4 && !lane && c->machine->grain == 2 && bytes == 128 && kind == STORE) return write_32(c, (int64_t)offset >> 2, warp);
  int grain = c->machine->grain, n = bytes >> grain, shift = __builtin_ctz(size) - grain;
  return OF_CELLS(shared_cells, n, shift, c, offset >> grain, warp, lane, twice, kind);
}

// Lanes of a warp that read one cell.
INLINED int one_cell(Machine *m, uint64_t q, uint32_t tag, uint32_t lanes) {
  uint32_t epoch = m->epoch, first = m->shadow[0];
  int64_t step = m->shared_room;
  if (m->clocks) return 0;
  uint32_t *cell = array(m, 0) + q, *reader = &cell[READER * step], before = cell[READ_AT * step] == epoch;
  if (cell[WROTE * step] - first >= epoch - first || (m->copies && cell[COPIER * step]) || (m->atomics && cell[ATOMIC_AT * step] == epoch)) return 0;
  if (before && *reader == MANY) return 1;
  cell[READERS * step] = lanes | (before && *reader == tag ? cell[READERS * step] : 0);
  *reader = before && *reader >> 16 != tag >> 16 ? MANY : tag;
  cell[READ_AT * step] = epoch;
  return 1;
}

// Lanes of a warp that read one place.
int shared_one(Context *c, uint64_t offset, int size, int warp, uint32_t lanes) {
  Machine *m = c->machine;
  uint32_t tag = (uint32_t)warp << 16 | (m->warp_met[warp & 63] & 0xffff);
  for (uint64_t q = offset >> m->grain; q <= (offset + size - 1) >> m->grain; q++)
    if (!one_cell(m, q, tag, lanes)) return 0;
  return 1;
}

static inline void count_read(Context *c, int site, int size, int wavefronts) {
  Site *s = &c->sites[site];
  if (c->checking & COUNT) s->wavefronts += wavefronts, s->requests++, s->lanes += LANES, s->bytes += (uint64_t)LANES * size;
}

// All lanes read one word of shared memory, or each half of the warp its own: as products in tiles do.
int shared_words(Context *c, int warp, uint64_t a, uint64_t b, int size, int site) {
  Machine *m = c->machine;
  uint64_t base = c->shared_base, room = (uint64_t)c->shared_bytes - size;
  if ((int64_t)room < 0 || a - base > room || b - base > room || ((a | b) & (uint64_t)(size - 1))) return 0;
  if (c->checking & CHECK) {
    uint32_t tag = (uint32_t)warp << 16 | (m->warp_met[warp & 63] & 0xffff);
    int g = m->grain, first = a == b ? -1 : 0xffff, rest = 0xffff << 16;
    if (size < 1 << g) return 0;
    if (size > 1 << g) {
      if (!shared_one(c, a - base, size, warp, first) || (a != b && !shared_one(c, b - base, size, warp, rest))) return 0;
    } else if (!one_cell(m, (a - base) >> g, tag, first) || (a != b && !one_cell(m, (b - base) >> g, tag, rest))) return 0;
  }
  m->access++;
  count_read(c, site, size, 1 + (a >> 2 != b >> 2 && !(((a >> 2) - (b >> 2)) & 31)));
  return 1;
}

// Neighbouring words that all lanes read, or `twice`: 16 that both halves of the warp do.
INLINED int shared_line(Context *c, int warp, uint64_t a, int size, int site, int twice) {
  Machine *m = c->machine;
  uint64_t base = c->shared_base, bytes = (uint64_t)size * LANES >> twice;
  if (a < base || a + bytes > base + (uint64_t)c->shared_bytes || (a & (uint64_t)(size - 1))) return 0;
  if (c->checking & CHECK) {
    if (size == 4 && m->grain == 2) {
      if (!shared_cells(c, (int64_t)(a - base) >> 2, warp, 0, twice, LOAD, LANES >> twice, 0)) return 0;
    } else if (size < 1 << m->grain || !shared_run(c, a - base, (int)bytes, size, warp, 0, twice, LOAD)) return 0;
  }
  m->access++;
  count_read(c, site, size, 1);
  return 1;
}
int shared_halves(Context *c, int warp, uint64_t a, int size, int site) { return shared_line(c, warp, a, size, site, 1); }
int shared_neighbours(Context *c, int warp, uint64_t a, int size, int site) { return shared_line(c, warp, a, size, site, 0); }
