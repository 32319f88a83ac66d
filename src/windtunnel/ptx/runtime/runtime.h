// What a launch and its warps hold, as layout.py knows it too.
#include <stddef.h>
#include <stdint.h>

#define memcpy __builtin_memcpy
#define memset __builtin_memset

#define LANES 32

typedef struct {
  uint64_t low, high; // of the allocation
  uint8_t *blank;     // a byte a byte: nothing has written it
  uint32_t *writer;   // a word a cell: number of the block that wrote it last in this launch; or Machine.several; the top bits: by an atomic
  uint32_t *reader;   // number of the block that read it in this launch, or Machine.several
  uint64_t touched_low, touched_high;
  int64_t touched; // READ and WRITTEN
  uint64_t *pages; // where the kernel reads and writes it: the generation of PAGE cells << 32 | their number in the pool
} Region;

// What the threads of a block did to cells of global memory: as many arrays of PAGE.
enum { PAGE = 1024 };
enum { OWN_WROTE, OWN_WRITER, OWN_ACCESS, OWN_READ_AT, OWN_READER, OWN_READERS, OWN_WORDS };

typedef struct {
  uint64_t low, high; // of the allocation that the site touched last
  uint64_t requests, lanes, sectors, wavefronts, bytes, lines;
  Region *region; // the same, if an instrumented access found it
  uint64_t own_low, own_high; // the allocation that its addresses are computed from; 0: nobody can tell
  uint64_t *others;           // where it may be one of several: the beginnings and ends of the others
  int64_t other_count;
} Site;

typedef struct {
  int32_t kind, site, thread, block, other, count;
  uint64_t address;
  int64_t detail;
} Fault;

// A store to what another has written too, until it is seen whether it changed anything: several may write one value.
enum { SUSPECTS = 64, SUSPECT_BYTES = 16 };
typedef struct {
  Fault fault;
  uint64_t place;
  int32_t size, same; // the kind of fault if it is the same value; 0: none
  uint8_t before[SUSPECT_BYTES];
} Suspect;

// What a block did to its shared memory, a cell for 1 << grain bytes: as many arrays, since lanes go side by side.
enum {
  WROTE,    // the epoch of the last write; before the block's first one: none
  WRITER,   // who it was: epoch of the warp << 16 | thread
  WRITE_ACCESS,
  READ_AT,  // the epoch of the last read
  READER,   // its warp << 16 | epoch of the warp, or MANY: several warps
  READERS,  // the lanes of that warp that have read since it last met
  EARLY,    // the site that read it before anything was written, + 1
  COPIER,   // the thread whose asynchronous copy wrote it last and is not known to be over, + 1
  COPIED,   // which of that thread's groups of copies that was
  ATOMIC_AT,    // the epoch of the last atomic
  ATOMIC_BY,    // as READER
  ATOMIC_LANES, // as READERS
  CELL_WORDS
};
enum { SHADOW_HEAD = 16 }; // words before the arrays; the first is the block's first epoch

// A thread's asynchronous copies: how many groups it has closed, how many are over, and when the last of these were.
enum { ENDS = 8 };
typedef struct {
  uint32_t closed, over, epoch[ENDS], warp_epoch[ENDS];
} Copies;

// How a warp last touched a cell in one way: the epoch, its warp << 16 | epoch of the warp, and its lanes since then.
typedef struct {
  uint32_t at, tag, lanes;
} Touch;

// In kernels where only some warps of a block may meet, at barriers with a number or in memory: from which epoch on what
// a warp did is not known to be over for another one. Behind it a Touch a cell and warp: of reads, then of atomics.
enum { WARPS = 32, NAMED = 16 };
typedef struct {
  uint32_t seen[WARPS][WARPS];  // what a warp has learnt of each
  uint32_t handed[NAMED][WARPS]; // what those that have arrived at a barrier hand on
  uint32_t used, padding;        // how many Meetings are: those of the places in memory that have been barriers
} Clocks;

// A barrier in memory. Behind the Touches is one for each place that may be one, and before each the number + 1 of the
// Meeting that is the place's: what follows from the numbers of places to these.
typedef struct {
  uint32_t of_place, place, gathered[WARPS], released[WARPS];
} Meeting;

// What the lanes of a warp know of each other, where they may meet in parts: each has met `floor`, and lane a has met
// all that lane b did before `known[a][b]`.
typedef struct {
  uint32_t floor, known[LANES][LANES];
} Lanes;
enum { MEMORY, ANYTHING }; // counted by Machine.warp_epoch, and by warp_met

// When a block last handed on what it had written (an atomic or the like behind a fence), and last took what others had.
typedef struct {
  uint32_t fenced, released, acquired;
} Order;

