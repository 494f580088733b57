//! `compare` over the whole stack: what runs, how it is named, and that what is not chosen
//! is said.

use crate::common::{Folder, json, line, number, seekway, timeless_runs};
use serde_json::Value;

/// A VM of 20 IOPS beside one without a limit; both read all over small images, again and
/// again.
const LOAD: &str = "compare --vm name=slow,image=8MiB,iops=20,app=uniform:outstanding=2 \
    --vm name=free,image=8MiB,app=uniform:outstanding=2 --device samsung-970-pro --until 1s";

fn run(more: &[&str]) -> String {
    seekway(&line(LOAD, more)).ok()
}

fn runs(more: &[&str]) -> Vec<Value> {
    timeless_runs(&run(&[more, &["--format", "json"]].concat()))
}

#[test]
fn every_run_says_its_whole_stack() {
    let made =
        runs(&["--policies", "noop,cfq", "--cache", "none,1MiB,32MiB", "--prefetch", "none,vio"]);
    let stack = |run: &Value| {
        let text = |key: &str| run[key].as_str().unwrap_or("-").to_string();
        (text("policy"), run["cache_mib"].as_f64().unwrap_or(0.0), text("prefetch"))
    };
    let caches = [(0.0, "-"), (1.0, "none"), (1.0, "vio"), (32.0, "none"), (32.0, "vio")];
    let want = ["noop", "cfq"].into_iter().flat_map(|policy| {
        caches.map(|(mib, prefetch)| (policy.to_string(), mib, prefetch.to_string()))
    });
    assert_eq!(made.iter().map(stack).collect::<Vec<_>>(), want.collect::<Vec<_>>());
    for run in &made {
        assert_eq!((&run["limits"], &run["vcpu"]), (&"given".into(), &"vanilla".into()));
        assert!(run.get("shared_cpus").is_some_and(Value::is_null), "{run:#}");
        let had = run["host"]["cache_mib"].as_f64();
        assert_eq!(had, run["cache_mib"].as_f64(), "what was chosen is what ran");
    }
    // One cache holds both images, the other an eighth of one.
    let hits = |n: usize| number(&made[n]["host"]["hit_share"]);
    assert!(hits(3) > 2.0 * hits(1), "32 MiB: {}, 1 MiB: {}", hits(3), hits(1));
}

#[test]
fn limits_hold_where_they_are_chosen_and_demands_follow_them() {
    let made = runs(&["--policies", "noop", "--limits", "given,none"]);
    let [given, none] = &made[..] else { panic!("two runs, not {}", made.len()) };
    assert_eq!((&given["limits"], &none["limits"]), (&"given".into(), &"none".into()));
    let slow = |run: &Value| run["vms"][0]["requests"].as_u64().expect("a count");
    assert!(slow(given) <= 23, "20 a second, and a tenth of a second's at once");
    assert!(slow(none) > 2 * slow(given), "{} without a limit", slow(none));
    let demand = |run: &Value| number(&run["vms"][0]["demand_mib_s"]);
    assert!(demand(none) > 2.0 * demand(given), "what it asks for is no more than it may have");
    let alone = |run: &Value| number(&run["vms"][1]["demand_mib_s"]);
    assert_eq!(alone(given), alone(none), "no limit, the same demand");
    // Each is what it is by itself.
    for (choice, run) in [("given", given), ("none", none)] {
        let [own] = &runs(&["--policies", "noop", "--limits", choice])[..] else { panic!("one") };
        assert_eq!(own, run, "{choice}");
    }
}

#[test]
fn demands_are_of_the_disk_itself_whatever_cache_lies_in_front() {
    let made = runs(&["--policies", "noop", "--cache", "none,32MiB"]);
    let demands = |run: &Value| [0, 1].map(|vm| number(&run["vms"][vm]["demand_mib_s"]));
    assert_eq!(demands(&made[0]), demands(&made[1]));
    let free = |run: &Value| number(&run["vms"][1]["mib_s"]);
    assert!(free(&made[1]) > free(&made[0]), "the cache serves it, and it asks for no more");
}

