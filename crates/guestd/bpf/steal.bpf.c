/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * When vCPUs are taken away and given back, from what KVM tells its guests
 * (arch/x86/kvm/x86.c, record_steal_time): for each vCPU `steal`, the time for which it was
 * ready to run and did not, brought up to date before it runs again; and `preempted`, set
 * while it does not run.
 *
 * Nothing polls. A vCPU looks at its own `steal` at each task switch and at each timer,
 * and a timer is overdue when it comes back: what was added is how long it was away, so that
 * the return alone tells both edges, the loss to the nanosecond. At the same looks, at
 * most every 100 us, it looks at who else is `preempted`: so the others learn of a loss
 * while it lasts.
 *
 * What is found stands in a mapped array. A ring for each vCPU is nothing but a bell: it
 * wakes the monitor of the vCPU that saw something new.
 */
#include "core.h"

#define VCPUS 1024
/* Others that are looked at in one look; with more of them, several looks go round. */
#define OTHERS 16

/* Set by the agent before it loads this. */
const volatile struct {
	u64 steal_from_rq; /* from a CPU's runqueue to its steal_time, in bytes */
	u64 least_ns;	   /* who was away for less was not away */
	u64 look_ns;	   /* at the others, from one time to the next */
	u64 vcpus;	   /* that there can be */
} given = {};

/* arch/x86/include/uapi/asm/kvm_para.h: KVM and its guests have agreed on it. */
struct steal_time {
	u64 steal;
	u32 version; /* 0: KVM was not asked for it, or is not there */
	u32 flags;
	u8 preempted;
	u8 pad[7];
};

/* What steal_told answers. */
enum { NOT_FOUND, NOT_TOLD, TOLD };

struct vcpu {
	u64 edges;   /* odd: it is away; half of them: how often it was */
	u64 from;    /* of the last loss */
	u64 until;   /* of the last return */
	u64 noticed; /* away since then, as another saw it */
	u64 steal;   /* at its last look */
	u64 looked;  /* at the others */
	u32 next;    /* of the others */
	u32 idle;    /* nothing to run: not running is nobody's doing */
	u64 where;   /* the kernel keeps its steal_time; 0: not known yet */
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

/*
 * Where the kernel keeps what KVM tells of this CPU. It is a per-CPU variable; bpf_per_cpu_ptr
 * finds these only in kernels that know the names of all their variables
 * (CONFIG_KALLSYMS_ALL), and not all guests' do. But another is found by way of any task,
 * and the kernel's BTF has how far the one is from the other.
 */
INLINE u64 where_on(u32 cpu, struct task_struct *p)
{
	struct rq *rq = p->se.cfs_rq->rq;

	return rq && rq->cpu == cpu ? (u64)rq + given.steal_from_rq : 0;
}

/* Has this vCPU been away since it looked last? */
INLINE int look_at_own(struct vcpu *own, u64 now)
{
	u64 steal, away, edges = own->edges;

	if (read_kernel(&steal, sizeof(steal), (void *)own->where))
		return 0;
	away = steal - own->steal;
	own->steal = steal;
	if (edges & 1) {
		own->from = own->noticed;
	} else {
		if (away < given.least_ns)
			return 0;
		own->from = now - away;
	}
	own->until = now;
	/* Another may notice at this very moment what is over. */
	if ((edges & 1) || __sync_val_compare_and_swap(&own->edges, edges, edges + 2) != edges)
		__sync_fetch_and_add(&own->edges, 1);
	return 1;
}

/* Is another one away? Not static: the kernel verifies it by itself, and not in each turn. */
__attribute__((noinline)) int look_at(u32 cpu, u64 now)
{
	struct vcpu *other = map_lookup(&vcpus, &cpu);
	struct steal_time st;
	u64 edges;

	if (!other || !other->where || other->idle)
		return 0;
	edges = other->edges;
	if (edges & 1 || read_kernel(&st, sizeof(st), (void *)other->where) || !st.preempted)
		return 0;
	other->noticed = now;
	return __sync_val_compare_and_swap(&other->edges, edges, edges + 1) == edges;
}

INLINE void look(u32 cpu, struct vcpu *own)
{
	u64 now = monotonic_ns();
	int news = look_at_own(own, now);
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
	if (news)
		ring_bell(cpu);
}

/* (preempt, prev, next, …) */
SEC("tp_btf/sched_switch")
int steal_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	u32 cpu = this_cpu();
	struct vcpu *own = map_lookup(&vcpus, &cpu);
	u64 where;

	if (!own)
		return 0;
	own->idle = next->pid == 0;
	if (own->where) {
		look(cpu, own);
		return 0;
	}
	/* The first time. */
	where = where_on(cpu, prev);
	if (where && !read_kernel(&own->steal, sizeof(own->steal), (void *)where))
		own->where = where;
	return 0;
}

SEC("tp_btf/hrtimer_expire_entry")
int steal_timer(u64 *ctx)
{
	u32 cpu = this_cpu();
	struct vcpu *own = map_lookup(&vcpus, &cpu);

	if (own && own->where)
		look(cpu, own);
	return 0;
}

/* Does KVM tell this vCPU anything? Run once, before anything is attached. */
SEC("raw_tp")
int steal_told(void *ctx)
{
	struct steal_time st;
	u32 cpu = this_cpu();
	u64 where = where_on(cpu, current_task());

	if (!where || read_kernel(&st, sizeof(st), (void *)where))
		return NOT_FOUND;
	return st.version ? TOLD : NOT_TOLD;
}

PROGRAMS_LICENCE;