// An address that atomics meet at, how often, and by which block last; `votes` decides which of two keeps a place.
enum { HOT = 64 };
typedef struct {
  uint64_t address;
  uint32_t count, votes, block, several;
} Hot;

typedef struct {
  Region *regions;
  int64_t region_count;
  Fault *faults;
  int64_t fault_count, fault_room;
  char *output; // printf's: records of (format, arguments)
  int64_t output_size, output_room;
  uint32_t *shadow; // of shared memory: SHADOW_HEAD words, then the arrays of shared_room cells
  uint32_t epoch;
  int32_t shared_room;
  int32_t grain;
  uint32_t access; // numbers the accesses of warps
  uint32_t warp_epoch[64], warp_met[64]; // of each warp: its __syncwarps, and all that its lanes have met at
  uint64_t clock;
  int (*mapped)(uint64_t); // whether a GPU would have memory at an address outside of every allocation; or null
  uint64_t *seen;          // by hash, a line that a block has touched, and that block's number << 4 | the sectors
  uint64_t distinct_loads, distinct_stores;
  void *(*let_go)(void); // Python's lock: PyEval_SaveThread, PyEval_RestoreThread, and PyErr_CheckSignals for Ctrl-C
  void (*take_back)(void *);
  int (*signals)(void);
  void *thread;
  int64_t most_loops; // calls of wt_loop by one warp
  Order *order;       // of each block; null: nothing in the kernel orders accesses of several blocks
  uint32_t time;      // counts what orders them
  int32_t grid_barriers;
  uint32_t base;    // what earlier launches left in shadows is at most this; a block's number is base + 1 + its index
  uint32_t several; // stands for several blocks
  int32_t atomics;  // whether atomics of shared memory are looked at beside other accesses
  int32_t global_grain; // a cell of global memory has 1 << global_grain bytes
  int32_t sums;     // whether it adds up floating-point numbers by atomics
  int32_t unfenced; // blocks wait for each other, and nothing in the kernel is a fence
  uint32_t *pool;   // of pages: blocks that run in turn use the same ones
  int64_t pool_used;
  uint32_t generation, together; // which pages are of now; several blocks are under way
  int32_t chosen, chosen_site; // what shuffles take from lanes that are not there: that at the site, else zeros; or 0: what comes
  int64_t clocks;   // where a block's Clocks lie behind its shadow, or 0: all its warps meet at once
  Lanes *lanes;     // of each warp, MEMORY and ANYTHING; null: lanes meet all at once
  int64_t copies;   // where the threads' Copies lie behind a block's shadow, or 0: it makes none
  Hot hot[HOT];
  int64_t suspected;
  Suspect suspects[SUSPECTS];
} Machine;
#define SEEN (1 << 14)
#define MOST_SPINS (1 << 22)
#define PATIENCE 127 // spins between two turns of the other warps and blocks, less one
#define LOOPS (1 << 22)      // instructions in loops between two calls of wt_loop
#define BLOCKS 256           // between two looks for signals

typedef struct {
  char *parameters;       // 0
  uint64_t shared_base;   // 8
  int32_t block[3];       // 16
  int32_t grid[3];        // 28
  int32_t size[3];        // 40
  int32_t dynamic_shared; // 52
  int32_t shared_bytes;   // 56
  int32_t threads;        // 60
  int32_t trap;           // 64
  int32_t checking;       // 68: CHECK and COUNT
  uint64_t *block_counts; // 72
  Site *sites;            // 80
  Machine *machine;       // 88
  int32_t warps;          // 96
  int32_t local_bytes;    // 100
  uint64_t *variables;    // 104
  uint64_t schedule;      // 112
  int64_t frame_bytes;    // 120
  uint64_t linear;        // 128: the block's number
  int32_t cooperative;    // 136: launched so that it may wait for the whole grid
  struct Frame *last;     // 144: of the warps that compiled code takes in turn, itself, from barrier to barrier; null: one alone
  struct Frame *stopped;  // 152: at which warp it came back
} Context;

// Blocks that are on the GPU at the same time, each in a slot of its own.
typedef struct {
  char *frames, *shadow;
  uint64_t shared, local;
  int64_t shared_step, shadow_step, local_step; // the last of a warp
  int64_t room;
  int64_t *block;  // its number + 1, or 0: the slot is free
  int32_t *at_grid;
} Residents;

