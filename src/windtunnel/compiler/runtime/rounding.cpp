// Rounding to bfloat16 on the host, which GCC's library has from version 13 on, and clang calls.
#include <string.h>

// A bfloat16 is handed back in the register of a float; by its own type, clang would round it once more.
static float of_bits(unsigned short low) {
  unsigned bits = low;
  float made;
  memcpy(&made, &bits, 4);
  return made;
}

static unsigned bits_of(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static unsigned short rounded(unsigned bits) {
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff; // a GPU's NaN
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

extern "C" __attribute__((weak)) float __truncsfbf2(float value) { return of_bits(rounded(bits_of(value))); }

extern "C" __attribute__((weak)) float __truncdfbf2(double value) {
  float near = (float)value;
  unsigned bits = bits_of(near);
  if (near != value && near == near) { // to an odd number in between, so that it is not rounded twice
    bits -= __builtin_fabs((double)near) > __builtin_fabs(value);
    bits |= 1;
  }
  return of_bits(rounded(bits));
}
