//! Idles a vCPU with an I/O task while that task waits, so that the host still owes the vCPU time
//! when the I/O is done.
//!
//! Source: K. Suo et al., "Preserving I/O prioritization in virtualized OSes", SoCC 2017 (in
//! vMigrater's comparison), as algorithms.md, section 7, has it: in each period of 30 ms, while no
//! I/O task can run, the vCPU idles for up to (1 - c) of the period, and I/O wakes it; compute
//! tasks get the rest. The host still takes it away when its time is used up. The gain depends on
//! whether the host lets a vCPU that wakes take the processor at once.
//!
//! `published=true` counts as the authors' code does (github.com/kevinsuo/xballoon,
//! `hypervisor/xen/common/schedule.c`, `vcpu_runstate_change`): all time in which the vCPU does
//! not run is idling, its waiting for a processor included, but for stretches of 25 ms and more;
//! and periods are the host's, the same for all vCPUs. In that code a process sleeps in the
//! guest's scheduler and hands the vCPU back whenever it is chosen; I/O tasks are named by hand.
//!
//! Where the source is silent: a vCPU has an I/O task if one that waited for half of a window was
//! on it within the last second, because an absent vCPU shows nothing meanwhile. Idling that I/O
//! ends early counts until the vCPU's next decision: that includes the I/O task's own running time,
//! which is short.

use super::{Entry, TaskLoad, VcpuId, VcpuPolicy, VcpuSet};
use seekway_core::params::{Kind, param};
use seekway_core::units::{Instant, Nanos};

pub(super) const ENTRY: Entry = Entry {
    name: "xballoon",
    summary: "a vCPU idles while its I/O tasks wait, to be owed time when they can run",
    source: "xBalloon (SoCC 2017)",
    params: &[
        param(
            "period",
            Kind::Duration,
            "30ms",
            "over which a vCPU's idling is bounded, 1ms to 10s",
        ),
        param("c", Kind::Number(0.0, 1.0), "0.5", "share of a period that compute tasks keep"),
        param(
            "published",
            Kind::Flag,
            "false",
            "count as the authors' code: time that a vCPU waits for a processor is idling",
        ),
    ],
    build: |params| {
        let period =
            params.duration_within("period", Nanos::from_millis(1), Nanos::from_secs(10))?;
        let idle = ((1.0 - params.number("c")) * 1000.0).round() as u64;
        let idle_max = period.scaled(idle, 1000);
        let published = params.flag("published");
        Ok(Box::new(XBalloon { period, idle_max, published, vcpus: Vec::new() }))
    },
};

const WINDOW: Nanos = Nanos::from_millis(5);
/// Time after a task was last seen waiting for which its vCPU has an I/O task.
const HOSTS_FOR: Nanos = Nanos::from_secs(1);
/// In the authors' code a stretch as long as this is a cap's, and no idling.
const CAPPED_FROM: Nanos = Nanos::from_millis(25);

/// A vCPU's idling in its present period.
#[derive(Clone, Copy, Default)]
struct Balloon {
    /// End of the time for which it has an I/O task.
    hosts_until: Instant,
    /// When the period began in which it idles.
    began: Instant,
    /// Time that it has idled in the period.
    idled: Nanos,
    /// Begin and end of its present idling.
    idles: Option<(Instant, Instant)>,
    /// Its time spent waiting for a processor at the last query.
    waited: Nanos,
}

struct XBalloon {
    period: Nanos,
    idle_max: Nanos,
    /// Waiting for a processor counts as idling.
    published: bool,
    vcpus: Vec<Balloon>,
}