typedef struct Frame {
  int32_t counter[LANES]; // 0
  uint32_t alive;         // 128
  uint32_t waiting;       // 132
  int32_t mode;           // 136: 0 whole, 1 partial, 2 finished
  int32_t resume;         // 140
  int32_t warp;           // 144
  int32_t budget;         // 148: instructions in loops until wt_loop is called
  uint64_t local;         // 152
  int32_t barrier;        // 160
  int32_t barrier_count;  // 164
  int32_t barrier_site;   // 168
  int32_t loops;          // 172: how often it was
  int32_t padding[16];    // 176
  uint32_t vote;          // 240: bar.red: of the lanes
  int32_t votes;          // 244: of the block
  int32_t agreement;      // 248: 1: all, 2: any
  int32_t spins;          // 252: how often it asked for what others write
  int32_t thread[3][LANES]; // 256
  uint32_t held;          // 640: lanes that wait for others of their warp
  uint32_t passes;        // 644: of them, those that need not wait any more
  uint32_t forced;        // 648: of these, those whose others never come
  uint32_t at_barrier;    // 652: those that wait at a bar.warp.sync
  uint32_t named[LANES];  // 656: whom they wait for
  uint32_t missed;        // 784: lanes that have passed by what the held ones wait at
  int32_t arrived;        // 788: the barrier at which some lanes are already, + 1, while others ask
  int32_t straight;       // 792: the last block left nothing here but what each block sets anew
  uint32_t together;      // 796: the lanes that have met
  int32_t sign[LANES];    // 800: at which kind of instruction lanes wait, or 0: at one that only meets itself
  uint32_t arrivals;      // 928: barriers at which it has arrived without waiting, a bit each
  uint32_t rest[7];
  uint64_t offered[LANES]; // 960: what lanes have brought to where they meet
} Frame;

enum { CHECK = 1, COUNT = 2 };
enum { GRID = 16 }; // the barrier of the whole grid, beside a block's 16
enum { READ = 1, WRITTEN = 2 };
enum { LOAD, STORE, ATOMIC };
enum { GROUP = 8 }; // lanes of which access.py knows how they lie
enum { READ_ONLY = 1, ADDS = 1, SUMS = 2 }; // of a load; of an atomic
enum { OUT_OF_BOUNDS = 1, UNINITIALIZED, MISALIGNED, RACE, CONFLICT, SHARED_OUT_OF_BOUNDS, SHARED_UNINITIALIZED,
       DIVERGENT_BARRIER, MISSING_LANES, LOCAL_OUT_OF_BOUNDS, ASSERTION, TRAPPED, HANGING, WARP_RACE, EXITED, SPINNING, ENDLESS,
       UNDER_WAY, OWN_RACE, OWN_WARP_RACE, CACHED, NEIGHBOUR, ABSENT, SAME_VALUE, PARTLY_UNINITIALIZED };
enum { TRAP_NONE, TRAP_ADDRESS, TRAP_MISALIGNED, TRAP_ASSERT, TRAP_INSTRUCTION, TRAP_DEADLOCK, TRAP_INTERRUPTED };
#define MANY 0x7fffffffu
#define ATOMICALLY 0x80000000u
#define SUMMED 0x40000000u // beside ATOMICALLY: a sum of floating-point numbers
#define NUMBER 0x3fffffffu

void report(Context *c, int kind, int site, int thread, int other, uint64_t address, int64_t detail);
void suspect(Context *c, Fault fault, int same, uint64_t place, int size);
void settle(Machine *m);

// counts.c
void count_lanes(Context *c, int kind, Site *s, const uint64_t *a, uint32_t bits, int size);
void count_runs(Context *c, int kind, Site *s, const uint64_t *starts, int runs, uint64_t bytes, int lanes, int size);
void count_wavefronts(Site *s, const uint64_t *a, uint32_t bits, int size);
// shadows.c
void global_shadow(Context *c, Region *r, uint64_t p, int size, int site, int thread, int kind, int special);
int global_run(Context *c, Region *r, uint64_t offset, int bytes, int size, int warp, int lane, int kind);
void shared_shadow(Context *c, uint64_t offset, int size, int site, int thread, int kind);
int shared_run(Context *c, uint64_t offset, int bytes, int size, int warp, int lane, int twice, int kind);
void begin_copies(Context *c);
void begin_clocks(Context *c);
Meeting *meeting_at(Context *c, uint64_t offset);
void all_meet(Machine *m, int warp, int memory);
void some_meet(Machine *m, int warp, int memory, uint32_t who);
void hand_on(Context *c, uint32_t *to, int warp);
void take_over(Context *c, const uint32_t *from, int warp);
void pass_barrier(Context *c, int number, uint32_t arrived, uint32_t waiting);
int shared_one(Context *c, uint64_t offset, int size, int warp, uint32_t lanes);
int shared_words(Context *c, int warp, uint64_t a, uint64_t b, int size, int site);
int shared_halves(Context *c, int warp, uint64_t a, int size, int site);
int shared_neighbours(Context *c, int warp, uint64_t a, int size, int site);
