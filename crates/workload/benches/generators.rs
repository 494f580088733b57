//! Cost of a generator's request in the simulator, and depth of its virtual queue: `cargo bench -p
//! seekway-workload --bench generators`, or one part of it with `-- files`, `-- cost` or `--
//! depth`.

#[path = "../tests/it/device.rs"]
mod device;

use device::run;
use seekway_core::units::Nanos;
use seekway_workload::generators::parse_vm;
use seekway_workload::generators::surge::Recipe;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs benches too, without this argument.
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let parts: [(&str, fn()); 3] =
        [("files", a_million_files), ("cost", cost_of_a_request), ("depth", depth_of_the_queue)];
    let all = !parts.iter().any(|(name, _)| args.iter().any(|arg| arg == name));
    for (name, part) in parts {
        if all || args.iter().any(|arg| arg == name) {
            part();
        }
    }
}

/// CPU time of this thread; other work on the machine does not count.
fn cpu_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// SURGE's file system: time and memory to lay it out, and what came of it.
fn a_million_files() {
    for (seed, tail_percent) in [(1, 3.2), (2, 3.2), (1, 7.0)] {
        let recipe = Recipe { seed, files: 1_000_000, tail_percent, fill_percent: 75 };
        let start = cpu_ns();
        let laid = recipe.lay_out();
        let s = (cpu_ns() - start) / 1e9;
        let count = |f| laid.extents(f).len();
        let (extents, pages) = (0..laid.count())
            .fold((0, 0u64), |(e, p), f| (e + count(f), p + u64::from(laid.pages(f))));
        let whole = (0..laid.count()).filter(|f| count(*f) == 1).count();
        println!(
            "a million files, seed {seed}, tail {tail_percent} %: {s:.2} s, {:.1} GB in \
             {:.1} GB, {:.2} extents a file, {:.0} % in one piece",
            pages as f64 * 4096e-9,
            f64::from(laid.area_pages()) * 4096e-9,
            extents as f64 / 1e6,
            whole as f64 / 1e4,
        );
    }
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
        "image=64g,app=surge:requests=500000",
        "image=64g,ram=165m,app=surge:requests=500000,direct=false",
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
