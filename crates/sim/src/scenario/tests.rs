//! Scenarios as they are written, and the runs that they describe.

use super::read::{SCENARIO_BYTES_MAX, study, study_of_file};
use super::tables::{Table, Values, tables};
use super::*;
use std::path::Path;

/// A scenario with every key, none of which has its default.
const EVERY_KEY: &str = r#"
name = "all"
seed = 7
policy = "cfq:quantum=4"
limits = "none"
weights = [4, 1, 1]
only = 0
device = { profile = "linear-15k4", change = { queue_depth = 8 }, slow = 2 }
stack = { coalesce = 0, merge = true, hard_limit = "1s" }
images = { map = "ext3", from = "1MiB" }
path = { request = "100us", waits = true }
measure = { settle = "1s", until = "2s", requests = 1000 }

[cache]
size = "512MiB"
prefetch = "vio"
costs = { request = "1us", command = "2us", copy = "1GiB", event = "3ns", poll = "4us", poll_event = "5ns" }

[cpu]
count = 4
slice = "3ms"
jitter = "1ms"
cut = 20
switch = "7us"
completes = "steered"
agent = "vmigrater"
wakeup_preempts = false
part = 2
guests_compute = true
guest = { slice = "4ms", switch = "3us", balances = false, shared_cache = false }
detector = { exact = { delay = "1ms", edge = "2us" } }
costs = { call = "1us", cold = "2us", window = "3us", wake = "4us", turn = "5us" }
without = { stopper = true, completions = true, moves = true, foresight = "1ms" }

[outcome]
journal = true
requests = true
tables = ["runs", "vms"]
alone = "always"
fair_to = "private"

[[group]]
name = "t"
limits = { bandwidth = "300MiB", weight = 3 }

[[vm]]
name = "web"
trace = { path = "t.csv", format = "csv", columns = "time_us,op,offset_bytes,size_bytes", event = "issue", lenient = true, split = 4, max_requests = 9, max_time = "5s", time_scale = 0.5, outstanding = 3, capacity = "1GiB" }

[[vm]]
name = "db"
count = 2
stream = 5
weight = 2
guest = { image = "2GiB", elevator = "cfq", tags = true, latency = "500us" }
limits = { iops = 50, group = "t", latency = "20ms", reserve_iops = 5 }
disk = [{ name = "log", size = "2GiB", weight = 3, limits = { iops = 7 } }]
load = [{ app = "sysbench", mode = "SR" }, { app = "sysbench", mode = "RR", disk = "log" }]

[[vm]]
name = "bare"
vcpus = 2
size = "1GiB"
cpu_weight = 3
agent = false
weight = 2
limits = { iops = 9 }
task = [
  { name = "burn", start = 0, allowed = [0], from = "1s", load = "compute" },
  { name = "part", load = { partly = { burst = "5ms", permille = 300 } } },
  { name = "read", load = { io = { block = "4KiB", sequential = true, cpu = "9us", depth = 2, burst = 5, between = "1ms", computes = true } } },
]
"#;

fn read(text: &str) -> Vec<Study> {
    study(text, Some("s.toml")).unwrap_or_else(|e| panic!("{e:#}"))
}

fn one(text: &str) -> Scenario {
    let mut all = read(text);
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0).scenario
}

fn refused(text: &str) -> String {
    format!("{:#}", study(text, Some("s.toml")).unwrap_err())
}

/// The scenario as it is written.
fn written(scenario: &Scenario) -> toml::Value {
    toml::Value::try_from(scenario).unwrap()
}

#[test]
fn every_key_reads_back_as_it_was_written() {
    let scenario = one(EVERY_KEY);
    let again: Scenario = written(&scenario).try_into().unwrap();
    assert_eq!(scenario, again);
    // Each key that is left out makes another scenario, so none is read and forgotten.
    let table = written(&scenario);
    for path in leaves(&table, Vec::new()) {
        let mut less = table.clone();
        remove(&mut less, &path);
        let other: Result<Scenario, _> = less.try_into();
        assert!(other.is_err() || other.is_ok_and(|other| other != scenario), "{path:?}");
    }
}

