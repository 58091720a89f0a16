/* Keeps MIB of memory that does not compress (with "easy": to a tenth), walks over it and rewrites parts of it until the
 * file STOP exists, and checks every page whenever it comes by. Writes its process number to the
 * file PID once the memory is filled. With "fork" a child does the same with its copy. With "exec" it
 * waits for the file STOP.exec, then starts itself anew, and once more in a child, which writes its
 * number to PID.child.
 * Prints "intact" for each process; the first damaged page otherwise. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512 };

/* So many words of a page differ; the others repeat the last of them. */
static int different = WORDS;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t seed(size_t page, uint32_t version) {
    return (page + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(version + 1) << 32;
}

static void fill(uint64_t *page, size_t number, uint32_t version) {
    uint64_t state = seed(number, version);
    for (int i = 0; i < WORDS; i++)
        page[i] = i < different ? next(&state) : state;
}

static void check(const uint64_t *page, size_t number, uint32_t version) {
    uint64_t state = seed(number, version);
    for (int i = 0; i < WORDS; i++)
        if (page[i] != (i < different ? next(&state) : state)) {
            printf("page %zu is damaged at word %d\n", number, i);
            fflush(stdout);
            _exit(1);
        }
}

/* Two processes in place of one: the same program from its beginning. */
static void start_anew(char **argv) {
    char name[4096];
    snprintf(name, sizeof name, "%s.child", argv[2]);
    char *child[] = {argv[0], argv[1], name, argv[3], "alone", NULL};
    char *self[] = {argv[0], argv[1], argv[2], argv[3], "alone", NULL};
    execv(argv[0], fork() == 0 ? child : self);
    _exit(1);
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    if (argc > 4 && strcmp(argv[4], "easy") == 0)
        different = WORDS / 16;
    size_t pages = strtoul(argv[1], NULL, 10) * 256;
    uint64_t *memory = malloc(pages * WORDS * sizeof *memory);
    uint32_t *versions = calloc(pages, sizeof *versions);
    for (size_t p = 0; p < pages; p++)
        fill(memory + p * WORDS, p, 0);
    pid_t child = argc > 4 && strcmp(argv[4], "fork") == 0 ? fork() : -1;
    if (child != 0) {
        char name[4096];
        snprintf(name, sizeof name, "%s.new", argv[2]);
        FILE *file = fopen(name, "w");
        fprintf(file, "%d %d\n", (int)getpid(), (int)child);
        fclose(file);
        rename(name, argv[2]);
    }
    char trigger[4096];
    snprintf(trigger, sizeof trigger, "%s.exec", argv[3]);
    int starts_anew = argc > 4 && strcmp(argv[4], "exec") == 0;
    uint64_t state = child == 0 ? 77 : 55;
    do {
        for (size_t p = 0; p < pages; p++) {
            check(memory + p * WORDS, p, versions[p]);
            if (next(&state) % 8 == 0)
                fill(memory + p * WORDS, p, ++versions[p]);
        }
        if (starts_anew && access(trigger, F_OK) == 0)
            start_anew(argv);
    } while (access(argv[3], F_OK) != 0);
    while (wait(NULL) > 0)
        ;
    puts("intact");
    return 0;
}
