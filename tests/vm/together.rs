//! The live experiment `together` as a whole, for a moment: guests with their applications on
//! two daemons in turn, both agents, and turns of the vCPUs. What it measures is not looked at.

use crate::world::program;
use seekway_live::Accelerator;
use seekway_live::experiment::{
    TogetherGuest, TogetherLoad, TogetherOptions, TogetherRound, TogetherSide, TogetherWindow,
    run_together,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// No database: where its 16 processes wait for a vCPU, the guest's shell answers after minutes.
const LOADS: [TogetherLoad; 3] = [TogetherLoad::Video, TogetherLoad::Files, TogetherLoad::Build];

pub fn one_round(agent: PathBuf) {
    let off = TogetherSide {
        policy: "noop".into(),
        cache: None,
        tags: None,
        agent: None,
        device: "intel-x25m-g2:k=1,read_us=2000".into(),
    };
    let on = TogetherSide {
        policy: "fairway".into(),
        cache: Some((64 << 20, "vio:interval=continuous".into())),
        tags: Some("--match fio".into()),
        // Without BPF: see migrate.rs.
        agent: Some("--no-bpf".into()),
        ..off.clone()
    };
    let private = TogetherSide {
        cache: Some((16 << 20, "none".into())),
        device: "intel-x25m-g2:k=3,read_us=2000".into(),
        ..off.clone()
    };
    let options = TogetherOptions {
        program: program().into(),
        agent,
        loads: LOADS.into(),
        sides: [off, on, private],
        rounds: 1,
        window: Duration::from_secs(2),
        accelerator: Accelerator::Tcg,
        seed: 1,
        interrupted: Arc::new(AtomicBool::new(false)),
    };
    let figures = run_together(&options, &mut |step| eprintln!("together: {step}"));
    let figures = match figures {
        Err(e) if e.to_string().contains("raise the priority") => return seekway_testing::skip(e),
        figures => figures.unwrap_or_else(|e| panic!("{e}")),
    };
    let [TogetherRound { off, on, alone }] = &figures.rounds[..] else {
        panic!("{} rounds", figures.rounds.len())
    };
    let mut windows = [off, on].into_iter().chain(alone);
    if let Some(guest) = windows.find_map(|window| window.guests.iter().find(|g| did_nothing(g))) {
        let missing = "a host that leaves each guest some of two seconds";
        return seekway_testing::skip(format!("{missing}: {guest:?}"));
    }
    for window in [off, on] {
        did_something(window, &|_| true);
    }
    assert_eq!(alone.len(), LOADS.len());
    for (only, window) in alone.iter().enumerate() {
        did_something(window, &|guest| guest == only);
    }
    for guest in &off.guests {
        assert!(guest.usage.is_none() && guest.agent.is_none() && guest.tags == 0, "{guest:?}");
        assert_eq!((guest.compute.tag_cpu, guest.compute.migrate_cpu), (0.0, 0.0));
    }
    assert!(on.guests.iter().all(|g| g.agent.as_ref().is_some_and(|a| !a.preemption.is_empty())));
    for (guest, load) in on.guests.iter().zip(LOADS).filter(|(g, _)| g.load.is_some()) {
        let name = load.name();
        assert!(guest.tags >= 1, "{name}: {guest:?}");
        assert!(guest.usage.is_some_and(|u| u.read_bytes > 0), "{name}: {guest:?}");
    }
}

/// Has a guest stood still, for all that a window of two seconds tells?
fn did_nothing(guest: &TogetherGuest) -> bool {
    guest.load.is_some_and(|load| load.iops == 0.0) || guest.compute.mib == 0.0
}

/// `works`: the guests whose applications were to do I/O, by index.
fn did_something(window: &TogetherWindow, works: &dyn Fn(usize) -> bool) {
    let loads = window.guests.iter().zip(LOADS).enumerate();
    let has_io = |at: usize, load| works(at) && !matches!(load, TogetherLoad::Build);
    let any = loads.clone().any(|(at, (_, load))| has_io(at, load));
    assert!(window.late <= window.commands && any == (window.commands > 0), "{window:?}");
    let ours: f64 = window.host.vcpus.iter().chain(&window.host.qemu).sum();
    assert!(ours > 0.0 && ours < 1.1, "{:?}", window.host);
    assert!(window.slices > 0.0);
    for (at, (guest, load)) in loads {
        assert_eq!(guest.load.is_some(), has_io(at, load), "{guest:?}");
        assert!(guest.load.is_none_or(|l| l.iops > 0.0 && l.p99_ms > 0.0));
        assert!(guest.compute.mib > 0.0 && guest.compute.seconds >= 1.0, "{guest:?}");
    }
}
