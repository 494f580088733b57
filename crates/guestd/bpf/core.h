/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the programs need of the kernel: helpers, maps, and of its structures the fields
 * that are read. No vmlinux.h: libbpf finds each field in the running kernel's BTF by its
 * name (CO-RE), so that one build serves every kernel, and what is not listed is not used.
 */
#ifndef SEEKWAY_CORE_H
#define SEEKWAY_CORE_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* How libbpf reads a map's definition off its type. */
#define MAP_TYPE(number) int(*type)[number]
#define MAP_ENTRIES(number) int(*max_entries)[number]
#define MAP_FLAGS(number) int(*map_flags)[number]

/* include/uapi/linux/bpf.h */
enum {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_ARRAY_OF_MAPS = 12,
	MAP_RINGBUF = 27,
	FLAG_MMAPABLE = 1 << 10,
	UPDATE_ANY = 0,
	RINGBUF_FORCE_WAKEUP = 2,
};
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value,
				u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static u64 (*const monotonic_ns)(void) = (void *)5;
static u32 (*const this_cpu)(void) = (void *)8;
static long (*const read_kernel)(void *into, u32 size,
				 const void *from) = (void *)113;  /* Linux 5.5 */
static long (*const ring_output)(void *ring, void *data, u64 size,
				 u64 flags) = (void *)130;	      /* Linux 5.8 */
static struct task_struct *(*const current_task)(void) = (void *)158; /* Linux 5.11 */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* kernel/sched/sched.h */
struct rq {
	int cpu;
};
struct cfs_rq {
	struct rq *rq; /* CONFIG_FAIR_GROUP_SCHED */
};

/* include/linux/sched.h, Linux 5.14 and later (`state` before) */
struct sched_entity {
	struct cfs_rq *cfs_rq;
};
struct task_struct {
	unsigned int __state;
	unsigned int flags;
	struct sched_entity se;
	unsigned in_iowait : 1;
	int pid;
	int tgid;
};

/* include/linux/bvec.h, blk_types.h, blk-mq.h */
struct bvec_iter {
	unsigned bi_size;
};
struct bio {
	struct bio *bi_next;
	struct bvec_iter bi_iter;
};
struct request {
	struct bio *bio;
};


#pragma clang attribute pop

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000u
#define TASK_DEAD 0x00000080u

/* A field of bits has no address of its own: where it lies is asked for part by part
 * (enum bpf_field_info_kind of libbpf's bpf_core_read.h). */
#define FIELD(record, field, what) __builtin_preserve_field_info((record)->field, what)
#define FIELD_OFFSET 0
#define FIELD_SIZE 1
#define FIELD_LSHIFT 4
#define FIELD_RSHIFT 5

INLINE u32 in_iowait(struct task_struct *p)
{
	const void *at = (const void *)p + FIELD(p, in_iowait, FIELD_OFFSET);
	u64 bits = 0;

	/* Keeps clang from folding the address into each of the cases below. */
	asm volatile("" : "+r"(at));
	switch (FIELD(p, in_iowait, FIELD_SIZE)) {
	case 1:
		bits = *(const unsigned char *)at;
		break;
	case 2:
		bits = *(const unsigned short *)at;
		break;
	case 4:
		bits = *(const unsigned int *)at;
		break;
	case 8:
		bits = *(const unsigned long long *)at;
		break;
	}
	return bits << FIELD(p, in_iowait, FIELD_LSHIFT) >> FIELD(p, in_iowait, FIELD_RSHIFT);
}

/* The helpers that trace are for programs under the GPL; these are under it too. */
#define PROGRAMS_LICENCE char licence[] SEC("license") = "Dual MIT/GPL"

#endif
