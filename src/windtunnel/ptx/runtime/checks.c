// What each access of a warp is checked and counted for.
#include "runtime.h"

static void add_fault(Machine *m, Fault fault) {
  for (int64_t i = 0; i < m->fault_count; i++)
    if (m->faults[i].site == fault.site && m->faults[i].kind == fault.kind) {
      Fault *f = &m->faults[i];
      int64_t away = fault.address > f->address ? fault.address - f->address : f->address - fault.address;
      f->count++;
      if (f->kind == SAME_VALUE && away > f->detail) f->detail = away;
      return;
    }
  if (m->fault_count < m->fault_room) m->faults[m->fault_count++] = fault;
}

void report(Context *c, int kind, int site, int thread, int other, uint64_t address, int64_t detail) {
  add_fault(c->machine, (Fault){kind, site, thread, (int32_t)c->linear, other, 1, address, detail});
}

// A store is about to happen that is a fault unless it leaves memory as it is.
void suspect(Context *c, Fault fault, int same, uint64_t place, int size) {
  Machine *m = c->machine;
  if (size > SUSPECT_BYTES || m->suspected == SUSPECTS) { add_fault(m, fault); return; }
  Suspect *s = &m->suspects[m->suspected++];
  s->fault = fault, s->place = place, s->size = size, s->same = same;
  for (int j = 0; j < size; j++) s->before[j] = ((uint8_t *)place)[j];
}

// What was about to happen has.
void settle(Machine *m) {
  for (int64_t i = 0; i < m->suspected; i++) {
    Suspect *s = &m->suspects[i];
    int changed = 0;
    for (int j = 0; j < s->size; j++) changed |= s->before[j] != ((uint8_t *)s->place)[j];
    if (!changed) s->fault.kind = s->same, s->fault.detail = 0; // bytes between the places of one value each
    if (s->fault.kind) add_fault(m, s->fault);
  }
  m->suspected = 0;
}

static Region *find(Machine *m, uint64_t address) {
  int64_t low = 0, high = m->region_count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (m->regions[middle].low <= address) low = middle + 1;
    else high = middle;
  }
  return low && address < m->regions[low - 1].high ? &m->regions[low - 1] : 0;
}

static int crooked(uint64_t address, int size) { return (address & (uint64_t)(size - 1)) != 0; }

// A warp's access that is one run of neighbours, or four of eight lanes each (all neighbours, or all at one place):
// answers 0 unless all of it is good, with nothing to report. The shapes are access.py's.
enum { NEIGHBOURS, EIGHTS, ONES };

typedef struct {
  uint64_t starts[4], low, high, bytes; // of each run
  int runs, size, shape, kind, constant, site, lane, lanes;
  uint32_t bits;
} Groups;

static int shared_groups(Context *c, Frame *f, const Groups *g) {
  uint64_t end = g->high + g->bytes;
  if (g->low < c->shared_base || end > c->shared_base + (uint64_t)c->shared_bytes) return 0;
  if (c->checking & CHECK) {
    if (g->size < 1 << c->machine->grain || (g->shape == ONES && g->kind != LOAD)) return 0;
    int halves = g->starts[0] == g->starts[2] && g->starts[1] == g->starts[3] && g->kind == LOAD && g->shape == EIGHTS &&
                 g->starts[1] == g->starts[0] + g->bytes; // as tiles of 16 columns are read
    for (int k = 0; k < (halves ? 1 : g->runs); k++) {
      uint64_t offset = g->starts[k] - c->shared_base;
      uint32_t lanes = 0xffu << GROUP * k;
      while (g->shape == ONES && k + 1 < g->runs && g->starts[k + 1] == g->starts[k]) lanes |= 0xffu << GROUP * ++k;
      int good = g->shape == ONES ? shared_one(c, offset, g->size, f->warp, lanes)
                                  : shared_run(c, offset, (int)g->bytes << halves, g->size, f->warp, g->lane + GROUP * k, halves, g->kind);
      if (!good) return 0;
    }
  }
  if (c->checking & COUNT) {
    Site *s = &c->sites[g->site];
    int one = g->shape == ONES && g->low == g->high, near = g->size <= 4 && (end - 1) / 4 - g->low / 4 < 32; // no two words of a bank
    if (one || near || (g->shape == NEIGHBOURS && g->lanes == LANES)) {
      s->wavefronts += one || g->size <= 4 ? 1 : g->size / 4;
      s->requests++, s->lanes += g->lanes, s->bytes += (uint64_t)g->lanes * g->size;
    } else {
      uint64_t a[LANES];
      for (int i = 0; i < LANES; i++)
        a[i] = g->shape == NEIGHBOURS ? g->starts[0] + (uint64_t)(i - g->lane) * g->size
                                      : g->starts[i / GROUP] + (g->shape == ONES ? 0 : (uint64_t)(i % GROUP) * g->size);
      count_wavefronts(s, a, g->bits, g->size);
    }
  }
  return 1;
}

