/* Memory that may be written and executed, as some language runtimes have all of their heap: every
 * page holds a function of its own and data; both are called and changed in scattered order, by
 * two threads. It is mapped by number, as SBCL does.
 *
 *     executable [MIB] */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
static unsigned char *heap;
static size_t pages;
static uint64_t sums[2];

/* mov eax, IMMEDIATE; ret */
static void write_function(unsigned char *at, uint32_t value) {
    at[0] = 0xb8;
    memcpy(at + 1, &value, 4);
    at[5] = 0xc3;
}

static void *calls(void *argument) {
    size_t me = (size_t)argument;
    uint64_t sum = 0;
    for (int round = 0; round < 3; round++)
        for (size_t i = me; i < pages; i += 2) {
            unsigned char *page = heap + (i * 7919 % pages) * PAGE;
            uint32_t value = ((uint32_t (*)(void))page)();
            uint32_t *data = (uint32_t *)(page + 2048);
            if (value != *data) {
                printf("page %zu: the function says %u, the data %u\n", i * 7919 % pages, value, *data);
                exit(1);
            }
            sum = sum * 31 + value;
            *data = value * 3 + 1;
            write_function(page, *data);
        }
    sums[me] = sum;
    return NULL;
}

int main(int argc, char **argv) {
    pages = (argc > 1 ? (size_t)atoi(argv[1]) : 64) * 256;
    pages += pages % 7919 == 0;
    heap = (void *)syscall(SYS_mmap, NULL, pages * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (size_t i = 0; i < pages; i++) {
        write_function(heap + i * PAGE, (uint32_t)i * 2654435761u);
        uint32_t *data = (uint32_t *)(heap + i * PAGE + 2048);
        for (int k = 0; k < 64; k++) data[k] = (uint32_t)i * 2654435761u + (uint32_t)k;
    }
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) pthread_create(&threads[i], NULL, calls, (void *)i);
    for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("%llx %llx\n", (unsigned long long)sums[0], (unsigned long long)sums[1]);
    return 0;
}
