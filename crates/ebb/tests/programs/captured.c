/* Writes to the very pages that are leaving, in all ways at once, in MIB of memory for SECONDS. Writers count in words
 * of their own of random pages. Readers read(2) blocks of a file into quarters of pages that are theirs alone. Direct
 * reads past the page cache fill whole pages, which are pinned meanwhile. Now and then a child writes to some.
 *
 * Nothing may be lost: the counts add up, and blocks are there when a read is over, when the page is met again,
 * and at the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WRITERS = 3, READERS = 2, DIRECT = 2, BLOCKS = 64, QUARTER = PAGE / 4 };

struct page {
    uint64_t counts[QUARTER / 8];
    unsigned char blocks[3][QUARTER];
};

static struct page *pages;
static size_t count;
/* The block that each page was given last; 0: none. Even pages are counted in and read to, odd ones read directly. */
static unsigned char (*given)[READERS];
static uint64_t totals[WRITERS];
static int plain, direct;
static volatile int over;

static void fail(const char *what, size_t page) {
    printf("%s was lost in page %zu\n", what, page);
    fflush(stdout);
    _exit(1);
}

static uint64_t draw(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* A block holds its number in each byte. */
static int holds(const unsigned char *at, size_t bytes, int block) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != block)
            return 0;
    return 1;
}

static void *write_words(void *argument) {
    size_t me = (size_t)argument;
    uint64_t x = 0x9e3779b97f4a7c15 + me * 7919;
    while (!over) {
        size_t at = draw(&x) % (count / 2) * 2;
        ((volatile uint64_t *)pages[at].counts)[me]++;
        totals[me]++;
    }
    return NULL;
}

static void *read_blocks(void *argument) {
    size_t me = (size_t)argument;
    uint64_t x = 0xbf58476d1ce4e5b9 + me * 104729;
    while (!over) {
        size_t at = draw(&x) % (count / 2) * 2;
        int block = 1 + draw(&x) % (BLOCKS - 1), before = given[at][me];
        unsigned char *to = pages[at].blocks[me];
        if (before && !holds(to, QUARTER, before))
            fail("a block that was read", at);
        if (pread(plain, to, QUARTER, (off_t)block * PAGE) != QUARTER || !holds(to, QUARTER, block))
            fail("a block that is read", at);
        given[at][me] = block;
    }
    return NULL;
}

static void *read_directly(void *argument) {
    size_t me = (size_t)argument;
    uint64_t x = 0x94d049bb133111eb + me * 1299709;
    while (!over) {
        /* Each has every other odd page. */
        size_t at = draw(&x) % (count / 4) * 4 + 1 + 2 * me;
        int block = 1 + draw(&x) % (BLOCKS - 1), before = given[at][0];
        unsigned char *to = (unsigned char *)&pages[at];
        if (before && !holds(to, PAGE, before))
            fail("a block that was read directly", at);
        if (pread(direct, to, PAGE, (off_t)block * PAGE) != PAGE || !holds(to, PAGE, block))
            fail("a block that is read directly", at);
        given[at][0] = block;
    }
    return NULL;
}

static void fork_once(uint64_t *x) {
    pid_t child = fork();
    if (child < 0)
        return;
    if (child == 0) {
        for (int i = 0; i < 200; i++) {
            size_t at = draw(x) % (count / 2) * 2;
            pages[at].counts[WRITERS]++;
        }
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (status != 0)
        fail("a child", 0);
}

static void make_file(void) {
    int file = open("blocks", O_CREAT | O_TRUNC | O_WRONLY, 0600);
    unsigned char block[PAGE];
    for (int i = 0; i < BLOCKS; i++) {
        memset(block, i, PAGE);
        if (write(file, block, PAGE) != PAGE)
            exit(2);
    }
    fsync(file);
    close(file);
    plain = open("blocks", O_RDONLY);
    direct = open("blocks", O_RDONLY | O_DIRECT);
    if (direct < 0)
        direct = plain;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    make_file();
    count = ((size_t)atoi(argv[1]) << 20) / PAGE;
    pages = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    given = calloc(count, sizeof *given);
    uint64_t x = 88172645463325252ull;
    /* Half of each page does not compress. */
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < sizeof pages[i].blocks[2] / 2; j++)
            pages[i].blocks[2][j] = draw(&x);
    pthread_t threads[WRITERS + READERS + DIRECT];
    size_t n = 0;
    for (size_t i = 0; i < WRITERS; i++)
        pthread_create(&threads[n++], NULL, write_words, (void *)i);
    for (size_t i = 0; i < READERS; i++)
        pthread_create(&threads[n++], NULL, read_blocks, (void *)i);
    for (size_t i = 0; i < DIRECT; i++)
        pthread_create(&threads[n++], NULL, read_directly, (void *)i);
    for (double end = now() + atof(argv[2]); now() < end; usleep(100000))
        fork_once(&x);
    over = 1;
    for (size_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    uint64_t sums[WRITERS] = {0};
    for (size_t i = 0; i < count; i++) {
        if (i % 2 == 0) {
            for (int w = 0; w < WRITERS; w++)
                sums[w] += pages[i].counts[w];
            for (int r = 0; r < READERS; r++)
                if (given[i][r] && !holds(pages[i].blocks[r], QUARTER, given[i][r]))
                    fail("a block", i);
        } else if (given[i][0] && !holds((unsigned char *)&pages[i], PAGE, given[i][0])) {
            fail("a direct block", i);
        }
    }
    for (int w = 0; w < WRITERS; w++)
        if (sums[w] != totals[w])
            fail("a count", 0);
    printf("intact\n");
    return 0;
}