static int64_t distance(uint64_t p, uint64_t low, uint64_t high) {
  return p < low ? (int64_t)(p - low) : p >= high ? (int64_t)(p - high) + 1 : 0;
}

// How far an address lies outside of the allocation, or the nearest of those, that its pointer may belong to.
static int64_t astray(const Site *s, uint64_t p) {
  if (!s->own_high) return 0;
  int64_t least = distance(p, s->own_low, s->own_high);
  for (int64_t k = 0; k < s->other_count && least; k++) {
    int64_t other = distance(p, s->others[2 * k], s->others[2 * k + 1]);
    if ((other < 0 ? -other : other) < (least < 0 ? -least : least)) least = other;
  }
  return least;
}

static int global_groups(Context *c, Frame *f, const Groups *g) {
  Site *s = &c->sites[g->site];
  Region *r = s->region;
  if (!r || g->low < r->low || g->low >= r->high) r = find(c->machine, g->low);
  if (!r || g->high + g->bytes > r->high) return 0;
  if (c->checking & CHECK) {
    uint64_t part = (1u << c->machine->global_grain) - 1, starts = g->starts[0] | g->starts[1] | g->starts[2] | g->starts[3];
    if (r->low & part || ((uint64_t)g->size <= part && ((starts | g->bytes) & part))) return 0;
    if (r->pages && (g->shape == ONES || (uint64_t)g->size <= part)) return 0;
    if (g->constant && r->touched & WRITTEN) return 0;
    if (astray(s, g->low) || astray(s, g->high + g->bytes - 1)) return 0;
    for (int k = 0; k < g->runs; k++)
      if (!global_run(c, r, g->starts[k] - r->low, (int)g->bytes, g->size, f->warp, g->lane + GROUP * k, g->kind)) return 0;
  }
  r->touched |= g->kind == LOAD ? READ : WRITTEN;
  if (g->low < r->touched_low || !r->touched_high) r->touched_low = g->low;
  if (g->high + g->bytes > r->touched_high) r->touched_high = g->high + g->bytes;
  s->low = r->low, s->high = r->high, s->region = r;
  if (c->checking & COUNT) {
    uint64_t base = ((uint64_t)(r - c->machine->regions + 1) << 40) - r->low, places[4];
    for (int k = 0; k < g->runs; k++) places[k] = base + g->starts[k];
    count_runs(c, g->kind, s, places, g->runs, g->bytes, g->lanes, g->size);
  }
  return 1;
}

// The usual case: all lanes are neighbours.
static int line(Context *c, Frame *f, Groups *g, int space) {
  if (crooked(g->starts[0], g->size)) return 0;
  g->runs = 1, g->bytes = (uint64_t)g->size * LANES, g->low = g->high = g->starts[0];
  g->starts[1] = g->starts[2] = g->starts[3] = g->starts[0];
  c->machine->access++;
  int good = space ? shared_groups(c, f, g) : global_groups(c, f, g);
  c->machine->access -= !good;
  return good;
}

static __attribute__((noinline)) int groups(int shape, int bits, const uint64_t *starts, int size, int code, int site, Context *c, Frame *f) {
  Groups g = {{starts[0], starts[1], starts[2], starts[3]}, .runs = 4, .size = size, .shape = shape, .kind = code & 15, .constant = code >> 8, .site = site, .lanes = LANES, .bits = (uint32_t)bits};
  int space = code >> 4 & 15, good = 0;
  if (c->machine->suspected) settle(c->machine);
  if (c->trap || !bits || space > 1) return 0;
  if (shape == NEIGHBOURS && bits == -1) return line(c, f, &g, space);
  if (shape == NEIGHBOURS) { // of the lanes that take part, if these are neighbours
    uint32_t rest = g.bits >> __builtin_ctz(g.bits);
    if (rest & (rest + 1)) return 0;
    g.lane = __builtin_ctz(g.bits), g.lanes = __builtin_popcount(g.bits), g.runs = 1;
    g.starts[0] += (uint64_t)g.lane * size;
    g.starts[1] = g.starts[2] = g.starts[3] = g.starts[0];
  } else if (bits != -1) return 0;
  g.bytes = (uint64_t)size * (shape == ONES ? 1 : shape == EIGHTS ? GROUP : g.lanes);
  g.low = g.high = g.starts[0];
  uint64_t places = g.starts[0];
  for (int k = 1; k < 4; k++) g.low = g.starts[k] < g.low ? g.starts[k] : g.low, g.high = g.starts[k] > g.high ? g.starts[k] : g.high, places |= g.starts[k];
  if (crooked(places, size)) return 0;
  c->machine->access++;
  good = space ? shared_groups(c, f, &g) : global_groups(c, f, &g);
  c->machine->access -= !good; // it is asked for lane by lane
  return good;
}