/// The paths of all values below tables and lists of tables.
fn leaves(value: &toml::Value, path: Vec<String>) -> Vec<Vec<String>> {
    let below = |key: String, value: &toml::Value| {
        leaves(value, path.iter().cloned().chain([key]).collect())
    };
    match value {
        toml::Value::Table(table) => {
            table.iter().flat_map(|(key, value)| below(key.clone(), value)).collect()
        }
        toml::Value::Array(list) if list.iter().all(toml::Value::is_table) => {
            let list = list.iter().enumerate();
            list.flat_map(|(n, value)| below(n.to_string(), value)).collect()
        }
        _ => vec![path],
    }
}

fn remove(value: &mut toml::Value, path: &[String]) {
    match (value, path) {
        (toml::Value::Table(table), [last]) => drop(table.remove(last)),
        (toml::Value::Table(table), [first, rest @ ..]) => remove(&mut table[first], rest),
        (toml::Value::Array(list), [n, rest @ ..]) => {
            remove(&mut list[n.parse::<usize>().unwrap()], rest);
        }
        _ => unreachable!("a path leads to a leaf"),
    }
}

#[test]
fn errors_say_where_they_are_and_what_to_write() {
    let mut wrong = Vec::new();
    for (text, expected) in [
        ("sede = 1", "s.toml:1:1: unknown field `sede`, expected one of `name`, `policy`"),
        ("\n\n[measure]\nuntil = 5", "s.toml:4:9: measure.until: 5: expected a time with its unit"),
        ("[cache]\nsize = \"7q\"", "size = 7q: "),
        ("[cache]\nprefetch = \"vxo\"", "prefetch: no prefetcher 'vxo'"),
        ("cache = \"nine\"", "s.toml:1:9: cache: "),
        ("stack.hard_limit = \"0s\"", "hard_limit: expected more than 0, such as 30s"),
        ("[cpu]\nslice = \"3ms\"", "say how many processors there are"),
        ("[cpu]\ncount = 1\nagent = \"vsmt\"", "agent: no vCPU policy 'vsmt'"),
        ("[cpu]\ncount = 1\ncores = 3", "s.toml:3:1: cpu: unknown field `cores`"),
        ("images.map = \"spread\"\nimages.from = 3", "from: only with map"),
        ("images.map = \"at\"", "at: give one place for each disk"),
        ("limits = \"some\"", "unknown variant `some`, expected `given` or `none`"),
        ("outcome.tables = [\"rnus\"]", "no table 'rnus'; there are runs, vms"),
        ("seed = -1", "s.toml:1:8: seed: expected a whole number of at least 0"),
        ("seed = [1, 1]", "seed: one is given twice"),
        ("policy = []", "s.toml:1:10: policy: an empty list: give at least one value"),
        ("policy = [[\"noop\"]]", "policy: a list in a list"),
        ("policy = 3", "s.toml:1:10: policy: invalid type: integer `3`, expected a string"),
        ("policy = \"noop\" \"cfq\"", "s.toml:1:17: "),
        ("[[vm]]\nname = \"a\"\nlaod = 1", "s.toml:3:1: vm: unknown field `laod`"),
        ("[[vm]]\nload = [{ app = \"sysbnech\" }]", "no generator 'sysbnech'; there are sysbench"),
        ("[[vm]]\nload = [{ mode = \"SR\" }]", "say which generator, as app = \"sysbench\""),
        ("[[vm]]\nguest.rom = 1\nload = [{ app = \"sysbench\" }]", "a VM has no parameter 'rom'"),
        ("[[vm]]\nload = [{ app = \"sysbench\", iops = 5 }]", "sysbench has no parameter 'iops'"),
        ("[[vm]]\nlimits.weight = 2\nload = [{ app = \"sysbench\" }]", "write weight = N beside"),
        ("[[vm]]\ntrace.path = \"a\"\nweight = 2", "weight: a VM that replays a trace has none"),
        ("[[vm]]\nvcpus = 2\nload = [{ app = \"sysbench\" }]", "vcpus: a VM that generates a load"),
        ("[[vm]]\ntask = [{ name = \"a\", load = \"compute\" }]", "vcpus: a VM with tasks"),
        ("[[vm]]\ncount = 0\ntrace.path = \"a\"", "count = 0: expected 1 to 65535"),
        (
            "[[vm]]\ntrace.path = \"a\"\n[[vm]]\ncount = 0\ntrace.path = \"a\"",
            "s.toml:3:1: vm: count",
        ),
        ("vm = [{ trace.path = \"a\" },\n{ count = 0 }]", "s.toml:2:1: vm: count = 0"),
        ("[[vm]]\nload = [{ app = \"fio\", size = { a = 1 } }]", "s.toml:2:31: vm.load.size: "),
        ("vm = 3", "s.toml:1:6: vm: expected [[vm]] with its keys"),
        ("vm = [3]", "s.toml:1:7: vm: expected [[vm]] with its keys"),
        ("[[group]]\nname = \"t\"\nlimits = { iosp = 3 }", "no limit 'iosp'; there are iops"),
        (
            "[[group]]\nname = \"t\"\nlimits.iops = 3\n[[group]]\nname = \"u\"",
            "s.toml:4:1: group: group u has no limit",
        ),
        ("[[case]]\npolicy = \"noop\"", "s.toml:1:1: case.name: give each a name"),
        ("[[case]]\nname = \"a\"\n[[case]]\nname = \"a\"", "s.toml:4:8: case.name: 'a' is there"),
        ("case = []", "case: expected 1 to"),
        ("quick = 1", "unknown field `quick`"),
    ] {
        let error = refused(text);
        if !(error.starts_with("s.toml:") && error.contains(expected)) {
            wrong.push(format!("{text}\n{error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_list_is_an_axis_and_every_combination_a_run() {
    let text = r#"
        seed = [1, 2]
        measure.until = ["1s", "2s"]
        policy = ["noop", "cfq"]
        cache = { size = ["none", "1MiB"], prefetch = ["none", "vio"] }
        [[vm]]
        guest.ring = [8, 16]
        load = [{ app = "sysbench" }]
    "#;
    let all = read(text);
    let shown = |s: &Study| {
        let cache = s.scenario.cache.as_ref().map_or("-", |cache| cache.prefetch.as_str());
        (s.scenario.policy.clone(), cache.to_string(), s.scenario.name.clone())
    };
    let shown: Vec<_> = all.iter().map(shown).collect();
    // Without a cache there is one run for all prefetchers.
    assert_eq!(all.len(), 2 * 3 * 2 * 2);
    assert!(all.iter().all(|study| study.seeds == [1, 2]));
    let first = |policy: &str, cache: &str, name: &str| {
        (policy.to_string(), cache.to_string(), name.to_string())
    };
    assert_eq!(shown[0], first("noop", "-", "measure.until=1s, vm.guest.ring=8"));
    assert_eq!(shown[1], first("noop", "-", "measure.until=1s, vm.guest.ring=16"));
    assert_eq!(shown[4], first("noop", "none", "measure.until=1s, vm.guest.ring=8"));
    assert_eq!(shown[23], first("cfq", "vio", "measure.until=2s, vm.guest.ring=16"));
}

#[test]
fn lists_stay_lists_unless_they_hold_lists() {
    let one = one("weights = [1, 2]\n[[vm]]\nload = [{ app = \"sysbench\" }]");
    assert_eq!(one.weights.len(), 2);
    let two = read("weights = [[1, 2], [3]]\nvm = [{ load = [{ app = \"sysbench\" }] }]");
    assert_eq!(two.iter().map(|s| s.scenario.weights.len()).collect::<Vec<_>>(), [2, 1]);
    let loads = "vm = [{ load = [[{ app = \"sysbench\" }], [{ app = \"fio\" }]] }]";
    assert_eq!(read(loads).len(), 2);
}

#[test]
fn cases_change_several_keys_and_have_axes_of_their_own() {
    let text = r#"
        name = "study"
        policy = "noop"
        cpu = { count = 2, slice = "3ms" }
        [[case]]
        name = "more"
        policy = ["cfq", "deadline"]
        cpu.count = 4
        [[case]]
        name = "plain"
        cpu = "none"
        seed = 9
    "#;
    let shown = |s: &Study| {
        let cpu = s.scenario.cpu.as_ref().map(ToString::to_string);
        (s.scenario.name.clone(), s.scenario.policy.clone(), cpu, s.seeds[0])
    };
    let cpu = Some("cpus=4,slice=3ms".to_string());
    let expected = [
        ("study, more".into(), "cfq".into(), cpu.clone(), 1),
        ("study, more".into(), "deadline".into(), cpu, 1),
        ("study, plain".into(), "noop".into(), None, 9),
    ];
    assert_eq!(read(text).iter().map(shown).collect::<Vec<_>>(), expected);
}

#[test]
fn too_many_runs_are_refused_before_they_are_made() {
    let many = |key: &str| format!("{key} = [{}]\n", "1,".repeat(200));
    let text: String = ["measure.requests", "cpu.count", "cpu.cut", "cpu.part"].map(many).concat();
    assert!(refused(&text).contains("combinations and more, at most"), "{}", refused(&text));
    let seeds: String = (0..100_001).map(|n| format!("{n},")).collect();
    let error = refused(&format!("seed = [{seeds}]"));
    assert!(error.contains("a list of 1 to 100000"), "{error}");
    let seeds: String = (0..60_000).map(|n| format!("{n},")).collect();
    let error = refused(&format!("seed = [{seeds}]\npolicy = [\"noop\", \"cfq\"]"));
    assert!(error.contains("with 120000 runs"), "{error}");
}

#[test]
fn files_that_are_no_scenario_are_refused_soon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.toml");
    let refused = |path: &Path| format!("{:#}", study_of_file(path).unwrap_err());
    assert!(refused(&path).contains("No such file"));
    std::fs::write(&path, b"policy = \"noop\"\n# \xff").unwrap();
    assert!(refused(&path).contains("s.toml:2:3: not UTF-8"), "{}", refused(&path));
    // Sparse: 100 MiB of zeroes, of which a little is read.
    std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
    let error = refused(&path);
    assert!(error.contains(&format!("longer than {SCENARIO_BYTES_MAX} bytes")), "{error}");
    for deep in ["policy = ".to_string() + &"[".repeat(10_000), "{a=".repeat(10_000)] {
        assert!(study(&deep, None).is_err());
    }
}

fn column<'t>(all: &'t [Table], table: &str, column: &str) -> &'t Values {
    let table = all.iter().find(|t| t.name == table).unwrap();
    &table.columns.iter().find(|c| c.name == column).unwrap().values
}

fn counts(all: &[Table], table: &str, name: &str) -> Vec<u64> {
    let Values::Count(values) = column(all, table, name) else { panic!("{name} is no count") };
    values.iter().map(|value| value.unwrap_or_default()).collect()
}

#[test]
fn tables_agree_with_each_other() {
    let text = r#"
        policy = "anticipatory"
        cache = { size = "64MiB", prefetch = "linux" }
        measure = { settle = "500ms", until = "2s" }
        cpu = { count = 1, agent = "vmigrater" }
        outcome.requests = true
        [[vm]]
        name = "a"
        count = 2
        load = [{ app = "sysbench", mode = "RR" }]
    "#;
    let made = run(&one(text)).unwrap();
    let all = tables(0, &made);
    assert_eq!(all.iter().map(|t| t.name).collect::<Vec<_>>(), tables::names().collect::<Vec<_>>());
    let total = |table: &str, name: &str| counts(&all, table, name).into_iter().sum::<u64>();
    let requests = total("runs", "requests");
    assert!(requests > 0);
    assert_eq!(total("vms", "requests"), requests);
    assert_eq!(total("vms", "bytes"), total("runs", "bytes"));
    assert_eq!(total("series", "bytes"), total("runs", "bytes"));
    assert_eq!(counts(&all, "vms", "first_sector")[0], 0);
    assert_eq!(made.requests.len(), counts(&all, "requests", "sectors").len());
    let Values::Text(of) = column(&all, "histograms", "of") else { panic!("of is text") };
    let bins = counts(&all, "histograms", "count");
    let of_all: u64 = of
        .iter()
        .zip(&bins)
        .filter(|(of, _)| *of == Some("response"))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(of_all, 2 * requests, "of all, and of each VM");
    assert_eq!(counts(&all, "vcpus", "vcpus"), [2, 2]);
    assert!(counts(&all, "journals", "run").is_empty());
    // Two runs of the same scenario are the same, and join to one table.
    let (again, mut joined) = (run(&one(text)).unwrap(), tables(0, &made));
    joined.iter_mut().zip(tables(1, &again)).for_each(|(all, more)| all.join(more));
    assert_eq!(counts(&joined, "runs", "run"), [0, 1]);
    assert_eq!(counts(&joined, "runs", "bytes")[0], counts(&joined, "runs", "bytes")[1]);
}

#[test]
fn equal_vms_are_one_entry_or_several() {
    let vm = "[[vm]]\nname = \"a\"\nload = [{ app = \"sysbench\", mode = \"RR\" }]\n";
    let measure = "measure.until = \"500ms\"\n";
    let several = run(&one(&format!("{measure}{vm}{vm}"))).unwrap();
    let counted = run(&one(&format!("{measure}{vm}count = 2\n"))).unwrap();
    let shown = |o: &Outcome| -> Vec<(String, u64)> {
        o.result.vms.iter().map(|vm| (vm.name.clone(), vm.bytes)).collect()
    };
    assert_eq!(shown(&several), shown(&counted));
    assert_eq!(shown(&several)[1].0, "a-2");
    let many = format!("{vm}count = 40000\n");
    let error = run(&one(&many.repeat(2))).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("at most 65535 are possible"), "{error}");
    let trace = "[[vm]]\ntrace.path = \"t\"\ncount = 65535\n";
    let error = run(&one(&trace.repeat(2))).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("131070 VMs"), "{error}");
    // A stream of random numbers goes with its VM.
    let second = run(&one(&format!("{measure}{vm}stream = 1\n"))).unwrap();
    let first = run(&one(&format!("{measure}{vm}"))).unwrap();
    assert_ne!(first.result.response, second.result.response);
    let error = run(&one(&format!("only = 3\n{measure}{vm}"))).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("the load has 1 sources"), "{error}");
}

