//! Contract of every policy of the registry.

use seekway_conformance::{Policy, keeps_contract, starves_as_said};
use seekway_policy::schedulers::REGISTRY;

/// Variants that are tried beside each entry's defaults.
pub const VARIANTS: &[&str] = &[
    "fairway:isolation=0,stay=0,hold=0",
    "fairway:isolation=1,write_price=20,stay=50ms,hold=20ms",
    "deadline:fifo_batch=1,writes_starved=0",
    "deadline:read_expire=1ms,write_expire=1ms",
    "anticipatory:antic_expire=0",
    "anticipatory:read_expire=1ms,write_expire=1ms,antic_expire=30ms",
    "cfq:issuer=vm,low_latency=false",
    "cfq:generation=2.6.30",
    "cfq:generation=2.6.18,sync_writes=false",
    "cfq:slice_idle=0,quantum=1",
    "cfq:share=issuer,slice_idle=1ms,fifo_expire_sync=1ms,fifo_expire_async=0",
    "cats:busdriver=7ms",
    "cats:busdriver=0,segments=0",
    "cats:read_delay=1ms,write_delay=1ms,busdriver=20ms,prefetch_sectors=4096",
    "cats:read_delay=0,write_delay=0,segments=1",
    "pregather:literal=true",
    "pregather:literal=true,except=half_rotation",
    "pregather:literal=true,except=sweep",
    "pregather:slice=1ms,sync_expire=0,async_expire=0,except=interval_min",
    "pregather:zone=1s,zones=64,lambda=1.1,window=1us,except=unmeasured",
    "pregather:slice=1ms,except=merge",
    "vmcd:batch=1",
    "vmcd:batch=1000,seed=7",
    "vmcd:idle=4ms,credits=period,late=free",
    "vmcd-time:turn=5ms,hold=10ms",
    "vmcd-time:turn=1ms,hold=0",
    "bfq:groups=true,slice_idle=2ms",
    "bfq:low_latency=false,max_budget=64",
    "bfq:slice_idle=0",
    "kyber:read_target=1us,write_target=5s",
    "mclock:reserve_iops=50,limit_iops=200",
    "mclock:reserve_iops=1000,limit_iops=1000",
    "iocost:rpct=90,rlat=1ms,wpct=50,wlat=2ms",
    "iocost:rbps=3GiB,rrandiops=700000,min=50,max=150",
];

/// Every policy with its defaults, and the variants.
pub fn specs() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|entry| entry.name).chain(VARIANTS.iter().copied())
}

#[test]
fn every_policy_keeps_the_contract() {
    specs().for_each(|spec| keeps_contract(&Policy::registered(spec)));
}

#[test]
fn no_policy_starves_a_request_unless_it_says_so() {
    specs().for_each(|spec| starves_as_said(&Policy::registered(spec)));
}
