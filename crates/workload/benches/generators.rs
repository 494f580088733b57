//! What a generator's request costs the simulator, and how deep its virtual
//! queue is: `cargo bench -p seekway-workload --bench generators`.

#[path = "../tests/device/mod.rs"]
mod device;

use device::run;
use seekway_policy::units::Nanos;
use seekway_workload::generators::parse_vm;

fn main() {
    // `cargo test --all-targets` runs benches too, without this argument.
    if std::env::args().any(|arg| arg == "--bench") {
        cost_of_a_request();
        depth_of_the_queue();
    }
}

/// CPU time of this thread so far; other work on the machine does not count.
fn cpu_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn cost_of_a_request() {
    for text in [
        "app=sysbench:mode=SR",
        "app=sysbench:mode=SR,app=sysbench:mode=SR",
        "max_request_kib=48,app=sysbench:mode=SR,app=sysbench:mode=SR",
        "app=sysbench:mode=RR,bytes=1g",
        "app=sysbench:mode=RR,requests=200000",
        "app=sysbench:mode=SW",
        "app=sysbench:mode=RW,bytes=1g",
        "app=hadoop:bytes=1g",
        "app=uniform:requests=3000000",
    ] {
        let mut source = parse_vm(text).unwrap().source(1, 0).unwrap();
        let start = cpu_ns();
        let done = run(&mut *source, Nanos::from_micros(200));
        let ns = cpu_ns() - start;
        let (n, bytes) = (done.issued.len() as f64, done.apps.iter().map(|a| a.bytes).sum::<u64>());
        let per_call = ns / (bytes as f64 / 16384.0);
        println!("{text}: {n} requests, {:.0} ns each, {per_call:.0} ns for 16 KiB", ns / n);
    }
}

fn depth_of_the_queue() {
    for mode in ["SR", "RR", "SW", "RW"] {
        for kib in [48, 64, 128] {
            let text =
                format!("max_request_kib={kib},app=sysbench:mode={mode},app=sysbench:mode={mode}");
            let done =
                run(&mut *parse_vm(&text).unwrap().source(3, 0).unwrap(), Nanos::from_millis(2));
            let mean = done.issued.iter().map(|i| i.2).sum::<usize>() / done.issued.len();
            let kib_mean = done.issued.iter().map(|i| i.1.len.get()).sum::<u64>() / 2;
            println!(
                "{mode}+{mode} at {kib} KiB: {} requests of {} KiB, {mean} outstanding on average, {} at most, {:.1} s",
                done.issued.len(),
                kib_mean / done.issued.len() as u64,
                done.in_flight_max,
                done.ended.as_secs_f64(),
            );
        }
    }
}
