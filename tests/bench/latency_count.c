/*
 * How long calls took: see latency.h.
 */
#include "latency.h"

#define STEPS      64 /* buckets from one power of two to the next */
#define STEPS_LOG2 6

static unsigned bucket_of(uint64_t ns)
{
    if (ns < 2 * STEPS)
        return (unsigned)ns;
    unsigned shift = 63 - (unsigned)__builtin_clzll(ns) - STEPS_LOG2;
    uint64_t bucket = shift * (uint64_t)STEPS + (ns >> shift);
    return bucket < LATENCY_BUCKETS ? (unsigned)bucket : LATENCY_BUCKETS - 1;
}

static uint64_t bucket_begin(unsigned bucket)
{
    if (bucket < 2 * STEPS)
        return bucket;
    unsigned shift = bucket / STEPS - 1;
    return (uint64_t)(bucket - shift * STEPS) << shift;
}

void latency_count(struct latency_counts *counts, uint64_t ns)
{
    counts->calls++;
    counts->sum_ns += ns;
    counts->bucket[bucket_of(ns)]++;
    if (ns > counts->max_ns)
        counts->max_ns = ns;
}

void latency_counts_add(struct latency_counts *sum, const struct latency_counts *counts)
{
    sum->calls += counts->calls;
    sum->sum_ns += counts->sum_ns;
    for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
        sum->bucket[i] += counts->bucket[i];
    if (counts->max_ns > sum->max_ns)
        sum->max_ns = counts->max_ns;
}

uint64_t latency_percentile(const struct latency_counts *counts, double percent)
{
    double wanted = (double)counts->calls * percent / 100;
    uint64_t seen = 0;

    if (counts->calls == 0)
        return 0;
    for (unsigned i = 0; i < LATENCY_BUCKETS - 1; i++) {
        seen += counts->bucket[i];
        if (seen > 0 && (double)seen >= wanted) {
            uint64_t last = bucket_begin(i + 1) - 1;
            return last < counts->max_ns ? last : counts->max_ns;
        }
    }
    return counts->max_ns;
}

void latency_counts_print(const char *key, const struct latency_counts *counts)
{
    static const struct {
        const char *key;
        double percent;
    } percentiles[] = {{"p50_ns", 50},     {"p90_ns", 90},       {"p99_ns", 99},
                       {"p99.9_ns", 99.9}, {"p99.99_ns", 99.99}, {NULL, 0}};

    json_object(key);
    json_count("calls", counts->calls);
    json_number("mean_ns", counts->calls ? (double)counts->sum_ns / (double)counts->calls : 0);
    for (unsigned i = 0; percentiles[i].key; i++)
        json_count(percentiles[i].key, latency_percentile(counts, percentiles[i].percent));
    json_count("max_ns", counts->max_ns);
    json_list("histogram");
    for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
        if (!counts->bucket[i])
            continue;
        json_list(NULL);
        json_count(NULL, bucket_begin(i));
        json_count(NULL, counts->bucket[i]);
        json_close();
    }
    json_close();
    json_close();
}
