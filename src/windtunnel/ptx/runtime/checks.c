// What each access of a warp is checked and counted for.
#include "runtime.h"

void report(Context *c, int kind, int site, int thread, int other, uint64_t address, int64_t detail) {
  Machine *m = c->machine;
  for (int64_t i = 0; i < m->fault_count; i++)
    if (m->faults[i].site == site && m->faults[i].kind == kind) { m->faults[i].count++; return; }
  if (m->fault_count >= m->fault_room) return;
  m->faults[m->fault_count++] = (Fault){kind, site, thread, (int32_t)c->linear, other, 1, address, detail};
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

// Whether the block touches a sector for the first time, as far as the table's room goes.
static int fresh(Context *c, uint64_t sector) {
  Machine *m = c->machine;
  uint64_t me = c->linear + 1, at = sector * 0x9e3779b97f4a7c15ull >> 48;
  for (int probe = 0; probe < 4; probe++, at = (at + 1) & (SEEN - 1)) {
    if (m->seen_by[at] != me) { m->seen_by[at] = me, m->seen[at] = sector; return 1; }
    if (m->seen[at] == sector) return 0;
  }
  m->seen[at] = sector;
  return 1;
}

static void count_sectors(Context *c, int kind, Site *s, const uint64_t *a, uint32_t bits, int size) {
  uint64_t seen[4 * LANES];
  int n = 0;
  for (uint32_t b = bits; b; b &= b - 1) {
    uint64_t first = a[__builtin_ctz(b)] >> 5, last = (a[__builtin_ctz(b)] + size - 1) >> 5;
    for (uint64_t q = first; q <= last; q++) {
      int j = n - 1;
      while (j >= 0 && seen[j] != q) j--;
      if (j >= 0) continue;
      int k = n - 1;
      while (k >= 0 && seen[k] >> 2 != q >> 2) k--;
      if (k < 0) s->lines++;
      seen[n++] = q;
    }
  }
  if (kind >= 0)
    for (int j = 0; j < n; j++)
      if (fresh(c, seen[j])) *(kind == LOAD ? &c->machine->distinct_loads : &c->machine->distinct_stores) += 1;
  s->requests++, s->sectors += n, s->lanes += __builtin_popcount(bits), s->bytes += (uint64_t)__builtin_popcount(bits) * size;
}

// Bank conflicts: the most different words in one of 32 banks; wide accesses go in two or four parts of the warp.
static void count_wavefronts(Site *s, const uint64_t *a, uint32_t bits, int size) {
  int parts = size > 4 ? size / 4 : 1, width = LANES / parts;
  for (int part = 0; part < parts; part++) {
    int most = 0;
    uint8_t in_bank[32] = {0};
    uint64_t words[32][LANES];
    for (int lane = part * width; lane < (part + 1) * width; lane++) {
      if (!(bits >> lane & 1)) continue;
      for (int k = 0; k < parts; k++) {
        uint64_t word = (a[lane] >> 2) + k;
        int bank = word & 31, j = in_bank[bank] - 1;
        while (j >= 0 && words[bank][j] != word) j--;
        if (j >= 0) continue;
        words[bank][in_bank[bank]++] = word;
        if (in_bank[bank] > most) most = in_bank[bank];
      }
    }
    s->wavefronts += most;
  }
  s->requests++, s->lanes += __builtin_popcount(bits), s->bytes += (uint64_t)__builtin_popcount(bits) * size;
}

// Shadow words of neighbouring lanes, all at once; answers 0 if there is something to report.
static int quiet(Region *r, uint64_t offset, int bytes, int kind, uint32_t me) {
  int n = bytes / 4;
  uint32_t bad = 0, *restrict writer = r->writer + offset / 4, *restrict reader = r->reader + offset / 4;
  if (kind == LOAD) {
    if (r->blank)
      for (int i = 0; i < bytes; i++) bad |= r->blank[offset + i];
    if (r->writer && !bad) {
      for (int i = 0; i < n; i++) bad |= writer[i] && writer[i] != me && !(writer[i] >> 31);
      if (!bad)
        for (int i = 0; i < n; i++) reader[i] = reader[i] && reader[i] != me ? MANY : me;
    }
    return !bad;
  }
  if (r->writer) {
    for (int i = 0; i < n; i++) bad |= (writer[i] && (writer[i] & MANY) != me) | (reader[i] && reader[i] != me);
    if (bad) return 0;
    for (int i = 0; i < n; i++) writer[i] = me;
  }
  if (r->blank) memset(r->blank + offset, 0, bytes);
  return 1;
}

// A whole warp at neighbouring addresses of one allocation, with nothing to report: answers 0 if it is not that.
static int together(Context *c, const uint64_t *a, int size, int kind, int site) {
  Machine *m = c->machine;
  uint64_t differs = 0, bytes = (uint64_t)size * LANES;
  for (int i = 0; i < LANES; i++) differs |= a[i] ^ (a[0] + (uint64_t)i * size);
  if (differs || crooked(a[0], size)) return 0;
  Site *s = &c->sites[site];
  Region *r = find(m, a[0]);
  if (!r || a[0] + bytes > r->high) return 0;
  uint64_t offset = a[0] - r->low;
  if (c->checking & CHECK && (r->low & 3 || !quiet(r, offset, (int)bytes, kind, (uint32_t)c->linear + 1))) return 0;
  r->touched |= kind == LOAD ? READ : WRITTEN;
  if (a[0] < r->touched_low || !r->touched_high) r->touched_low = a[0];
  if (a[0] + bytes > r->touched_high) r->touched_high = a[0] + bytes;
  s->low = r->low, s->high = r->high;
  if (c->checking & COUNT) {
    uint64_t base = (uint64_t)(r - m->regions + 1) << 40, first = (base + offset) >> 5, last = (base + offset + bytes - 1) >> 5;
    s->requests++, s->lanes += LANES, s->bytes += bytes, s->sectors += last - first + 1, s->lines += (last >> 2) - (first >> 2) + 1;
    for (uint64_t q = first; q <= last; q++)
      if (fresh(c, q)) *(kind == LOAD ? &m->distinct_loads : &m->distinct_stores) += 1;
  }
  return 1;
}

// Whether what a block did is handed on to this one: it has passed a fence and an atomic or the like since, and this one
// has asked for such. What is handed on by one variable is taken for handed on by all.
static int ordered(Context *c, uint32_t block) {
  Order *order = c->machine->order;
  if (!order) return 0;
  uint32_t acquired = order[c->linear].acquired;
  if (block == MANY) return acquired > 0;
  return order[block - 1].released && order[block - 1].released <= acquired;
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

static void global_shadow(Context *c, Region *r, uint64_t p, int size, int site, int thread, int kind) {
  uint64_t offset = p - r->low;
  uint32_t me = (uint32_t)c->linear + 1;
  if (kind != STORE && r->blank) {
    int unset = 0;
    for (int j = 0; j < size; j++) unset |= r->blank[offset + j];
    if (unset) report(c, UNINITIALIZED, site, thread, 0, p, (int64_t)offset);
  }
  if (!r->writer) return;
  for (uint64_t w = offset / 4; w <= (offset + size - 1) / 4; w++) {
    uint32_t wrote = r->writer[w], read = r->reader[w];
    if (kind == LOAD) {
      if (wrote && wrote != me && !(wrote >> 31) && !ordered(c, wrote)) report(c, CONFLICT, site, thread, (int)wrote - 1, p, 0);
      r->reader[w] = read && read != me ? MANY : me;
    } else if (kind == STORE) {
      if (size >= 4) {
        if (wrote && (wrote & MANY) != me && !ordered(c, wrote & MANY)) report(c, CONFLICT, site, thread, (int)(wrote & MANY) - 1, p, 1);
        if (read && read != me && !ordered(c, read)) report(c, CONFLICT, site, thread, read == MANY ? -1 : (int)read - 1, p, 2);
        r->writer[w] = me;
      }
    } else r->writer[w] = me | 0x80000000u;
  }
}

// Two accesses to a byte, one of them a write, need a barrier between two warps, and `__syncwarp` between two lanes of a warp.
static int unordered(uint32_t then, uint32_t now, uint32_t warp_then, uint32_t warp_now, uint32_t access, uint32_t this, int other, int me) {
  if (then != now || other == me) return 0;
  if (other == 65535 || other / LANES != me / LANES) return RACE;
  return warp_then == warp_now && access != this ? WARP_RACE : 0;
}

// What looked like a read of memory that nothing wrote was a read before its write: a race.
static void too_early(Context *c, int kind, int site, int reader, int writer, uint64_t offset) {
  Machine *m = c->machine;
  for (int64_t i = 0; i < m->fault_count; i++)
    if (m->faults[i].site == site && m->faults[i].kind == SHARED_UNINITIALIZED) { m->faults[i] = m->faults[--m->fault_count]; break; }
  report(c, kind, site, reader == 65535 ? 0 : reader, writer, offset, 1);
}

static void shared_shadow(Context *c, uint64_t offset, int size, int site, int thread, int kind) {
  Machine *m = c->machine;
  uint32_t epoch = m->epoch, warp_epoch = m->warp_epoch[thread / LANES & 63], me = (uint32_t)c->linear + 1;
  for (uint64_t q = offset >> m->grain; q <= (offset + size - 1) >> m->grain; q++) {
    Shadow *s = &m->shadow[q];
    if (kind != STORE && s->written != me) {
      report(c, SHARED_UNINITIALIZED, site, thread, 0, offset, 0);
      s->written = me, s->early_site = site + 1;
    }
    if (kind == ATOMIC) { s->written = me; continue; }
    int w = s->write_thread, r = s->read_thread;
    int wrote = unordered(s->write_epoch, epoch, s->write_warp_epoch, warp_epoch, s->write_access, m->access, w, thread);
    if (wrote) report(c, wrote, site, thread, w, offset, kind);
    if (kind == LOAD) {
      if (s->read_epoch == epoch && r != thread) s->read_thread = r != 65535 && r / LANES == thread / LANES ? thread : 65535;
      else s->read_epoch = epoch, s->read_thread = thread;
      s->read_warp_epoch = warp_epoch, s->read_access = m->access;
      continue;
    }
    int read = unordered(s->read_epoch, epoch, s->read_warp_epoch, warp_epoch, s->read_access, m->access, r, thread);
    if (read && s->early_site && s->written == me) too_early(c, read, s->early_site - 1, r, thread, offset);
    else if (read) report(c, read, site, thread, r == 65535 ? -1 : r, offset, 2);
    s->write_epoch = epoch, s->write_thread = thread, s->write_warp_epoch = warp_epoch, s->write_access = m->access;
    if (s->written != me) s->early_site = 0;
    s->written = me;
  }
}

// A warp's access of whole words of shared memory, all good: the usual case of shared_shadow without its questions.
static void shared_words(Context *c, Frame *f, const uint64_t *a, uint32_t bits, int size, int site, int kind) {
  Machine *m = c->machine;
  uint32_t epoch = m->epoch, warp_epoch = m->warp_epoch[f->warp & 63], me = (uint32_t)c->linear + 1, twice = 0;
  if (kind == LOAD && size == 4 && bits == 0xffffffffu) { // lanes that read what a later one reads, too
    for (int i = 0; i < LANES - 1; i++) twice |= (uint32_t)(a[i] == a[i + 1]) << i;
    for (int i = 0; i < LANES / 2; i++) twice |= (uint32_t)(a[i] == a[i + LANES / 2]) << i;
  }
  for (uint32_t b = bits & ~twice; b; b &= b - 1) {
    int lane = __builtin_ctz(b), thread = f->warp * LANES + lane;
    uint64_t offset = a[lane] - c->shared_base;
    Shadow *s = &m->shadow[offset >> 2];
    if (twice && (s->written != me || s->write_epoch == epoch)) { // each lane has to be asked who wrote it
      twice = 0, b = bits;
      lane = __builtin_ctz(b), thread = f->warp * LANES + lane, offset = a[lane] - c->shared_base, s = &m->shadow[offset >> 2];
    }
    if (size == 4 && kind == LOAD && s->written == me && (s->write_epoch != epoch || s->write_thread == thread)) {
      if (s->read_epoch != epoch) s->read_epoch = epoch, s->read_thread = thread;
      else if (s->read_thread != thread) s->read_thread = s->read_thread / LANES == thread / LANES ? thread : 65535;
      s->read_warp_epoch = warp_epoch, s->read_access = m->access;
    } else if (size == 4 && kind == STORE && s->write_epoch != epoch && s->read_epoch != epoch) {
      s->write_epoch = epoch, s->write_thread = thread, s->write_warp_epoch = warp_epoch, s->write_access = m->access;
      s->early_site = s->written == me ? s->early_site : 0, s->written = me;
    } else shared_shadow(c, offset, size, site, thread, kind);
  }
}

// A warp's access of shared memory with no lane outside or crooked; answers 0 if there is one.
static int in_shared(Context *c, Frame *f, const uint64_t *a, uint32_t bits, int size, int kind, int site) {
  uint64_t over = 0, odd = 0, limit = (uint64_t)c->shared_bytes - size, first = a[__builtin_ctz(bits)], strange = 0, rising = 0;
  uint64_t low = first, high = first;
  if (c->shared_bytes < size) return 0;
  for (int i = 0; i < LANES; i++) {
    uint64_t here = bits >> i & 1 ? a[i] : first;
    low = here < low ? here : low, high = here > high ? here : high;
    over |= here - c->shared_base > limit, odd |= here, strange |= here ^ first, rising |= a[i] ^ (a[0] + (uint64_t)i * size);
  }
  if (over || crooked(odd, size)) return 0;
  if (c->checking & CHECK) {
    if (c->machine->grain == 2) shared_words(c, f, a, bits, size, site, kind);
    else
      for (uint32_t b = bits; b; b &= b - 1) {
        int lane = __builtin_ctz(b);
        shared_shadow(c, a[lane] - c->shared_base, size, site, f->warp * LANES + lane, kind);
      }
  }
  if (c->checking & COUNT) {
    Site *s = &c->sites[site];
    int near = size <= 4 && (high >> 2) - (low >> 2) < 32; // no two words are of one bank
    if (!strange || near || (!rising && bits == 0xffffffffu)) { // one place, or neighbours
      s->wavefronts += !strange || size <= 4 ? 1 : size / 4;
      s->requests++, s->lanes += __builtin_popcount(bits), s->bytes += (uint64_t)__builtin_popcount(bits) * size;
    } else count_wavefronts(s, a, bits, size);
  }
  return 1;
}

static void wrong(Context *c, int kind, int site, int thread, uint64_t address, int64_t detail) {
  report(c, kind, site, thread, 0, address, detail);
  if (kind == OUT_OF_BOUNDS && c->machine->mapped && c->machine->mapped(address)) return;
  if (!c->trap) c->trap = kind == MISALIGNED ? TRAP_MISALIGNED : TRAP_ADDRESS;
}

static int64_t beyond(Machine *m, uint64_t address) { // bytes behind the end of the nearest allocation below
  uint64_t best = 0, end = 0;
  for (int64_t i = 0; i < m->region_count; i++)
    if (m->regions[i].low <= address && m->regions[i].low >= best) best = m->regions[i].low, end = m->regions[i].high;
  return best ? (int64_t)(address - end) : INT64_MAX;
}

// The lanes of `bits` that may access `size` bytes at their addresses.
int wt_access(const uint64_t *a, int bits, int size, int code, int site, Context *c, Frame *f) {
  Machine *m = c->machine;
  int space = code >> 4, kind = code & 15, checking = c->checking & CHECK;
  uint32_t good = (uint32_t)bits, shared = 0;
  uint64_t local_end = f->local + (uint64_t)LANES * c->local_bytes;
  Region *last = 0;
  uint64_t place[LANES]; // as a GPU would see it: allocations are aligned, local memory lies lane beside lane
  if (c->trap) return 0;
  m->access++;
  if (space == 0 && kind != ATOMIC && bits == -1 && size >= 4 && together(c, a, size, kind, site)) return -1;
  if (space == 1 && bits && in_shared(c, f, a, (uint32_t)bits, size, kind, site)) return bits;
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
      else if (crooked(p, size)) wrong(c, MISALIGNED, site, thread, p, size), bad = 1;
      else {
        shared |= 1u << lane;
        if (checking) shared_shadow(c, offset, size, site, thread, kind);
      }
    } else if (in_local) {
      uint64_t own = f->local + (uint64_t)lane * c->local_bytes;
      if (p < own || p + size > own + c->local_bytes) wrong(c, LOCAL_OUT_OF_BOUNDS, site, thread, p - own, (int64_t)(p - own) - c->local_bytes), bad = 1;
      else if (crooked(p, size)) wrong(c, MISALIGNED, site, thread, p, size), bad = 1;
      place[lane] = (p - own) / 4 * 128 + lane * 4 + (p & 3);
    } else {
      Region *r = last && p >= last->low && p < last->high ? last : find(m, p);
      if (!r || p + size > r->high) wrong(c, OUT_OF_BOUNDS, site, thread, p, beyond(m, p)), bad = 1;
      else if (crooked(p, size)) wrong(c, MISALIGNED, site, thread, p, size), bad = 1;
      else {
        last = r;
        place[lane] = (p - r->low) + ((uint64_t)(r - m->regions + 1) << 40);
        r->touched |= kind == LOAD ? READ : kind == STORE ? WRITTEN : READ | WRITTEN;
        if (p < r->touched_low || !r->touched_high) r->touched_low = p;
        if (p + size > r->touched_high) r->touched_high = p + size;
        if (checking) global_shadow(c, r, p, size, site, thread, kind);
        if (kind != LOAD && r->blank) memset(r->blank + (p - r->low), 0, size);
      }
    }
    if (bad) good &= ~(1u << lane);
  }
  if (last && space == 0) c->sites[site].low = last->low, c->sites[site].high = last->high;
  if (c->checking & COUNT) {
    if (shared & good) count_wavefronts(&c->sites[site], a, shared & good, size);
    if (good & ~shared) count_sectors(c, last ? kind : -1, &c->sites[site], place, good & ~shared, size);
  }
  return (int)good;
}

// A block begins: what blocks before it did to shared memory is of another epoch.
void wt_block(Context *c) { c->machine->epoch++; }

void wt_meet(const uint32_t *named, int bits, int site, Context *c, Frame *f) {
  Machine *m = c->machine;
  m->warp_epoch[f->warp & 63]++;
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