int wt_groups(int shape, int bits, uint64_t a, uint64_t b, uint64_t d, uint64_t e, int size, int code, int site, Context *c, Frame *f) {
  if (code == 16 + LOAD && bits == -1 && size <= 4 && !c->trap) {
    if (shape == ONES && a == b && d == e) return shared_words(c, f->warp, a, d, size, site);
    if (shape == NEIGHBOURS) return shared_neighbours(c, f->warp, a, size, site);
    if (shape == EIGHTS && a == d && b == e && b == a + GROUP * (uint64_t)size) return shared_halves(c, f->warp, a, size, site);
  }
  return groups(shape, bits, (uint64_t[]){a, b, d, e}, size, code, site, c, f);
}

// Shared memory of an SM at its least: what leaves a block's there is in another's, and a GPU goes on. LeetCUDA's
// online softmax (softmax.cu:351) reads 192 bytes behind its 64, and its authors print what comes out.
enum { SHARED_WINDOW = 8192 };

static void wrong(Context *c, int kind, int site, int thread, uint64_t address, int64_t detail) {
  report(c, kind, site, thread, 0, address, detail);
  if (kind == OUT_OF_BOUNDS && c->machine->mapped && c->machine->mapped(address)) return;
  if (kind == SHARED_OUT_OF_BOUNDS && address < SHARED_WINDOW) return;
  if (!c->trap) c->trap = kind == MISALIGNED ? TRAP_MISALIGNED : TRAP_ADDRESS;
}

static int64_t beyond(Machine *m, uint64_t address) { // bytes behind the end of the nearest allocation below
  uint64_t best = 0, end = 0;
  for (int64_t i = 0; i < m->region_count; i++)
    if (m->regions[i].low <= address && m->regions[i].low >= best) best = m->regions[i].low, end = m->regions[i].high;
  return best ? (int64_t)(address - end) : INT64_MAX;
}

// Bytes behind the end of the allocation that the address was computed from, as far as that is known, or before its
// beginning, which are negative; else behind the end of what lies below.
static int64_t how_far(Context *c, int site, uint64_t address) {
  int64_t outside = astray(&c->sites[site], address);
  return outside ? outside - (outside > 0) : beyond(c->machine, address);
}

