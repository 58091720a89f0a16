// Threads by every door, ended in every way; new and delete in all their forms.
#include <pthread.h>
#include <sys/mman.h>
#include <threads.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "ballast.h"

static std::atomic<int> ended{0};
struct OnExit {
  std::vector<int> held = std::vector<int>(100, 1);
  ~OnExit() { ended += held[7]; }
};
static thread_local OnExit on_exit_object;

static void* returns(void* arg) {
  on_exit_object.held[7] = 1;
  return static_cast<char*>(arg) + 1;
}
static void* exits(void* arg) {
  std::string guard(1000, 'x');
  on_exit_object.held[7] = 1;
  pthread_exit(static_cast<char*>(arg) + 2);
}
static void* cancelled(void*) {
  on_exit_object.held[7] = 1;
  for (;;) pause();
}
static int c11(void* arg) { return *static_cast<int*>(arg) + 1; }

struct alignas(256) Wide {
  char data[300];
};

int main() {
  long sum = 0;
  for (int i = 0; i < 200; i++) {
    pthread_t a, b, c;
    void* result;
    pthread_create(&a, nullptr, returns, nullptr);
    pthread_create(&b, nullptr, exits, nullptr);
    pthread_create(&c, nullptr, cancelled, nullptr);
    pthread_cancel(c);
    pthread_join(a, &result);
    sum += reinterpret_cast<long>(result);
    pthread_join(b, &result);
    sum += reinterpret_cast<long>(result);
    pthread_join(c, &result);
    sum += result == PTHREAD_CANCELED ? 100 : 0;
  }
  std::printf("sum %ld ended at least 400: %d\n", sum, ended >= 400);
  press(nullptr, 0);

  thrd_t t;
  int value = 41, answer = 0;
  thrd_create(&t, c11, &value);
  thrd_join(t, &answer);
  std::printf("c11 %d\n", answer);

  size_t size = 1 << 20;
  void* stack = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, size);
  pthread_t given;
  void* at;
  pthread_create(&given, &attributes, [](void*) -> void* {
    volatile char local = 1;
    volatile uintptr_t at = reinterpret_cast<uintptr_t>(&local);
    return reinterpret_cast<void*>(at);
  }, nullptr);
  pthread_join(given, &at);
  std::printf("given stack %d\n", at >= stack && at < static_cast<char*>(stack) + size);

  std::vector<std::thread> workers;
  std::atomic<long> total{0};
  std::mutex lock;
  std::vector<std::unique_ptr<std::string>> passed;
  for (int w = 0; w < 8; w++) {
    workers.emplace_back([&, w] {
      unsigned seed = w;
      std::map<int, std::unique_ptr<std::string>> kept;
      long mine = 0;
      for (int i = 0; i < 40000; i++) {
        int key = rand_r(&seed) % 500;
        auto& slot = kept[key];
        if (w == 0 && i % 4000 == 3999 && slot) press(slot.get(), sizeof *slot);
        if (slot) {
          mine += slot->size();
          if (key % 3 == 0) {
            std::lock_guard<std::mutex> held(lock);
            passed.push_back(std::move(slot));
            if (passed.size() > 200) passed.erase(passed.begin(), passed.begin() + 100);
          }
        }
        slot = std::make_unique<std::string>(rand_r(&seed) % 3000, 'a' + w);
        auto wide = std::make_unique<Wide>();
        if (reinterpret_cast<uintptr_t>(wide.get()) % 256) std::printf("MISALIGNED\n");
        std::unique_ptr<int[]> array(new (std::nothrow) int[rand_r(&seed) % 100 + 1]);
        array[0] = 1;
        mine += array[0];
      }
      total += mine;
    });
  }
  for (auto& worker : workers) worker.join();
  std::printf("total %ld\n", total.load());
  try {
    volatile size_t absurd = static_cast<size_t>(1) << 62;
    char* p = new char[absurd];
    p[0] = 1;
    std::printf("NO bad_alloc\n");
  } catch (const std::bad_alloc&) {
    std::printf("bad_alloc\n");
  }
  return 0;
}
