// Nanoseconds of an allocation with its free, at their best of three runs, by pattern.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

// Keeps 5000 blocks of up to `most` bytes and replaces one at random, `count` times.
static void churn(unsigned long seed, int count, size_t most) {
  std::vector<void*> kept(5000, nullptr);
  unsigned long state = seed * 7919 + 1;
  for (int i = 0; i < count; i++) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    void*& slot = kept[(state >> 33) % kept.size()];
    free(slot);
    slot = malloc((state >> 20) % most + 1);
    *static_cast<volatile char*>(slot) = 1;
  }
  for (void* block : kept) free(block);
}

template <typename Work>
static void report(const char* name, long count, Work work) {
  double best = 1e9;
  for (int run = 0; run < 3; run++) {
    auto start = Clock::now();
    work();
    std::chrono::duration<double> took = Clock::now() - start;
    if (took.count() < best) best = took.count();
  }
  std::printf("%-24s %8.1f\n", name, best * 1e9 / count);
}

int main() {
  report("churn to 256 B", 4000000, [] { churn(1, 4000000, 256); });
  report("churn to 4 KiB", 2000000, [] { churn(1, 2000000, 4096); });
  report("churn to 64 KiB", 300000, [] { churn(1, 300000, 65536); });
  report("churn to 512 KiB", 50000, [] { churn(1, 50000, 1 << 19); });
  report("pair of 64 B", 20000000, [] {
    for (int i = 0; i < 20000000; i++) {
      void* volatile block = malloc(64);
      free(block);
    }
  });
  report("4 threads to 1 KiB", 4000000, [] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) threads.emplace_back([t] { churn(t, 1000000, 1024); });
    for (auto& thread : threads) thread.join();
  });
  report("fill 2 M of 100 B, free", 2000000, [] {
    std::vector<void*> blocks(2000000);
    for (void*& block : blocks) *static_cast<volatile char*>(block = malloc(100)) = 1;
    for (void* block : blocks) free(block);
  });
  report("4 MiB, written, freed", 300, [] {
    for (int i = 0; i < 300; i++) {
      char* block = static_cast<char*>(malloc(4 << 20));
      for (int at = 0; at < 4 << 20; at += 4096) block[at] = 1;
      free(block);
    }
  });
}