// The lanes of `bits` that may access `size` bytes at their addresses.
int wt_access(const uint64_t *a, int bits, int size, int code, int site, Context *c, Frame *f) {
  Machine *m = c->machine;
  int space = code >> 4 & 15, kind = code & 15, checking = c->checking & CHECK;
  uint32_t good = (uint32_t)bits, shared = 0;
  uint64_t local_end = f->local + (uint64_t)LANES * c->local_bytes;
  Region *last = 0;
  uint64_t place[LANES]; // as a GPU would see it: allocations are aligned, local memory lies lane beside lane
  if (m->suspected) settle(m);
  if (c->trap) return 0;
  m->access++;
  for (uint32_t b = (uint32_t)bits; b; b &= b - 1) {
    int lane = __builtin_ctz(b), thread = f->warp * LANES + lane;
    uint64_t p = a[lane];
    int in_shared = space == 1 || (space == 0 && p - c->shared_base < (uint64_t)c->shared_bytes);
    int in_local = space == 2 || (space == 0 && c->local_bytes && p >= f->local && p < local_end);
    int bad = 0;
    if (in_shared) {
      uint64_t offset = p - c->shared_base;
      if (offset >= (uint64_t)c->shared_bytes || offset + size > (uint64_t)c->shared_bytes)
        wrong(c, SHARED_OUT_OF_BOUNDS, site, thread, offset, (int64_t)offset - c->shared_bytes), bad = 1;
      else if (crooked(p, size)) wrong(c, MISALIGNED, site, thread, p, 1), bad = 1;
      else {
        shared |= 1u << lane;
        if (checking) shared_shadow(c, offset, size, site, thread, kind);
      }
    } else if (in_local) {
      uint64_t own = f->local + (uint64_t)lane * c->local_bytes;
      if (p < own || p + size > own + c->local_bytes) wrong(c, LOCAL_OUT_OF_BOUNDS, site, thread, p - own, (int64_t)(p - own) - c->local_bytes), bad = 1;
      else if (crooked(p, size)) wrong(c, MISALIGNED, site, thread, p, 2), bad = 1;
      place[lane] = (p - own) / 4 * 128 + lane * 4 + (p & 3);
    } else {
      Region *r = last && p >= last->low && p < last->high ? last : find(m, p);
      if (!r || p + size > r->high) wrong(c, OUT_OF_BOUNDS, site, thread, p, how_far(c, site, p)), bad = 1;
      else if (crooked(p, size)) wrong(c, MISALIGNED, site, thread, p, 0), bad = 1;
      else {
        last = r;
        place[lane] = (p - r->low) + ((uint64_t)(r - m->regions + 1) << 40);
        r->touched |= kind == LOAD ? READ : kind == STORE ? WRITTEN : READ | WRITTEN;
        if (p < r->touched_low || !r->touched_high) r->touched_low = p;
        if (p + size > r->touched_high) r->touched_high = p + size;
        Site *s = &c->sites[site];
        int64_t outside = astray(s, p);
        if (checking && outside) report(c, NEIGHBOUR, site, thread, 0, p, outside);
        else if (checking) global_shadow(c, r, p, size, site, thread, kind, code >> 8);
        if (kind != LOAD && r->blank) memset(r->blank + (p - r->low), 0, size);
      }
    }
    if (bad) good &= ~(1u << lane);
  }
  if (last && space == 0) c->sites[site].low = last->low, c->sites[site].high = last->high;
  if (c->checking & COUNT) {
    if (shared & good) count_wavefronts(&c->sites[site], a, shared & good, size);
    if (good & ~shared) count_lanes(c, last ? kind : -1, &c->sites[site], place, good & ~shared, size);
  }
  return (int)good;
}

// Copies of whole pieces of 16 bytes, each by one thread: looked at as if its warp's lanes took pieces in turn.
enum { PIECE = 16 };

void wt_bulk(int bits, const uint64_t *to, const uint64_t *from, const uint64_t *size, int store, int load, int store_site, int load_site, Context *c, Frame *f) {
  for (uint32_t b = (uint32_t)bits; b && !c->trap; b &= b - 1) {
    int lane = __builtin_ctz(b);
    if (size[lane] % PIECE) { wrong(c, MISALIGNED, load_site, f->warp * LANES + lane, size[lane], 0); return; }
    for (uint64_t at = 0; at < size[lane] && !c->trap; at += LANES * PIECE) {
      uint64_t left = (size[lane] - at) / PIECE, source[LANES], target[LANES];
      uint32_t lanes = left >= LANES ? 0xffffffffu : (1u << left) - 1;
      for (int j = 0; j < LANES; j++) source[j] = from[lane] + at + j * PIECE, target[j] = to[lane] + at + j * PIECE;
      lanes = (uint32_t)wt_access(source, (int)lanes, PIECE, load, load_site, c, f);
      lanes = (uint32_t)wt_access(target, (int)lanes, PIECE, store, store_site, c, f);
      for (uint32_t d = lanes; d; d &= d - 1) memcpy((void *)target[__builtin_ctz(d)], (void *)source[__builtin_ctz(d)], PIECE);
    }
  }
}

// A block begins: what blocks before it did to shared memory is of another epoch.
void wt_block(Context *c) {
  Machine *m = c->machine;
  if (m->suspected) settle(m);
  if (m->shadow) m->shadow[0] = ++m->epoch;
  m->epoch++;
  if (!m->together) m->generation++, m->pool_used = 0;
  if (m->shadow && m->copies) begin_copies(c);
  if (m->clocks) begin_clocks(c);
}

// All lanes meet.
void wt_met(int memory, Context *c, Frame *f) { all_meet(c->machine, f->warp, memory); }

