// FastDiv against the division of the language, with reciprocals that are as wrong as the instruction may be, and a little more.
#include <cstdlib>

#include "common.cuh"

using tilewright::FastDiv;

static long checks, wrong;

static void check(const FastDiv& by, long divisor, long n) {
  if (n < 0 || n > 2147483647) return;
  int remainder;
  const int quotient = by.divide(static_cast<int>(n), remainder);
  ++checks;
  if (quotient != n / divisor || remainder != n % divisor) {
    if (wrong++ < 5) std::printf("%ld / %ld gave %d, %d with an error of %d\n", n, divisor, quotient, remainder, emulator::reciprocal_error);
  }
}

static void check(long divisor) {
  const FastDiv by(static_cast<int>(divisor));
  const long top = 2147483647 / divisor;
  for (long n : {0L, 1L, divisor - 1, divisor, divisor + 1, top * divisor - 1, top * divisor, 2147483646L, 2147483647L}) check(by, divisor, n);
  for (int i = 0; i < 8; ++i) {
    const long multiple = std::rand() % (top + 1) * divisor;
    for (long n : {multiple - 1, multiple, multiple + divisor - 1}) check(by, divisor, n);
  }
}

int main() {
  for (emulator::reciprocal_error = -3; emulator::reciprocal_error <= 3; ++emulator::reciprocal_error) {
    for (long divisor = 1; divisor < 70000; ++divisor) check(divisor);
    for (int i = 0; i < 70000; ++i) check(1 + std::rand() % 2147483647L);
    for (int bit = 17; bit <= 31; ++bit) {
      for (int off = -3; off <= (bit < 31 ? 3 : -1); ++off) check((1L << bit) + off);
    }
  }
  std::printf("%ld checks, %ld wrong\n", checks, wrong);
  return wrong != 0;
}
