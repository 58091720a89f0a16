/* Counts the signals of terminal keys until both SIGINT and SIGQUIT have come, and half a second
 * more, so that one delivered twice is seen. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts, quits;

static void count(int signal) {
    if (signal == SIGINT)
        interrupts++;
    else
        quits++;
}

int main(void) {
    struct sigaction action = {.sa_handler = count};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGQUIT, &action, NULL);
    puts("ready");
    fflush(stdout);
    for (int left = 2000, rest = 50; left > 0 && rest > 0; left--) {
        if (interrupts > 0 && quits > 0)
            rest--;
        usleep(10000);
    }
    printf("interrupts %d quits %d\n", (int)interrupts, (int)quits);
    return 0;
}
