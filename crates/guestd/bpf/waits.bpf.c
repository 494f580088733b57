/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Who waits for I/O, and for how long.
 *
 * A task waits for I/O while it sleeps in iowait (read(2), fsync(2)), or sleeps in any state
 * with bios of its own under way: libaio and io_uring never enter iowait. The wait ends with
 * the wake-up, not when the task runs, or the absence of its vCPU would look like I/O; and it
 * ends with the last bio if it was only for bios.
 *
 * Tasks that do I/O have an entry in a table that the agent maps and reads without a system
 * call: sets of eight, found by the task's number, as in a processor's cache. Totals only
 * grow: the agent takes differences, and nothing is handed over at a window's end. An entry
 * is given to another task when its own has ended or did nothing for a second.
 */
#include "core.h"

#define SETS 512
#define WAYS 8
#define IDLE_NS 1000000000ull
/* Bios under way that are told apart; nothing is known of one more. */
#define BIOS 8192
/* Most bios of one request that are looked at (a virtio disk has at most 254 segments). */
#define MERGED 256
/* No task's number (PID_MAX_LIMIT is 2^22): its entry is being filled in. */
#define FILLING 0xffffffffu

struct entry {
	u64 born;    /* when it was given to this task */
	u64 at;	     /* of its last event */
	u64 since;   /* it waits since then; 0: it does not */
	u64 waited;  /* ended waits together */
	u64 in;	     /* it runs since then; 0: it does not */
	u64 ran;     /* ended runs together */
	u64 io_time; /* ended bios together, from submission to completion */
	u64 asked;   /* the last ended bio: when it was submitted */
	u64 done;    /* when its end was heard; 0: `asked` is being written */
	u32 ios;     /* ended bios */
	u32 under_way;
	u32 iowait; /* what it waits for is more than its bios */
	u32 pid;
	u32 cpu; /* where it runs, ran last, or is queued */
	u32 heard_on; /* where the end of the last bio was heard */
};

struct set {
	u32 tid[WAYS];
	u64 touched; /* of the last event of any of them */
	u64 unused[3];
	struct entry entry[WAYS];
};

struct {
	MAP_TYPE(MAP_ARRAY);
	MAP_ENTRIES(SETS);
	MAP_FLAGS(FLAG_MMAPABLE);
	u32 *key;
	struct set *value;
} sets SEC(".maps");

struct bio_of {
	u64 born;
	u64 at;
	u32 tid;
	u32 way;
};

struct {
	MAP_TYPE(MAP_HASH);
	MAP_ENTRIES(BIOS);
	u64 *key; /* the bio's address */
	struct bio_of *value;
} bios SEC(".maps");

INLINE struct set *set_of(u32 tid)
{
	u32 index = tid & (SETS - 1);

	return map_lookup(&sets, &index);
}

/* The way of that task in its set; WAYS: it has none. */
INLINE u32 way_of(struct set *set, u32 tid)
{
	u32 found = WAYS;

#pragma unroll
	for (u32 way = 0; way < WAYS; way++)
		if (set->tid[way] == tid)
			found = way;
	return found;
}

/* Where a task without an entry is to have one. */
INLINE u32 room_in(struct set *set, u64 now)
{
	u64 oldest = now > IDLE_NS ? now - IDLE_NS : 0;
	u32 found = WAYS;

#pragma unroll
	for (u32 way = 0; way < WAYS; way++) {
		struct entry *entry = &set->entry[way];
		u64 at = set->tid[way] ? entry->at : 0;

		if (at < oldest && set->tid[way] != FILLING && !entry->since) {
			oldest = at;
			found = way;
		}
	}
	return found;
}

/* Its way, a new one if there is room; WAYS: there is none, and nothing is known of it. */
INLINE u32 claim(struct set *set, struct task_struct *p, u64 now)
{
	u32 tid = p->pid, way = way_of(set, tid), before;
	struct entry *entry;

	if (way < WAYS)
		return way;
	way = room_in(set, now);
	if (way >= WAYS)
		return WAYS;
	before = set->tid[way];
	if (before == FILLING ||
	    __sync_val_compare_and_swap(&set->tid[way], before, FILLING) != before)
		return WAYS;
	entry = &set->entry[way];
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->born = now;
	entry->in = now;
	entry->pid = p->tgid;
	entry->cpu = this_cpu();
	/* Whoever sees the number sees what is above too. */
	__sync_lock_test_and_set(&set->tid[way], tid);
	return way;
}

INLINE void touch(struct set *set, struct entry *entry, u64 now)
{
	entry->at = now;
	set->touched = now;
}

/* Whoever takes `since` counts the wait: a wake-up and the last bio may come at once. */
INLINE void end_wait(struct set *set, struct entry *entry, u64 now)
{
	u64 since;

	if (!entry->since)
		return;
	since = __sync_lock_test_and_set(&entry->since, 0);
	if (since && now > since)
		__sync_fetch_and_add(&entry->waited, now - since);
	touch(set, entry, now);
}

INLINE int of_kernel(struct task_struct *p)
{
	return p->pid == 0 || p->flags & PF_KTHREAD;
}

INLINE void goes(struct task_struct *p, int preempted)
{
	u32 state = preempted ? 0 : p->__state, iowait = in_iowait(p), way;
	struct set *set = set_of(p->pid);
	struct entry *entry;
	u64 now;

	if (!set)
		return;
	way = way_of(set, p->pid);
	if (way >= WAYS && !(state && iowait))
		return;
	now = monotonic_ns();
	if (way >= WAYS)
		way = claim(set, p, now);
	if (way >= WAYS)
		return;
	entry = &set->entry[way];
	if (state & TASK_DEAD) {
		set->tid[way] = 0;
		return;
	}
	if (entry->in && now > entry->in)
		entry->ran += now - entry->in;
	entry->in = 0;
	touch(set, entry, now);
	if (!state || !(iowait || entry->under_way))
		return;
	entry->iowait = iowait;
	__sync_lock_test_and_set(&entry->since, now);
	/* The last bio may have ended between. */
	if (!iowait && !entry->under_way)
		end_wait(set, entry, now);
}

