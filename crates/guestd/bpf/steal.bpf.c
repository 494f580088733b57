/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * When vCPUs are taken away and given back, from what KVM tells its guests
 * (arch/x86/kvm/x86.c, record_steal_time): for each vCPU `steal`, the time for which it was
 * ready to run and did not, brought up to date before it runs again; and `preempted`, which
 * says that it does not run.
 *
 * Nothing polls. A vCPU looks at its own `steal` at each task switch and at each timer,
 * and a timer is overdue when it comes back: what was added is how long it was away, so that
 * the return alone tells both edges, the loss to the nanosecond. At the same looks, at
 * most every 100 us, it looks at who else is `preempted`: so the others learn of a loss
 * while it lasts.
 */
#include "edges.h"

/* arch/x86/include/uapi/asm/kvm_para.h: KVM and its guests have agreed on it. */
struct steal_time {
	u64 steal;
	u32 version; /* 0: KVM was not asked for it, or is not there */
	u32 flags;
	u8 preempted;
	u8 pad[7];
};
/* In `preempted`. Another bit, with which guests ask for a flush of the TLB, may stay set. */
#define VCPU_PREEMPTED 1

/* What steal_told answers. */
enum { NOT_FOUND, NOT_TOLD, TOLD };

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
INLINE int look_at_own(struct vcpu *own, u64 edges, u64 now)
{
	u64 steal, away;

	if (read_kernel(&steal, sizeof(steal), (void *)own->where))
		return 0;
	away = steal - own->last;
	own->last = steal;
	return (edges & 1) || away >= given.least_ns ? was_away(own, edges, now - away, now) : 0;
}

__attribute__((noinline)) int look_at(u32 cpu, u64 now)
{
	struct vcpu *other = map_lookup(&vcpus, &cpu);
	struct steal_time st;
	u64 edges;

	if (!other || !other->where || other->idle)
		return 0;
	edges = other->edges;
	if (edges & 1 || read_kernel(&st, sizeof(st), (void *)other->where) ||
	    !(st.preempted & VCPU_PREEMPTED))
		return 0;
	return is_away(other, edges, now);
}

INLINE void look(u32 cpu, struct vcpu *own)
{
	/* Before the clock: a loss that another notices from here on does not end at this `now`. */
	u64 edges = own->edges, now = monotonic_ns();

	look_at_others(cpu, own, now, look_at_own(own, edges, now));
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
	if (where && !read_kernel(&own->last, sizeof(own->last), (void *)where))
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
