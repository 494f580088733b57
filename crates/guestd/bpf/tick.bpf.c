/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * When vCPUs are taken away and given back, from the ticks of the guest's own scheduler, where
 * no host tells it. A vCPU that has something to run ticks, HZ times a second, and one that
 * comes back has its overdue tick first. So each looks at the clock at each task switch
 * and at each timer, all of which come anyway: who had something to run and has not looked
 * for some ticks was away. Nobody arms a timer for it.
 *
 * The return is known to the time that an interrupt takes; of the loss, that it came after the
 * last look and before the next tick would have come. The last look is what is told: a slice is
 * rather told too short than too long.
 */
#include "edges.h"

/* Has this vCPU been away since it looked last? `had`: it had something to run. */
INLINE void look(u32 cpu, struct vcpu *own, int had)
{
	/* Before the clock: a loss that another notices from here on does not end at this `now`. */
	u64 last = own->last, edges = own->edges, now = monotonic_ns();
	int away = had && last && now - last >= given.least_ns;

	own->last = now;
	look_at_others(cpu, own, now,
		       (edges & 1) || away ? was_away(own, edges, last, now) : 0);
}

__attribute__((noinline)) int look_at(u32 cpu, u64 now)
{
	struct vcpu *other = map_lookup(&vcpus, &cpu);
	u64 edges, last;

	if (!other || other->idle)
		return 0;
	edges = other->edges;
	last = other->last;
	/* It may have looked after `now` was read. */
	if (edges & 1 || !last || last > now || now - last < given.least_ns)
		return 0;
	return is_away(other, edges, last);
}

/* (preempt, prev, next, …) */
SEC("tp_btf/sched_switch")
int tick_switch(u64 *ctx)
{
	struct task_struct *next = (void *)ctx[2];
	u32 cpu = this_cpu();
	struct vcpu *own = map_lookup(&vcpus, &cpu);
	int had;

	if (!own)
		return 0;
	had = !own->idle;
	own->idle = next->pid == 0;
	look(cpu, own, had);
	return 0;
}

SEC("tp_btf/hrtimer_expire_entry")
int tick_timer(u64 *ctx)
{
	u32 cpu = this_cpu();
	struct vcpu *own = map_lookup(&vcpus, &cpu);

	if (own)
		look(cpu, own, !own->idle);
	return 0;
}

PROGRAMS_LICENCE;