INLINE void comes(struct task_struct *p)
{
	struct set *set = set_of(p->pid);
	struct entry *entry;
	u32 way;

	if (!set)
		return;
	way = way_of(set, p->pid);
	if (way >= WAYS)
		return;
	entry = &set->entry[way];
	/* Its wake-up was seen before it had gone to sleep: it did not wait. */
	entry->since = 0;
	entry->in = monotonic_ns();
	touch(set, entry, entry->in);
}

/* (preempt, prev, next, …) */
SEC("tp_btf/sched_switch")
int waits_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];

	if (!of_kernel(prev))
		goes(prev, ctx[0] & 1);
	if (!of_kernel(next))
		comes(next);
	return 0;
}

SEC("tp_btf/sched_waking")
int waits_waking(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct set *set;
	u32 way;

	if (of_kernel(p))
		return 0;
	set = set_of(p->pid);
	if (!set)
		return 0;
	way = way_of(set, p->pid);
	if (way < WAYS)
		end_wait(set, &set->entry[way], monotonic_ns());
	return 0;
}

/* (p, dest_cpu): every change of the CPU that a task is on, or queued on. */
SEC("tp_btf/sched_migrate_task")
int waits_migrate(u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct set *set = set_of(p->pid);
	u32 way;

	if (!set)
		return 0;
	way = way_of(set, p->pid);
	if (way < WAYS)
		set->entry[way].cpu = ctx[1];
	return 0;
}

/* An address as a number, which functions that are verified by themselves take. */
INLINE u64 number_of(const void *address)
{
	u64 number = 0;

	read_kernel(&number, sizeof(number), &address);
	return number;
}

/*
 * A bio has ended: what is known of it is its address. 1: it could not be taken out of the
 * table. Not static, so that the kernel
 * verifies it by itself and not anew in each turn of the loop below: inline that took
 * 700,000 of the million steps that there may be.
 */
__attribute__((noinline)) int ended(u64 bio)
{
	struct bio_of *found = map_lookup(&bios, &bio), of;
	struct entry *entry;
	struct set *set;
	u64 now;

	if (!found)
		return 0;
	of = *found;
	/* The kernel refuses it to who interrupts another change of the table (EBUSY). It is
	 * counted when it is taken out, and only by who takes it out: when its memory is
	 * another's, at the latest. */
	if (map_delete(&bios, &bio))
		return 1;
	set = set_of(of.tid);
	if (!set || of.way >= WAYS)
		return 0;
	entry = &set->entry[of.way];
	/* Its task may have ended, and another may be there. */
	if (set->tid[of.way] != of.tid || entry->born != of.born)
		return 0;
	now = monotonic_ns();
	__sync_fetch_and_add(&entry->ios, 1);
	if (now > of.at) {
		__sync_fetch_and_add(&entry->io_time, now - of.at);
		__sync_lock_test_and_set(&entry->done, 0);
		entry->asked = of.at;
		entry->heard_on = this_cpu();
		__sync_lock_test_and_set(&entry->done, now);
	}
	touch(set, entry, now);
	if (!entry->under_way)
		return 0;
	if (__sync_fetch_and_add(&entry->under_way, -1) == 1 && !entry->iowait)
		end_wait(set, entry, now);
	return 0;
}

/*
 * Here, because this is still the task that wants the bio: requests (block_rq_issue) are
 * often sent by a thread of the kernel's. What the device mapper makes of a bio comes here
 * too, most often from the same task: on LVM an I/O counts once for each layer, and the mean
 * time of one is that of the layers.
 */
SEC("tp_btf/block_bio_queue")
int waits_bio_queue(u64 *ctx)
{
	struct task_struct *p = current_task();
	u64 bio = number_of((void *)ctx[0]), now;
	struct bio_of of = {};
	struct entry *entry;
	struct set *set;

	/* If the end of one was missed, it shows when its memory is another's. */
	if (ended(bio) || of_kernel(p))
		return 0;
	set = set_of(p->pid);
	if (!set)
		return 0;
	now = monotonic_ns();
	of.way = claim(set, p, now);
	if (of.way >= WAYS)
		return 0;
	entry = &set->entry[of.way];
	of.born = entry->born;
	of.at = now;
	of.tid = p->pid;
	if (map_update(&bios, &bio, &of, UPDATE_ANY))
		return 0;
	__sync_fetch_and_add(&entry->under_way, 1);
	touch(set, entry, now);
	return 0;
}

/* (rq, error, bytes): of drivers with requests. What was merged into one ends together.
 * Of a bio that was split, its last part keeps its address. */
SEC("tp_btf/block_rq_complete")
int waits_rq_complete(u64 *ctx)
{
	struct request *rq = (void *)ctx[0];
	struct bio *bio = rq->bio;
	u32 bytes = ctx[2];

#pragma clang loop unroll(disable)
	for (u32 n = 0; n < MERGED && bio; n++) {
		if (bio->bi_iter.bi_size > bytes)
			break;
		bytes -= bio->bi_iter.bi_size;
		ended(number_of(bio));
		bio = bio->bi_next;
	}
	return 0;
}

/* (queue, bio): of drivers without requests, and of what never became one. */
SEC("tp_btf/block_bio_complete")
int waits_bio_complete(u64 *ctx)
{
	ended(number_of((void *)ctx[1]));
	return 0;
}

PROGRAMS_LICENCE;
