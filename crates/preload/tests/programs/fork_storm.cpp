// Forks by every door while threads allocate, start other threads and write to stdio: each
// child must be able to allocate and to see the parent's data, and after a plain fork to
// start a thread. (With glibc's malloc this hangs: it holds no lock across _Fork or clone.)
#include <pty.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

static std::atomic<bool> stop{false};
static std::vector<std::string>* data;

static int child_work(void* threads) {
  alarm(20);
  std::vector<std::string> mine;
  for (int i = 0; i < 300; i++) mine.emplace_back(i * 37 % 5000, 'c');
  void* large = malloc(5 << 20);
  memset(large, 1, 5 << 20);
  long sum = 0;
  auto read_all = [&] {
    std::vector<int> local(10000, 1);
    for (auto& text : *data) sum += text.size() + text[0];
    sum += local[9] - 1;
  };
  if (threads) {
    std::thread(read_all).join();
  } else {
    read_all();
  }
  free(large);
  long expected = 0;
  for (int i = 0; i < 1000; i++) expected += i % 100 + 1 + 'p';
  return sum == expected ? 0 : 1;
}

static int wait_for(pid_t pid) {
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

int main() {
  data = new std::vector<std::string>;
  for (int i = 0; i < 1000; i++) data->emplace_back(i % 100 + 1, 'p');
  FILE* sink = fopen("/dev/null", "w");
  std::vector<std::thread> noise;
  for (int w = 0; w < 3; w++) {
    noise.emplace_back([w, sink] {
      unsigned seed = w;
      while (!stop) {
        std::vector<void*> blocks;
        for (int i = 0; i < 200; i++) blocks.push_back(malloc(rand_r(&seed) % 100000));
        std::thread([] { free(malloc(100)); }).join();
        for (void* block : blocks) free(block);
        fprintf(sink, "%u\n", seed);
        fflush(nullptr);
      }
    });
  }
  int failed = 0;
  for (int round = 0; round < 120; round++) {
    pid_t pid;
    int terminal;
    switch (round % 4) {
      case 0: pid = fork(); break;
      case 1: pid = _Fork(); break;
      case 2: pid = forkpty(&terminal, nullptr, nullptr, nullptr); break;
      default: {
        std::vector<char> stack(1 << 20);
        pid = clone(child_work, stack.data() + stack.size(), SIGCHLD, nullptr);
        failed += wait_for(pid) != 0;
        continue;
      }
    }
    if (pid == 0) _exit(child_work(round % 4 == 1 ? nullptr : data));
    failed += wait_for(pid) != 0;
    if (round % 4 == 2) close(terminal);
  }
  // A chain: each generation forks the next, then a fan-out.
  pid_t chain = fork();
  if (chain == 0) {
    for (int depth = 0; depth < 20; depth++) {
      pid_t next = fork();
      if (next != 0) _exit(wait_for(next) != 0 || child_work(data));
    }
    _exit(0);
  }
  failed += wait_for(chain) != 0;
  std::vector<pid_t> fan;
  for (int i = 0; i < 30; i++) {
    pid_t pid = fork();
    if (pid == 0) _exit(child_work(data));
    fan.push_back(pid);
  }
  for (pid_t pid : fan) failed += wait_for(pid) != 0;
  stop = true;
  for (auto& thread : noise) thread.join();
  printf("failed %d\n", failed);
  return 0;
}
