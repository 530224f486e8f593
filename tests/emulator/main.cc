// Runs launches that it reads from standard input: {i32 descending, i32 late, i32 buffers, {i64 size, bytes} each, i32 calls, call each}, where a
// call is {i32 kernel, i32 grid[3], i32 block, i32 shared bytes, i32 args, {i32 kind (0 null, 1 int, 2 pointer), i32 value or buffer, i64 offset}
// each}. Writes every buffer back to standard output.
#include <ucontext.h>

#include "device.h"

namespace emulator {

Thread* current;
dim3 block_index, grid_size;
std::vector<unsigned char> shared;
bool late_copies;

static ucontext_t scheduler;
static std::vector<ucontext_t> contexts;
static std::vector<Thread> threads;
static int running;
static bool progress;
static const std::function<void()>* body;

int running_threads() {
  return running;
}

static void yield() {
  Thread* me = current;
  swapcontext(&contexts[me - threads.data()], &scheduler);
}

void wait(Barrier& barrier, int count) {
  const unsigned generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    progress = true;
    return;
  }
  while (barrier.generation == generation) yield();
}

static void enter() {
  (*body)();
  current->done = true;
  --running;
  progress = true;
  yield();
}

/// Runs a block: its threads in turn, each until it waits, as long as some go on.
static void run_block(int count, bool descending, const std::function<void()>& kernel) {
  static std::vector<std::vector<char>> stacks;
  body = &kernel;
  std::vector<Warp> warps((count + 31) / 32);
  threads.assign(count, Thread());
  contexts.resize(count);
  stacks.resize(std::max<size_t>(stacks.size(), count), std::vector<char>(256 << 10));
  for (int t = 0; t < count; ++t) {
    threads[t].index = {static_cast<unsigned>(t), 0, 0};
    threads[t].lane = t % 32;
    threads[t].warp = &warps[t / 32];
    getcontext(&contexts[t]);
    contexts[t].uc_stack.ss_sp = stacks[t].data();
    contexts[t].uc_stack.ss_size = stacks[t].size();
    contexts[t].uc_link = nullptr;
    makecontext(&contexts[t], enter, 0);
  }
  running = count;
  while (running) {
    progress = false;
    for (int i = 0; i < count; ++i) {
      const int t = descending ? count - 1 - i : i;
      if (threads[t].done) continue;
      current = &threads[t];
      swapcontext(&scheduler, &contexts[t]);
    }
    if (!progress) {
      std::fprintf(stderr, "deadlock: threads wait at different barriers\n");
      std::exit(3);
    }
  }
}

}  // namespace emulator

struct Kernel {
  int args_bytes;
  void (*run)(const void* args);
};
extern const Kernel KERNELS[];
extern const int KERNEL_COUNT;

template <class T>
static T read() {
  T value;
  if (std::fread(&value, sizeof value, 1, stdin) != 1) std::exit(2);
  return value;
}

int main() {
  const bool descending = read<int>();
  emulator::late_copies = read<int>();
  std::vector<std::pair<unsigned char*, size_t>> buffers(read<int>());
  for (auto& [data, size] : buffers) {
    size = read<int64_t>();
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, size)) return 2;
    data = static_cast<unsigned char*>(memory);
    if (size && std::fread(data, size, 1, stdin) != 1) return 2;
  }
  for (int calls = read<int>(); calls > 0; --calls) {
    const int kernel = read<int>();
    if (kernel < 0 || kernel >= KERNEL_COUNT) return 2;
    emulator::grid_size.x = read<int>();
    emulator::grid_size.y = read<int>();
    emulator::grid_size.z = read<int>();
    const int block = read<int>(), shared_bytes = read<int>();
    std::vector<unsigned char> args;
    for (int count = read<int>(); count > 0; --count) {
      const int kind = read<int>(), value = read<int>();
      const int64_t offset = read<int64_t>();
      const void* pointer = kind == 2 ? buffers.at(value).first + offset : nullptr;
      const size_t bytes = kind == 1 ? 4 : 8, at = (args.size() + bytes - 1) / bytes * bytes;
      args.resize(at + bytes);
      std::memcpy(&args[at], kind == 1 ? static_cast<const void*>(&value) : static_cast<const void*>(&pointer), bytes);
    }
    if (static_cast<int>(args.size()) != KERNELS[kernel].args_bytes) {
      std::fprintf(stderr, "kernel %d takes %d bytes of arguments, not %zu\n", kernel, KERNELS[kernel].args_bytes, args.size());
      return 2;
    }
    const std::function<void()> run = [&] { KERNELS[kernel].run(args.data()); };
    const dim3 grid = emulator::grid_size;
    dim3& index = emulator::block_index;
    for (index.z = 0; index.z < grid.z; ++index.z) {
      for (index.y = 0; index.y < grid.y; ++index.y) {
        for (index.x = 0; index.x < grid.x; ++index.x) {
          emulator::shared.assign(shared_bytes, 0xff);
          emulator::run_block(block, descending, run);
        }
      }
    }
  }
  for (const auto& [data, size] : buffers) {
    if (size && std::fwrite(data, size, 1, stdout) != 1) return 2;
  }
}