#[test]
fn runs_are_named_by_what_differs_and_the_rest_is_said_once() {
    let folder = Folder::new();
    let report = folder.arg("report.html");
    for (more, names, same) in [
        (
            &["--policies", "noop,cfq"][..],
            &["noop ", "cfq "][..],
            "cache none, prefetch none, limits as given, vCPUs not shared, no agent.",
        ),
        (
            &["--policies", "noop", "--limits", "none"],
            &["noop "],
            "cache none, prefetch none, no limits, vCPUs not shared, no agent.",
        ),
        (
            &["--policies", "noop", "--limits", "none,given", "--cache", "1MiB"],
            &["no limits ", "limits as given "],
            "policy noop, cache 1MiB, prefetch none, vCPUs not shared, no agent.",
        ),
        (
            &["--policies", "noop,cfq", "--cache", "none,1MiB,1GiB", "--host", "none"],
            &["noop + no cache ", "noop + cache 1MiB ", "cfq + cache 1GiB "],
            "prefetch none, limits as given, vCPUs not shared, no agent.",
        ),
    ] {
        let text = run(&[more, &["--report", &report]].concat());
        let table = text.split("\n\n").nth(1).expect("a title, then a table");
        for name in names {
            assert!(table.lines().any(|line| line.starts_with(name)), "no {name:?} in {text}");
        }
        let same = format!("The same in all runs: {same}");
        assert_eq!(text.matches(&same).count(), 1, "{same} in {text}");
        let page = std::fs::read_to_string(&report).expect("a page");
        assert_eq!(page.matches(&same).count(), 1, "{same} in the report");
        let markdown = run(&[more, &["--format", "markdown"]].concat());
        assert!(markdown.contains(&same), "{markdown}");
    }
}

#[test]
fn csv_has_the_stack_in_each_line() {
    let csv = run(&line("--policies noop --cache none,1MiB --limits given,none --format csv", &[]));
    let mut lines = csv.lines();
    let columns: Vec<&str> = lines.next().expect("a heading").split(',').collect();
    let at =
        |name: &str| columns.iter().position(|c| *c == name).unwrap_or_else(|| panic!("{name}"));
    let keys = ["vm", "cache_mib", "prefetch", "limits", "shared_cpus", "vcpu"].map(at);
    let rows = lines.map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), columns.len(), "{line}");
        keys.map(|key| fields[key])
    });
    let stacks = [("0", "given"), ("0", "none"), ("1", "given"), ("1", "none")];
    let want = stacks.into_iter().flat_map(|(mib, limits)| {
        ["all", "slow", "free"].map(|vm| [vm, mib, "none", limits, "none", "vanilla"])
    });
    assert_eq!(rows.collect::<Vec<_>>(), want.collect::<Vec<_>>());
}

#[test]
fn each_stack_has_a_journal_of_its_own() {
    let folder = Folder::new();
    let dir = folder.arg("journals");
    let lists = ["--policies", "noop", "--cache", "none,1MiB", "--prefetch", "none,vio"];
    run(&[&lists[..], &["--limits", "given,none", "--journal", &dir]].concat());
    let mut names: Vec<String> = std::fs::read_dir(folder.path("journals"))
        .expect("made")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "noop+cache_1MiB+none+limits_as_given.1.journal",
            "noop+cache_1MiB+none+no_limits.1.journal",
            "noop+cache_1MiB+vio+limits_as_given.1.journal",
            "noop+cache_1MiB+vio+no_limits.1.journal",
            "noop+no_cache+limits_as_given.1.journal",
            "noop+no_cache+no_limits.1.journal",
        ]
    );
    for name in names {
        let said = seekway(&["replay", &format!("{dir}/{name}")]).ok();
        assert!(said.contains("all the same"), "{name}: {said}");
    }
}