impl VcpuPolicy for XBalloon {
    fn attach(&mut self, _now: Instant, online: &VcpuSet) {
        let len = online.iter().last().map_or(0, |last| last.index() + 1);
        self.vcpus.resize(len, Balloon::default());
    }

    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        for load in loads.iter().filter(|load| load.waited >= WINDOW.scaled(1, 2)) {
            if let Some(vcpu) = self.vcpus.get_mut(load.vcpu.index()) {
                vcpu.hosts_until = now + HOSTS_FOR;
            }
        }
    }

    fn windows(&self) -> Option<Nanos> {
        Some(WINDOW)
    }

    fn idles(&mut self, now: Instant, vcpu: VcpuId, waited: Nanos) -> Option<Instant> {
        let balloon = self.vcpus.get_mut(vcpu.index())?;
        if let Some((from, until)) = balloon.idles.take() {
            balloon.idled += until.min(now).since(from);
        }
        let waits = waited.saturating_sub(std::mem::replace(&mut balloon.waited, waited));
        if self.published {
            let into = Nanos::new(now.as_nanos() % self.period.get());
            let began = Instant::ZERO + now.since(Instant::ZERO).saturating_sub(into);
            if balloon.began < began {
                (balloon.began, balloon.idled) = (began, Nanos::ZERO);
            }
            // Times before this period do not count.
            balloon.idled += if waits < CAPPED_FROM { waits.min(into) } else { Nanos::ZERO };
        } else if now.since(balloon.began) >= self.period {
            (balloon.began, balloon.idled) = (now, Nanos::ZERO);
        }
        let left = self.idle_max.saturating_sub(balloon.idled);
        if left == Nanos::ZERO || now >= balloon.hosts_until {
            return None;
        }
        balloon.idles = Some((now, now + left));
        Some(now + left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TaskId, build};

    fn at(us: u64) -> Instant {
        Instant::ZERO + Nanos::from_micros(us)
    }

    fn waits(vcpu: u16) -> TaskLoad {
        TaskLoad {
            task: TaskId(7),
            vcpu: VcpuId::new(vcpu),
            allowed: VcpuSet::first(2),
            waited: Nanos::from_millis(4),
            ran: Nanos::ZERO,
            ios: 9,
            io_time: Nanos::from_millis(4),
            last: None,
        }
    }

    #[test]
    fn it_idles_for_its_share_of_a_period_where_an_io_task_is() {
        let mut policy = build("xballoon").unwrap();
        let vcpu = VcpuId::new(1);
        policy.attach(at(0), &VcpuSet::first(2));
        assert_eq!(policy.idles(at(0), vcpu, Nanos::ZERO), None, "no I/O task");
        policy.window(at(5_000), &[waits(1)]);
        assert_eq!(policy.idles(at(5_000), VcpuId::new(0), Nanos::ZERO), None, "nor there");
        // Half of the period of 30 ms that began with the first asking.
        assert_eq!(policy.idles(at(40_000), vcpu, Nanos::ZERO), Some(at(55_000)));
        // I/O woke it after 5 ms: 10 are left.
        assert_eq!(policy.idles(at(45_000), vcpu, Nanos::ZERO), Some(at(55_000)));
        assert_eq!(policy.idles(at(55_000), vcpu, Nanos::ZERO), None, "used up");
        assert_eq!(policy.idles(at(69_999), vcpu, Nanos::ZERO), None, "still");
        let next = policy.idles(at(70_000), vcpu, Nanos::ZERO);
        assert_eq!(next, Some(at(85_000)), "the next period");
        let late = policy.idles(at(2_000_000), vcpu, Nanos::ZERO);
        assert_eq!(late, None, "its I/O task has long gone");
    }

    #[test]
    fn compute_tasks_may_keep_it_all() {
        let mut policy = build("xballoon:c=1").unwrap();
        policy.attach(at(0), &VcpuSet::first(2));
        policy.window(at(5_000), &[waits(1)]);
        assert_eq!(policy.idles(at(6_000), VcpuId::new(1), Nanos::ZERO), None);
    }

    /// Waiting for a processor is idling, in the host's periods, unless it lasts for long.
    #[test]
    fn as_published_a_wait_for_a_processor_is_idling() {
        let mut policy = build("xballoon:published=true").unwrap();
        let vcpu = VcpuId::new(1);
        policy.attach(at(0), &VcpuSet::first(2));
        policy.window(at(5_000), &[waits(1)]);
        let ms = Nanos::from_millis;
        // Since the period began at 30 ms it has waited for 11: four are left.
        assert_eq!(policy.idles(at(41_000), vcpu, ms(11)), Some(at(45_000)));
        assert_eq!(policy.idles(at(45_000), vcpu, ms(11)), None, "used up");
        // The next begins at 60 ms, and only two of these waits' milliseconds lie in it.
        assert_eq!(policy.idles(at(62_000), vcpu, ms(22)), Some(at(75_000)));
        // A wait of 33 ms counts as a cap's.
        assert_eq!(policy.idles(at(95_000), vcpu, ms(55)), Some(at(110_000)));
    }
}
