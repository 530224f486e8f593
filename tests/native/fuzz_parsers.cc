// Feeds every case of a file to the parsers of the op library, under AddressSanitizer and UndefinedBehaviorSanitizer.
// The file: for each case one letter (e expression, p plan, i image, m matmul pool), a 32-bit little-endian length, the bytes.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" {
int tilewright_eval(const char*, size_t, const int64_t*, const int32_t*, int32_t, int64_t, int64_t*, char*, size_t);
int tilewright_run_plan(const char*, size_t, const int64_t*, const int32_t*, int32_t, int64_t, char*, size_t);
int tilewright_check_image(const void*, size_t, int, int, char*, size_t);
void* tilewright_planner_new(const char*, size_t, char*, size_t);
int tilewright_planner_plan(void*, int64_t, int64_t, int64_t, int64_t, void*);
void tilewright_planner_free(void*);
}

// Plans shapes of every size with a pool that was accepted.
static int RunPool(const char* text, size_t length, char* out, size_t out_size) {
  void* planner = tilewright_planner_new(text, length, out, out_size);
  if (planner == nullptr) return 1;
  alignas(8) char choice[256];
  const int64_t sizes[] = {0, 1, 7, 300, 4096, int64_t{1} << 24, int64_t{1} << 48, INT64_MAX, -1};
  for (int64_t m : sizes) {
    for (int64_t n : sizes) {
      for (int64_t k : sizes) tilewright_planner_plan(planner, 1 + m % 5, m, n, k, choice);
    }
  }
  tilewright_planner_free(planner);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> data(std::istreambuf_iterator<char>(file), {});
  const int64_t dims[] = {1, 3, 224, 224, 64, 3, 7, 7};
  const int32_t ranks[] = {4, 4};
  char out[65536];
  long accepted = 0, refused = 0;
  for (size_t at = 0; at + 5 <= data.size();) {
    uint32_t length;
    std::memcpy(&length, &data[at + 1], 4);
    const std::vector<char> text(data.begin() + at + 5, data.begin() + at + 5 + length);  // of its exact size, so that a read past the end is seen
    int64_t value = 0;
    out[0] = '\0';
    int result = data[at] == 'e'   ? tilewright_eval(text.data(), length, dims, ranks, 2, 132, &value, out, sizeof(out))
                 : data[at] == 'm' ? RunPool(text.data(), length, out, sizeof(out))
                 : data[at] == 'p' ? tilewright_run_plan(text.data(), length, dims, ranks, 2, 132, out, sizeof(out))
                                   : tilewright_check_image(text.data(), length, 9, 0, out, sizeof(out));
    if (result != 0 && out[0] == '\0') {
      std::fprintf(stderr, "a refusal without a text\n");
      return 1;
    }
    ++(result == 0 ? accepted : refused);
    at += 5 + length;
  }
  std::printf("%ld accepted, %ld refused\n", accepted, refused);
  return 0;
}
