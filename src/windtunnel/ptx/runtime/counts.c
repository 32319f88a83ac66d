// What a warp's access costs: sectors and lines of memory, wavefronts of shared memory.
#include "runtime.h"

// Of the sectors of a line, how many the block touches for the first time, as far as the table's room goes.
static int fresh(Context *c, uint64_t line, uint32_t sectors) {
  Machine *m = c->machine;
  uint64_t me = (uint64_t)(m->base + (uint32_t)c->linear + 1) << 4, at = (line + (line >> 33) * 0x9e3779b1) & (SEEN - 1);
  for (int probe = 0; probe < 4; probe++, at = (at + 1) & (SEEN - 1)) {
    uint64_t *entry = m->seen + 2 * at;
    if (entry[1] >> 4 != me >> 4) { entry[0] = line, entry[1] = me | sectors; return __builtin_popcount(sectors); }
    if (entry[0] != line) continue;
    uint32_t more = sectors & ~(uint32_t)entry[1];
    entry[1] |= more;
    return __builtin_popcount(more);
  }
  m->seen[2 * at] = line, m->seen[2 * at + 1] = me | sectors;
  return __builtin_popcount(sectors);
}

typedef struct {
  uint64_t line[4 * LANES];
  uint32_t sectors[4 * LANES];
  int count;
} Lines;

static void touch(Lines *l, uint64_t low, uint64_t high) { // bytes low ... high
  for (uint64_t line = low >> 7; line <= high >> 7; line++) {
    int first = line == low >> 7 ? low >> 5 & 3 : 0, last = line == high >> 7 ? high >> 5 & 3 : 3;
    int k = l->count - 1;
    while (k >= 0 && l->line[k] != line) k--;
    if (k < 0) k = l->count++, l->line[k] = line, l->sectors[k] = 0;
    l->sectors[k] |= (2u << last) - (1u << first);
  }
}

static void add(Context *c, int kind, Site *s, const Lines *l, int lanes, int size) {
  uint64_t sectors = 0, distinct = 0;
  for (int k = 0; k < l->count; k++) {
    sectors += __builtin_popcount(l->sectors[k]);
    if (kind >= 0) distinct += fresh(c, l->line[k], l->sectors[k]);
  }
  *(kind == LOAD ? &c->machine->distinct_loads : &c->machine->distinct_stores) += distinct;
  s->requests++, s->sectors += sectors, s->lines += l->count, s->lanes += lanes, s->bytes += (uint64_t)lanes * size;
}

// How often the busiest address is met: atomics of one address wait for each other in L2.
static void meet(Context *c, const uint64_t *a, uint32_t bits) {
  for (uint32_t b = bits; b; b &= b - 1) {
    uint64_t address = a[__builtin_ctz(b)];
    Hot *h = &c->machine->hot[(address >> 2 ^ address >> 8) & (HOT - 1)];
    uint32_t block = (uint32_t)c->linear + 1;
    if (h->address == address) h->count++, h->votes++, h->several |= h->block != block, h->block = block;
    else if (!h->votes || !--h->votes) *h = (Hot){address, 1, 1, block, 0};
  }
}

void count_lanes(Context *c, int kind, Site *s, const uint64_t *a, uint32_t bits, int size) {
  Lines l;
  l.count = 0;
  for (uint32_t b = bits; b; b &= b - 1) touch(&l, a[__builtin_ctz(b)], a[__builtin_ctz(b)] + size - 1);
  if (kind == ATOMIC) meet(c, a, bits);
  add(c, kind, s, &l, __builtin_popcount(bits), size);
}

// A warp's access that is a few runs of bytes.
void count_runs(Context *c, int kind, Site *s, const uint64_t *starts, int runs, uint64_t bytes, int lanes, int size) {
  Lines l;
  l.count = 0;
  if (runs == 1 && bytes == 128 && !(starts[0] & 127)) l.count = 1, l.line[0] = starts[0] >> 7, l.sectors[0] = 15;
  else for (int k = 0; k < runs; k++) touch(&l, starts[k], starts[k] + bytes - 1);
  add(c, kind, s, &l, lanes, size);
}

// Bank conflicts: the most different words in one of 32 banks; wide accesses go in two or four parts of the warp.
void count_wavefronts(Site *s, const uint64_t *a, uint32_t bits, int size) {
  int parts = size > 4 ? size / 4 : 1, width = LANES / parts;
  uint64_t low = a[__builtin_ctz(bits)], high = low;
  for (uint32_t b = bits; b; b &= b - 1) {
    uint64_t here = a[__builtin_ctz(b)];
    low = here < low ? here : low, high = here > high ? here : high;
  }
  s->requests++, s->lanes += __builtin_popcount(bits), s->bytes += (uint64_t)__builtin_popcount(bits) * size;
  if (low == high || (size <= 4 && (high >> 2) - (low >> 2) < 32)) { s->wavefronts++; return; } // no two words of a bank
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
}
