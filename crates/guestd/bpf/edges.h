/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * When vCPUs were taken away and given back, whatever tells it (steal.bpf.c, tick.bpf.c).
 * A vCPU looks at itself at each task switch and at each timer, and now and then at the
 * others. What is found stands in a mapped array. A ring for each vCPU is nothing but a
 * bell: it wakes the monitor of the vCPU that saw something new.
 *
 * A wake-up of a monitor costs far more than a look. So the agent says in the same array what
 * is worth one: which edges, and from when on the monitor is to wake whatever happens (its
 * alarm). An alarm is due at the first look after its time: no timer is armed for it. Edges
 * that rang no bell are kept, PAST of each vCPU, for the next wake-up.
 */
#ifndef SEEKWAY_EDGES_H
#define SEEKWAY_EDGES_H

#include "core.h"

#define VCPUS 1024
/* Others that are looked at in one look; with more of them, several looks go round. */
#define OTHERS 16

/* Absences of each vCPU that are kept; a power of two. */
#define PAST 8

/* Bits of `quiet`: these edges ring no bell. */
enum { QUIET_LOSS = 1, QUIET_BACK = 2 };

/* Set by the agent before it loads this. */
const volatile struct {
	u64 least_ns;	   /* who was away for less was not away */
	u64 look_ns;	   /* at the others, from one time to the next */
	u64 vcpus;	   /* that there can be */
	u64 steal_from_rq; /* from a CPU's runqueue to its steal_time, in bytes */
} given = {};

struct absence {
	u64 from;
	u64 until;
};

struct vcpu {
	u64 edges;   /* odd: it is away; half of them: how often it was */
	u64 noticed; /* away since then, as another saw it */
	u64 last;    /* what it found when it looked last */
	u64 looked;  /* at the others */
	u32 next;    /* of the others */
	u32 idle;    /* nothing to run: not running is nobody's doing */
	u64 where;   /* the kernel keeps its steal_time; 0: not known yet */
	u64 alarm;   /* the agent's: wake its monitor from then on, once; 0: never */
	u64 quiet;   /* the agent's */
	struct absence past[PAST]; /* absence n, from 1 on, stands at n modulo PAST */
};

struct {
	MAP_TYPE(MAP_ARRAY);
	MAP_ENTRIES(VCPUS);
	MAP_FLAGS(FLAG_MMAPABLE);
	u32 *key;
	struct vcpu *value;
} vcpus SEC(".maps");

/* A record for each bell would be more than needed: a page is the least there can be. */
struct ring {
	MAP_TYPE(MAP_RINGBUF);
	MAP_ENTRIES(4096);
};

struct {
	MAP_TYPE(MAP_ARRAY_OF_MAPS);
	MAP_ENTRIES(VCPUS);
	u32 *key;
	struct ring *values[];
} bells SEC(".maps");

INLINE void ring_bell(u32 cpu)
{
	void *ring = map_lookup(&bells, &cpu);
	u64 nothing = 0;

	if (ring)
		ring_output(ring, &nothing, sizeof(nothing), RINGBUF_FORCE_WAKEUP);
}

/* This vCPU was away from then until now, or since another noticed it. */
INLINE int was_away(struct vcpu *own, u64 edges, u64 from, u64 now)
{
	struct absence *past = &own->past[(((edges | 1) + 1) >> 1) & (PAST - 1)];

	past->from = edges & 1 ? own->noticed : from;
	past->until = now;
	/* Another may notice at this very moment what is over. */
	if ((edges & 1) || __sync_val_compare_and_swap(&own->edges, edges, edges + 2) != edges)
		__sync_fetch_and_add(&own->edges, 1);
	return !(own->quiet & QUIET_BACK);
}

/* Has the time of this vCPU's alarm come? It rings once. */
INLINE int is_due(struct vcpu *own, u64 now)
{
	u64 alarm = own->alarm;

	return alarm && now >= alarm &&
	       __sync_val_compare_and_swap(&own->alarm, alarm, 0) == alarm;
}

/* Another is away since then. */
INLINE int is_away(struct vcpu *other, u64 edges, u64 since)
{
	other->noticed = since;
	return __sync_val_compare_and_swap(&other->edges, edges, edges + 1) == edges &&
	       !(other->quiet & QUIET_LOSS);
}

/* Is another one away? Not static: the kernel verifies it by itself, and not in each turn. */
__attribute__((noinline)) int look_at(u32 cpu, u64 now);

/* After a look at itself, with `news` or without. */
INLINE void look_at_others(u32 cpu, struct vcpu *own, u64 now, int news)
{
	u32 other = own->next;

	if (now - own->looked >= given.look_ns) {
		own->looked = now;
		for (u32 n = 0; n < OTHERS && n + 1 < given.vcpus; n++) {
			if (++other >= given.vcpus)
				other = 0;
			if (other != cpu)
				news |= look_at(other, now);
		}
		own->next = other;
	}
	if (news | is_due(own, now))
		ring_bell(cpu);
}

#endif