/// Two VMs that compute and read, on the processors of one.
const SHARED: &str = "compare \
    --vm name=a,image=6GiB,vcpus=2,app=fio:rw=randread,size=1GiB,direct=true,io_size=1TiB,app=build:jobs=2 \
    --vm name=b,image=6GiB,vcpus=2,app=build:jobs=2 --device samsung-970-pro --policies noop \
    --until 1s --alone never";

/// VMs lose by sharing processors, for each way of sharing and each agent; where they share none
/// the run is equal to one without the option.
#[test]
fn vms_share_processors_where_they_are_told_to() {
    let of =
        |more: &[&str]| json(&seekway(&line(SHARED, &[more, &["--format", "json"]].concat())).ok());
    let made = of(&["--host", "none", "--host", "cpus=2", "--vcpu", "vanilla,vmigrater"]);
    let runs = made["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 3, "no agent where nothing is shared");
    assert!(runs[0].get("vcpus").is_none(), "{:#}", runs[0]);
    let plain = of(&[]);
    for key in ["requests", "vms", "apps"] {
        assert_eq!(plain["runs"][0][key], runs[0][key], "{key}");
    }
    for run in &runs[1..] {
        let vms = run["vcpus"].as_array().expect("a list");
        assert_eq!(vms.len(), 2);
        for vm in vms {
            assert!(number(&vm["stolen_s"]) > 0.1 && number(&vm["ran_s"]) > 0.1, "{vm:#}");
        }
    }
    let moves = |n: usize| runs[n]["vcpus"][0]["moves"].as_u64().expect("a count");
    assert!(moves(1) == 0 && moves(2) > 0, "{} and {} moves", moves(1), moves(2));
    let waits = |n: usize| number(&runs[n]["vcpus"][0]["wait_ms"]["max"]);
    assert!(waits(1) > 5.0, "a reader waits for its vCPU: {} ms", waits(1));
    let table = seekway(&line(SHARED, &["--host", "cpus=2"])).ok();
    assert!(table.contains("VMs that share processors"), "{table}");
}

/// A guest with two disks, each with limits, a place and a line of its own, and a VM beside it.
const TWO_DISKS: &str = "compare \
    --vm name=db,image=2GiB,disk=log:1GiB,iops=50,weight=3,app=fio:rw=randread,size=1GiB,direct=true,io_size=1TiB,app=fio:rw=randwrite,size=256MiB,direct=true,io_size=1TiB,disk=log \
    --vm name=web,image=2GiB,app=fio:rw=randread,size=1GiB,direct=true,io_size=1TiB \
    --device samsung-970-pro --policies noop --until 1s";

/// Each disk is shown, limited, placed and judged by itself; where processors are shared the
/// guest is one VM with the work of both.
#[test]
fn each_disk_of_a_guest_is_one_of_its_own() {
    let of = |more: &[&str]| {
        json(&seekway(&line(TWO_DISKS, &[more, &["--format", "json"]].concat())).ok())
    };
    let made = of(&["--host", "none", "--host", "cpus=4", "--map", "0,100GiB,10GiB"]);
    for run in made["runs"].as_array().expect("a list") {
        let vms = run["vms"].as_array().expect("a list");
        let names: Vec<&str> = vms.iter().map(|vm| vm["name"].as_str().expect("a name")).collect();
        assert_eq!(names, ["db", "db.log", "web"]);
        let iops = |vm: usize| number(&vms[vm]["iops"]);
        assert!(iops(1) < 60.0 && iops(0) > 1000.0, "{} and {}", iops(1), iops(0));
        // The guest ran alone for what both of its disks ask for.
        let demand = |vm: usize| number(&vms[vm]["demand_mib_s"]);
        assert!(demand(1) < 0.3 && demand(0) > 4.0, "{} and {}", demand(1), demand(0));
        let apps = run["apps"].as_array().expect("a list");
        let of: Vec<&str> = apps.iter().map(|app| app["vm"].as_str().expect("a name")).collect();
        assert_eq!(of, ["db", "db.log", "web"]);
    }
    let vcpus = made["runs"][1]["vcpus"].as_array().expect("a list");
    assert_eq!(vcpus.iter().map(|vm| &vm["vm"]).collect::<Vec<_>>(), ["db", "web"]);
    let apps = &made["runs"][1]["apps"];
    let mib_s = |app: usize| number(&apps[app]["bytes"]) / f64::from(1 << 20);
    assert!((number(&vcpus[0]["app_mib_s"]) - mib_s(0) - mib_s(1)).abs() < 0.01, "{vcpus:#?}");
    assert!((number(&vcpus[1]["app_mib_s"]) - mib_s(2)).abs() < 0.01, "{vcpus:#?}");
}

#[test]
fn a_group_of_a_second_disk_has_to_be_there() {
    let vm = "name=db,disk=log:1GiB,group=t,app=sysbench,disk=log";
    seekway(&["compare", "--vm", vm]).refused(&["--vm name=db: no group 't'"]);
    let run = ["load", "--vm", vm, "--on", "/dev/null"];
    seekway(&run).refused(&["it has 2 disks, and --on is one: drop disk="]);
}

#[test]
fn traces_have_no_processors_to_share() {
    let trace = crate::common::fixture("msr.csv");
    let ran = seekway(&["compare", "--trace", &trace, "--host", "cpus=2", "--policies", "noop"]);
    ran.refused(&["give --vm SPEC"]);
}

/// Two VMs that wait for their own long requests were behind each other by turns. fairway took both
/// for light, and a VM that came after them waited 3.7 times as long as one that was there first.
#[test]
fn a_vm_that_comes_late_and_pauses_waits_as_one_that_was_first() {
    let mean_ms = |start: &str| {
        let quiet = format!("name=q,image=3GiB,app=uniform:outstanding=1,think=150ms{start}");
        let long =
            |name: &str| format!("name={name},image=3GiB,app=uniform:size=4MiB,outstanding=1");
        let (a, b) = (long("a"), long("b"));
        let args = "compare --device samsung-970-pro --policies fairway --alone never --until 3s";
        let args = args.split(' ').chain(["--format", "json", "--vm", &quiet]);
        let args: Vec<&str> = args.chain(["--vm", &a, "--vm", &b]).collect();
        let made = json(&seekway(&args).ok());
        made["runs"][0]["vms"][0]["response_ms"]["mean"].as_f64().expect("it reads")
    };
    let (first, late) = (mean_ms(""), mean_ms(",start=1s"));
    assert!(late < 1.5 * first, "{late} ms, {first} ms if it was first");
}

/// A copy or a backup reads 1 MiB, thinks for 0.1 ms and reads on. The device's rate was never known
/// beside it, so there was no bound, and a quiet VM kept 9 % of its rate.
#[test]
fn a_quiet_vm_beside_a_copy_keeps_near_half_of_its_rate() {
    let iops = |more: &[&str]| {
        // A VM that was there first kept enough beside the rate-limited one even without a bound.
        let quiet = "name=q,image=2GiB,app=uniform:outstanding=1,start=1s";
        let args = "compare --device intel-320 --policies fairway --alone never --until 3s";
        let args = args.split(' ').chain(["--format", "json", "--vm", quiet]);
        let made = json(&seekway(&args.chain(more.iter().copied()).collect::<Vec<_>>()).ok());
        made["runs"][0]["vms"][0]["iops"].as_f64().expect("it reads")
    };
    let copy = "name=f,image=2GiB,app=uniform:outstanding=1,size=1MiB,think=100us";
    let limited = "name=f,image=2GiB,bandwidth=200MiB,app=uniform:outstanding=64,size=1MiB";
    let alone = iops(&[]);
    for neighbour in [copy, limited] {
        let beside = iops(&["--vm", neighbour]);
        assert!(beside > 0.45 * alone, "{neighbour}: {beside} of {alone} reads a second");
    }
}
