/* Fills MIB, adds a byte to FILE, and waits until COUNT of its kind have (20 s at most). Then prints
 * the sum of what it has. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    size_t words = ((size_t)atoi(argv[1]) << 20) / sizeof(size_t), sum = 0;
    size_t *held = malloc(words * sizeof(size_t));
    for (size_t i = 0; i < words; i++)
        held[i] = i % 64 == 0 ? i * i : 0;
    int file = open(argv[3], O_WRONLY | O_APPEND);
    struct stat now = {0};
    if (write(file, ".", 1) != 1)
        return 2;
    for (int i = 0; i < 2000 && now.st_size < atoi(argv[2]); i++) {
        usleep(10000);
        fstat(file, &now);
    }
    for (size_t i = 0; i < words; i++)
        sum += held[i];
    printf("%zu\n", sum);
    return 0;
}
