/* Times MPI collectives as `syncline perf` times its own, so that the two can be set side by side.
 *
 * Owns the measurement of one MPI library; which one, with what flags, is for libraries.py.
 * Method, the same as bench/src/rank.rs: fill with small integers, call once, check every element;
 * warm up; let the slowest rank's pace decide how many iterations fit into the budget; take the
 * time of every iteration; an iteration took as long as on its slowest rank; check once more.
 *
 *   mpicc -O2 -o mpi_collectives mpi_collectives.c -lm
 *   mpirun -n 2 ./mpi_collectives all_reduce -s 1K,1M [--budget-ms 300] [-w 3]
 *       [--transport shm] [--nice N]
 *
 * --transport is only a label. --nice sets the priority of this rank's scheduling group: some
 * launchers put every rank into a session, and thereby a group, of its own, where the launcher's
 * priority does not reach.
 *
 * Rank 0 prints a line "PEER-ROW {json}" for each size. Bytes are those of the larger buffer.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ITERATIONS_MIN = 5, ITERATIONS_MAX = 20000, SIZES_MAX = 64 };
enum collective { ALL_REDUCE, ALL_GATHER, BROADCAST, REDUCE_SCATTER, ALL_TO_ALL, COLLECTIVES };

static const char *const NAMES[COLLECTIVES] = {
    [ALL_REDUCE] = "all_reduce",
    [ALL_GATHER] = "all_gather",
    [BROADCAST] = "broadcast",
    [REDUCE_SCATTER] = "reduce_scatter",
    [ALL_TO_ALL] = "all_to_all",
};

struct options {
    enum collective collective;
    size_t bytes[SIZES_MAX];
    int sizes;
    int warmup;
    double budget_s;
    const char *transport;
    int nice; /* 0: leaves it */
};

/* Buffers of one rank. In-place collectives use `output` alone. */
struct buffers {
    float *input, *output;
    size_t inputs, outputs; /* elements */
    size_t block;           /* elements of one rank's share, or of everything */
};

static int rank, ranks;

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "mpi_collectives: rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 2);
    abort();
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Small integers: sums over many ranks are exact. */
static float value(int of_rank, size_t index) { return (float)(((size_t)of_rank + index) % 3); }

static float reduced(size_t index) {
    float sum = 0;
    for (int of_rank = 0; of_rank < ranks; of_rank++) sum += value(of_rank, index);
    return sum;
}

static struct buffers allocate(enum collective collective, size_t bytes) {
    size_t elements = bytes / sizeof(float), share = elements / (size_t)ranks;
    if (elements < 1) elements = 1;
    if (share < 1) share = 1;
    struct buffers b = {.outputs = elements, .block = elements};
    if (collective == ALL_GATHER)
        b = (struct buffers){.inputs = share, .outputs = share * (size_t)ranks, .block = share};
    if (collective == REDUCE_SCATTER)
        b = (struct buffers){.inputs = share * (size_t)ranks, .outputs = share, .block = share};
    if (collective == ALL_TO_ALL) {
        size_t all = share * (size_t)ranks;
        b = (struct buffers){.inputs = all, .outputs = all, .block = share};
    }
    if (b.inputs > INT32_MAX || b.outputs > INT32_MAX) die("%zu bytes: too many elements", bytes);
    b.input = calloc(b.inputs ? b.inputs : 1, sizeof(float));
    b.output = calloc(b.outputs, sizeof(float));
    if (!b.input || !b.output) die("no memory for %zu bytes", bytes);
    return b;
}

static void fill(struct buffers *b) {
    float *data = b->inputs ? b->input : b->output;
    size_t count = b->inputs ? b->inputs : b->outputs;
    for (size_t i = 0; i < b->outputs; i++) b->output[i] = 7;
    for (size_t i = 0; i < count; i++) data[i] = value(rank, i);
}

