//! Where the policies' settings in `scenes.toml` come from: what Tejun Heo's
//! `iocost_coef_gen.py` (of the authors of iocost) does on a drive, done on the modelled one.
//!
//! Rates: sequential and random accesses of 4 KiB at depth 64, and long sequential ones. Targets:
//! random accesses of 4 KiB at nine tenths of that rate; one and a half times the time that 95 %
//! of them take (half of them, on a disk with a head). The lowest rate of iocost is 60 %, the
//! highest 100 %. There accesses of 128 MiB go one after the other; the kernel cuts them, so here
//! there are 32 of 1 MiB. kyber has the same targets; bfq has the VMs in groups and does
//! not raise weights.

use crate::experiments::arena::read::{DeviceFile, devices};
use crate::experiments::arena::{Medium, SCENES};
use crate::experiments::testing::run;
use crate::experiments::{Cell, Scenario};
use crate::metrics::RunResult;
use seekway_policy::params::parse_duration;
use seekway_policy::units::Sectors;
use std::sync::Arc;

/// Half as long as the device's scenes.
fn alone(device: &DeviceFile, load: &str) -> RunResult {
    let time = |text: &str| parse_duration(text).expect("a time").scaled(1, 2);
    let vms = vec![format!("name=a,image=20GiB,app={load}")];
    let scenario =
        Scenario { coalesce: Sectors::ZERO, ..Scenario::new("rule", vms, &device.profile) }
            .measured(time(&device.settle), time(&device.measure));
    run(&Cell::new(Arc::new(scenario), "noop"))
}

/// Three significant digits: a change of the last one is none of the drive.
fn rounded(value: f64) -> u64 {
    let unit = 10_f64.powf((value.max(1.0).log10().floor() - 2.0).max(0.0));
    ((value / unit).round() * unit) as u64
}

/// Bytes a second, sequential and random accesses a second, and the target in µs.
fn measured(device: &DeviceFile, reads: bool) -> [u64; 4] {
    let (read_percent, pattern) = if reads { (100, "randread") } else { (0, "randwrite") };
    let rate = |more: &str| alone(device, &format!("uniform:read={read_percent},{more}"));
    let long = rate("size=1MiB,outstanding=32,sequential=true").mib_s() * f64::from(1 << 20);
    let sequential = rate("size=4KiB,outstanding=64,sequential=true").iops();
    let random = rate("size=4KiB,outstanding=64").iops();
    let at_nine_tenths = alone(
        device,
        &format!(
            "fio:rw={pattern},bs=4KiB,iodepth=64,direct=true,size=16GiB,io_size=1TiB,\
             norandommap=true,rate_iops={}",
            (0.9 * random) as u64
        ),
    );
    let quantile = if device.medium == Medium::Disk { 0.5 } else { 0.95 };
    let target_us = 1.5 * at_nine_tenths.response.value_at_quantile(quantile) as f64 / 1e3;
    [long, sequential, random, target_us].map(rounded)
}

fn set(device: &DeviceFile) -> Vec<String> {
    let [rbps, rseq, rrand, rlat] = measured(device, true);
    let [wbps, wseq, wrand, wlat] = measured(device, false);
    let percent = if device.medium == Medium::Disk { 50 } else { 95 };
    vec![
        format!(
            "iocost:rbps={rbps},rseqiops={rseq},rrandiops={rrand},wbps={wbps},wseqiops={wseq},\
             wrandiops={wrand},rpct={percent},rlat={rlat}us,wpct={percent},wlat={wlat}us,min=60,max=100"
        ),
        format!("kyber:read_target={rlat}us,write_target={wlat}us"),
        "bfq:groups=true,low_latency=false".to_string(),
    ]
}

/// Nobody has chosen the peers' settings by what they give in the scenes.
#[test]
fn peers_are_set_by_the_rule() {
    let behind = |device: &DeviceFile| {
        let by_rule = set(device);
        (device.set != by_rule).then(|| format!("{}: set = {by_rule:#?}\n", device.name))
    };
    let behind: String = devices(SCENES).iter().filter_map(behind).collect();
    assert!(behind.is_empty(), "scenes.toml is not what the rule gives:\n{behind}");
}