void wt_meet(const uint32_t *named, int bits, int site, int memory, Context *c, Frame *f) {
  uint32_t left = c->machine->lanes ? (uint32_t)bits : 0;
  if (!left) all_meet(c->machine, f->warp, memory);
  while (left) { // those that name the same lanes
    uint32_t who = named[__builtin_ctz(left)];
    for (uint32_t b = left; b; b &= b - 1)
      if (named[__builtin_ctz(b)] == who) left &= ~(b & -b);
    if (f->alive & ~who) some_meet(c->machine, f->warp, memory, who);
    else all_meet(c->machine, f->warp, memory);
  }
  for (uint32_t b = (uint32_t)bits; b; b &= b - 1) {
    int lane = __builtin_ctz(b);
    uint32_t missing = f->forced >> lane & 1 ? named[lane] & ~(uint32_t)bits : 0;
    int outside = !(named[lane] >> lane & 1);
    if (missing || outside) {
      report(c, MISSING_LANES, site, f->warp * LANES + lane, missing ? f->warp * LANES + __builtin_ctz(missing) : -1, named[lane], bits);
      break;
    }
  }
  f->forced &= ~(uint32_t)bits;
}

// Lanes take a shuffle's value from lanes that are not there; answers with what they get instead; 1: zeros, 0: it is let be.
int wt_absent(int bits, const uint32_t *source, int site, Context *c, Frame *f) {
  Machine *m = c->machine;
  if (!bits) return 0;
  int lane = __builtin_ctz(bits);
  if (!m->chosen) report(c, ABSENT, site, f->warp * LANES + lane, 0, 0, source[lane]);
  return !m->chosen ? 0 : m->chosen_site == site ? m->chosen : 1;
}

void wt_trap(int bits, int site, Context *c, Frame *f) {
  if (!bits) return;
  report(c, TRAPPED, site, f->warp * LANES + __builtin_ctz(bits), 0, 0, 0);
  if (!c->trap) c->trap = TRAP_INSTRUCTION;
}

static void append(Machine *m, const void *data, int64_t size) {
  if (m->output_size + size <= m->output_room) memcpy(m->output + m->output_size, data, size);
  m->output_size += size;
}

// A record: the format's address, then 8 bytes of pointer to arguments are copied by the reader's rules (launch.py).
void wt_print(int bits, const uint64_t *formats, const uint64_t *arguments, Context *c, Frame *f) {
  Machine *m = c->machine;
  for (uint32_t b = (uint32_t)bits; b; b &= b - 1) {
    int lane = __builtin_ctz(b);
    int64_t room = arguments[lane] ? 512 : 0;
    uint64_t end = f->local + (uint64_t)(lane + 1) * c->local_bytes;
    if (arguments[lane] && arguments[lane] + room > end && arguments[lane] >= f->local && arguments[lane] < end) room = (int64_t)(end - arguments[lane]);
    uint64_t head[2] = {formats[lane], (uint64_t)room};
    append(m, head, sizeof head);
    append(m, (const void *)arguments[lane], room);
  }
}

void wt_assert(int bits, int site, const uint64_t *message, const uint64_t *file, const uint32_t *line, const uint64_t *function, Context *c, Frame *f) {
  if (!bits) return;
  int lane = __builtin_ctz(bits);
  report(c, ASSERTION, site, f->warp * LANES + lane, (int)line[lane], message[lane], (int64_t)file[lane]);
  if (!c->trap) c->trap = TRAP_ASSERT;
}

void wt_match(const uint64_t *value, const uint32_t *named, int bits, int all, uint32_t *out) {
  for (int lane = 0; lane < LANES; lane++) {
    uint32_t taking = (uint32_t)bits & named[lane];
    uint32_t same = 0;
    for (int other = 0; other < LANES; other++)
      if (taking >> other & 1 && value[other] == value[lane]) same |= 1u << other;
    out[lane] = all ? (same == taking ? taking : 0) : same;
  }
}

enum { ADD, MIN, MAX, AND, OR, XOR };

void wt_redux(const uint32_t *value, const uint32_t *named, int bits, int operation, int is_signed, uint32_t *out) {
  for (int lane = 0; lane < LANES; lane++) {
    uint32_t taking = (uint32_t)bits & named[lane], sum = taking ? value[__builtin_ctz(taking)] : 0;
    for (uint32_t b = taking & (taking - 1); b; b &= b - 1) {
      uint32_t x = value[__builtin_ctz(b)];
      int less = is_signed ? (int32_t)x < (int32_t)sum : x < sum;
      switch (operation) {
      case ADD: sum += x; break;
      case MIN: sum = less ? x : sum; break;
      case MAX: sum = less ? sum : x; break;
      case AND: sum &= x; break;
      case OR: sum |= x; break;
      default: sum ^= x;
      }
    }
    out[lane] = sum;
  }
}
