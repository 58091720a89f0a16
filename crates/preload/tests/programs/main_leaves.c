// The main thread leaves by pthread_exit; the process ends with the last thread, with
// status 0 and its exit handlers run.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_key_t key;

static void last_words(void) { puts("exit handler"); }
static void destructor(void* value) { printf("destructor %s\n", (char*)value); }

static void* stays(void* arg) {
  pthread_setspecific(key, "of the last thread");
  usleep(100000);
  memset(malloc(64 << 20), 1, 64 << 20);
  puts("the last thread ends");
  return arg;
}

int main(void) {
  pthread_t thread;
  atexit(last_words);
  pthread_key_create(&key, destructor);
  pthread_create(&thread, NULL, stays, NULL);
  pthread_exit(NULL);
}
