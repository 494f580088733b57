//! The reactor's accounts: device time by disk and command, and the policy's figures of each disk.

use crate::common;

use common::{Ask, Rig, RigSetup, dir, image};
use seekway_core::units::Nanos;

const LEN: u64 = 16 << 20;

#[test]
fn device_time_is_the_commands_and_each_disks() {
    let dir = dir();
    // 4 ms a miss of the model, of which nothing coalesces.
    let emulate = Some("linear-15k4:k=1");
    let rig = Rig::start(RigSetup { emulate, ..RigSetup::default() });
    let disks = ["a", "b"].map(|name| rig.attach(&image(&dir, name, LEN), None).unwrap());
    let clients = disks.map(|disk| rig.open(disk));
    let asks = |n: u64| (0..n).map(|i| Ask::read((i * 7 % 16) << 20, 4096)).collect::<Vec<_>>();
    let (few, many) = (clients[0].do_all(asks(5)), clients[1].do_all(asks(15)));
    assert!(few.iter().chain(&many).all(|a| a.result.is_ok()));
    // Neither a read nor a write: no time of a modelled device.
    assert!(clients[0].do_one(Ask::flush()).result.is_ok());
    let status = rig.status();
    assert_eq!(status.served.commands, 20);
    let times: Vec<Nanos> = status.disks.iter().map(|d| d.device_time).collect();
    assert_eq!(times[0] + times[1], status.served.service, "nobody's time is lost");
    // The model's own, which real time is never ahead of.
    assert!(times[0] >= Nanos::from_millis(5 * 4), "{times:?}");
    assert!(times[1] >= Nanos::from_millis(15 * 4), "{times:?}");
    let throttle = status.throttle.expect("emulated");
    assert_eq!(throttle.commands, 20);
    assert!(status.served.service >= throttle.model_service, "from one dispatch to the next");
    // At depth 1 a command is dispatched when the one before is done.
    assert_eq!(status.served.service, status.served.service_from_dispatch);
    let model = status.model_now.expect("emulated");
    assert_eq!(model, status.now, "k = 1");
}

#[test]
fn the_device_time_of_a_flush_is_its_disks() {
    let dir = dir();
    let rig = Rig::start(RigSetup::default());
    let client = rig.open(rig.attach(&image(&dir, "a", LEN), None).unwrap());
    assert!(client.do_one(Ask::write(0, vec![1; 4096])).result.is_ok());
    let before = rig.status();
    assert!(client.do_one(Ask::flush()).result.is_ok());
    let after = rig.status();
    assert!(after.disks[0].device_time > before.disks[0].device_time);
    assert_eq!(after.served, before.served, "it is no read or write");
}

#[test]
fn the_models_clock_goes_k_times_slower() {
    let emulate = Some("linear-15k4:k=4");
    let rig = Rig::start(RigSetup { emulate, ..RigSetup::default() });
    let status = rig.status();
    let model = status.model_now.expect("emulated").as_nanos();
    assert!(model.abs_diff(status.now.as_nanos() / 4) <= 1, "{model} of {:?}", status.now);
}

#[test]
fn a_policy_tells_of_each_disk() {
    let dir = dir();
    let rig = Rig::start(RigSetup { policy: "vmcd", ..RigSetup::default() });
    let disks = ["a", "b"].map(|name| rig.attach(&image(&dir, name, LEN), None).unwrap());
    let client = rig.open(disks[1]);
    assert!(client.do_one(Ask::read(0, 4096)).result.is_ok());
    let known = |name: &str| {
        let status = rig.status();
        let of = |d: &seekway_hostd::reactor::DiskStatus| {
            d.policy_metrics.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
        };
        status.disks.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(known("queued"), [Some(0.0); 2]);
    assert_eq!(known("no such figure"), [None; 2]);
    client.close();
    drop(rig);
    let rig = Rig::start(RigSetup::default());
    rig.attach(&image(&dir, "c", LEN), None).unwrap();
    assert!(rig.status().disks[0].policy_metrics.is_empty(), "noop knows nothing");
}