static void call(enum collective collective, struct buffers *b) {
    int block = (int)b->block;
    switch (collective) {
    case ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, b->output, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        MPI_Allgather(b->input, block, MPI_FLOAT, b->output, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BROADCAST:
        MPI_Bcast(b->output, block, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(b->input, b->output, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(b->input, block, MPI_FLOAT, b->output, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case COLLECTIVES:
        break;
    }
}

/* Elements of this rank that are not what they should be after one call on filled buffers. */
static uint64_t wrong(enum collective collective, const struct buffers *b) {
    uint64_t count = 0;
    for (size_t i = 0; i < b->outputs; i++) {
        float expected = 0;
        switch (collective) {
        case ALL_REDUCE: expected = reduced(i); break;
        case ALL_GATHER: expected = value((int)(i / b->block), i % b->block); break;
        case BROADCAST: expected = value(0, i); break;
        case REDUCE_SCATTER: expected = reduced((size_t)rank * b->block + i); break;
        case ALL_TO_ALL:
            expected = value((int)(i / b->block), (size_t)rank * b->block + i % b->block);
            break;
        case COLLECTIVES: break;
        }
        count += b->output[i] != expected;
    }
    return count;
}

static double bus_factor(enum collective collective) {
    double n = ranks;
    if (collective == ALL_REDUCE) return 2 * (n - 1) / n;
    return collective == BROADCAST ? 1 : (n - 1) / n;
}

/* As many as fit into the budget at the slowest rank's pace; the same on all ranks. */
static int agree_on_iterations(const struct options *options, struct buffers *b) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_s();
    for (int i = 0; i < 2; i++) call(options->collective, b);
    double once = (now_s() - start) / 2;
    MPI_Allreduce(MPI_IN_PLACE, &once, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double fit = options->budget_s / (once > 1e-7 ? once : 1e-7);
    if (fit < ITERATIONS_MIN) return ITERATIONS_MIN;
    return fit > ITERATIONS_MAX ? ITERATIONS_MAX : (int)fit;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double percentile(const double *sorted, int count, double part) {
    return sorted[(int)round((count - 1) * part)];
}

/* First line of what the library calls itself: proof of which one was loaded. */
static const char *version(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, "\n")] = 0;
    for (char *c = text; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ') *c = ' ';
    return text;
}

static void print_row(const struct options *options, const struct buffers *b, const double *times,
                      int iterations, uint64_t wrongs) {
    size_t count = b->inputs > b->outputs ? b->inputs : b->outputs;
    enum collective collective = options->collective;
    double p50_us = percentile(times, iterations, 0.5);
    double algbw_gbps = (double)(count * sizeof(float)) / p50_us / 1e3;
    int reduces = collective == ALL_REDUCE || collective == REDUCE_SCATTER;
    printf("PEER-ROW {\"collective\":\"%s\",\"ranks\":%d,\"transport\":\"%s\","
           "\"algorithm\":\"default\",\"version\":\"%s\",\"bytes\":%zu,\"count\":%zu,"
           "\"dtype\":\"f32\",\"op\":\"%s\",\"root\":%d,\"iterations\":%d,"
           "\"p50_us\":%.4f,\"p99_us\":%.4f,\"min_us\":%.4f,"
           "\"algbw_gbps\":%.6f,\"busbw_gbps\":%.6f,\"wrong\":%llu}\n",
           NAMES[collective], ranks, options->transport, version(), count * sizeof(float), count,
           reduces ? "sum" : "none", collective == BROADCAST ? 0 : -1, iterations, p50_us,
           percentile(times, iterations, 0.99), times[0], algbw_gbps,
           algbw_gbps * bus_factor(collective), (unsigned long long)wrongs);
    fflush(stdout);
}

static void measure(const struct options *options, size_t bytes) {
    struct buffers b = allocate(options->collective, bytes);
    fill(&b);
    call(options->collective, &b);
    uint64_t wrongs = wrong(options->collective, &b);

    for (int i = 0; i < options->warmup; i++) call(options->collective, &b);
    int iterations = agree_on_iterations(options, &b);
    double *times = malloc((size_t)iterations * sizeof(double));
    if (!times) die("no memory for %d times", iterations);
    MPI_Barrier(MPI_COMM_WORLD);
    double last = now_s();
    for (int i = 0; i < iterations; i++) {
        call(options->collective, &b);
        double now = now_s();
        times[i] = (now - last) * 1e6;
        last = now;
    }
    /* An iteration took as long as on its slowest rank. */
    MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, (size_t)iterations, sizeof(double), ascending);

    fill(&b);
    call(options->collective, &b);
    wrongs += wrong(options->collective, &b);
    MPI_Allreduce(MPI_IN_PLACE, &wrongs, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) print_row(options, &b, times, iterations, wrongs);
    free(times);
    free(b.input);
    free(b.output);
}

/* `8`, `4K`, `64M`, `1G`: powers of 1024. */
static size_t parse_bytes(const char *text) {
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    int shift = 0;
    if (*end && strchr("Kk", *end)) shift = 10;
    if (*end && strchr("Mm", *end)) shift = 20;
    if (*end && strchr("Gg", *end)) shift = 30;
    if (end == text || end[shift ? 1 : 0] || number > (1ULL << 40) >> shift)
        die("'%s' is not like 8, 4K, 64M or 1G", text);
    return (size_t)number << shift;
}

static struct options parse(int count, char **words) {
    struct options o = {.collective = COLLECTIVES, .warmup = 3, .budget_s = 0.3};
    o.transport = "unknown";
    for (int i = 0; count > 1 && i < COLLECTIVES; i++)
        if (!strcmp(words[1], NAMES[i])) o.collective = (enum collective)i;
    if (o.collective == COLLECTIVES)
        die("the first argument is none of all_reduce, all_gather, broadcast, "
            "reduce_scatter, all_to_all");
    for (int i = 2; i < count; i += 2) {
        const char *flag = words[i];
        if (i + 1 == count) die("%s: no value", flag);
        if (!strcmp(flag, "-s")) {
            for (char *size = strtok(words[i + 1], ","); size; size = strtok(NULL, ",")) {
                if (o.sizes == SIZES_MAX) die("more than %d sizes", SIZES_MAX);
                o.bytes[o.sizes++] = parse_bytes(size);
            }
        } else if (!strcmp(flag, "--budget-ms")) {
            o.budget_s = atof(words[i + 1]) / 1e3;
        } else if (!strcmp(flag, "-w")) {
            o.warmup = atoi(words[i + 1]);
        } else if (!strcmp(flag, "--nice")) {
            o.nice = atoi(words[i + 1]);
        } else if (!strcmp(flag, "--transport")) {
            o.transport = words[i + 1];
        } else {
            die("unknown option %s", flag);
        }
    }
    if (!o.sizes) die("no size: -s 1K,1M");
    return o;
}

/* Gives this rank's scheduling group a priority, unless it has it already. Dies if it cannot: a
 * peer without the others' priority would be measured unfairly. */
static void prioritize(int nice) {
    char text[128] = "", *last;
    FILE *group = fopen("/proc/self/autogroup", "r");
    if (group && fgets(text, sizeof text, group) && (last = strrchr(text, ' '))) {
        if (atoi(last) == nice) {
            fclose(group);
            return;
        }
    }
    if (group) fclose(group);
    /* Without privileges the kernel lets only one such write pass in a tenth of a second. */
    for (int tries = 0; tries < 30; tries++) {
        group = fopen("/proc/self/autogroup", "w");
        if (!group) break;
        int written = fprintf(group, "%d", nice) > 0;
        int closed = fclose(group) == 0, error = errno;
        if (written && closed) return;
        if (error != EAGAIN) break;
        nanosleep(&(struct timespec){.tv_nsec = 150000000}, NULL);
    }
    die("no permission for the priority %d of its scheduling group", nice);
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct options options = parse(count, words);
    if (options.nice) prioritize(options.nice);
    for (int i = 0; i < options.sizes; i++) measure(&options, options.bytes[i]);
    MPI_Finalize();
    return 0;
}
