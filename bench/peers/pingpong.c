/* Shared-memory ping-pong: how far apart two CPUs of this machine are at this moment.
 *
 * Two processes, each bound to a CPU, pass a counter to and fro through two cache lines. Prints
 * the median and the smallest one-way time in nanoseconds, over batches: "55.1 52.3". Virtual CPUs
 * may move between two cores and two threads of one core; the figure tells which it was.
 * Never runs longer than ten seconds.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 301, TURNS = 200, DEADLINE_S = 10 };
static const double BUDGET_S = 0.5;

/* Lines far enough apart that prefetching pairs of lines does not tie them together. */
struct table {
    _Alignas(256) atomic_uint ping;
    _Alignas(256) atomic_uint pong;
};

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Binds to the n-th CPU that this process may use; no such CPU: -1. */
static int bind_to(int n) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || n-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        return sched_setaffinity(0, sizeof one, &one);
    }
    return -1;
}

static void answer(struct table *table) {
    for (unsigned turn = 1;; turn++) {
        while (atomic_load_explicit(&table->ping, memory_order_acquire) != turn) {
        }
        atomic_store_explicit(&table->pong, turn, memory_order_release);
    }
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(void) {
    struct table *table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED) return perror("mmap"), 1;
    pid_t child = fork();
    if (child < 0) return perror("fork"), 1;
    alarm(DEADLINE_S); /* not inherited through fork: set on both sides */
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (bind_to(1)) _exit(3);
        answer(table);
    }
    if (bind_to(0)) return perror("binding to a CPU"), kill(child, SIGKILL), 1;
    double batches[BATCHES], start = now_s(), last = start;
    unsigned turn = 0;
    int done = 0;
    while (done < BATCHES && (done < 3 || last - start < BUDGET_S)) {
        double before = now_s();
        for (int i = 0; i < TURNS; i++) {
            atomic_store_explicit(&table->ping, ++turn, memory_order_release);
            while (atomic_load_explicit(&table->pong, memory_order_acquire) != turn) {
                /* The other side may have found no CPU of its own. */
                if (turn == 1 && waitpid(child, NULL, WNOHANG) == child)
                    return fprintf(stderr, "pingpong: fewer than two CPUs\n"), 3;
            }
        }
        last = now_s();
        batches[done++] = (last - before) / (2.0 * TURNS) * 1e9;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    qsort(batches, (size_t)done, sizeof(double), ascending);
    printf("%.1f %.1f\n", batches[done / 2], batches[0]);
    return 0;
}