#[test]
fn a_profile_may_stand_in_full_and_be_changed() {
    let text = seekway_device::profile::text("linear-15k4").unwrap();
    let table: toml::Table = text.parse().unwrap();
    let mut device = Device { profile: ProfileText::Table(table), ..Device::default() };
    assert_eq!(device.load().unwrap().name(), "linear-15k4");
    device.change.insert("hit_ms".into(), Scalar("0.5".into()));
    assert_eq!(device.shown(), "linear-15k4:hit_ms=0.5");
    device.load().unwrap();
    device.change.insert("hti_ms".into(), Scalar("1".into()));
    let error = format!("{:#}", device.load().map(|_| ()).unwrap_err());
    assert!(error.contains("hti_ms"), "{error}");
    let named = one("device = { profile = \"linear-15k4\", change = { hit_ms = 0.5 } }");
    assert_eq!(named.device.load().unwrap().capacity_sectors(), 286_749_488);
}

#[test]
fn tasks_without_a_guest_run_on_shared_processors_only() {
    let vm = r#"
        measure.until = "500ms"
        vm = [
            { name = "io", vcpus = 2, size = "1GiB", agent = true, task = [
                { name = "read", load = { io = { block = "64KiB", cpu = "10us" } } },
                { name = "burn", start = 1, allowed = [1], load = "compute" },
            ] },
            { name = "web", load = [{ app = "sysbench", mode = "RR" }] },
        ]
    "#;
    let made = run(&one(&format!("cpu = {{ count = 1, slice = \"3ms\" }}\n{vm}"))).unwrap();
    let machine = made.result.machine.as_ref().unwrap();
    let tasks: Vec<&str> = machine.vms[0].tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(tasks, ["read", "burn"]);
    assert!(machine.vms[0].tasks[0].bytes > 0 && machine.vms[1].ran > Nanos::ZERO);
    assert_eq!(made.result.vms[0].name, "io");
    let error = run(&one(vm)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("VM io: its tasks run on processors of the host"), "{error}");
}
