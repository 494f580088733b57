//! `seekway predict` as a user runs it: what is refused, each kind of `--against`,
//! and real requests through a real daemon.

use crate::common::{Folder, json, line, number, seekway, trace};
use crate::daemon::Served;
use crate::process::wait_until;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const LOAD: &str = "predict --vm name=a,app=uniform:outstanding=8,requests=300 \
    --vm name=b,app=uniform --until 4s";
const MEASURES: [&str; 4] = ["service_ms", "response_ms", "response_p99_ms", "sectors_per_ms"];

fn predict(args: &[&str]) -> Value {
    json(&seekway(&line(LOAD, &[&["--format", "json"], args].concat())).ok())
}

#[test]
fn what_cannot_be_predicted_is_refused() {
    let folder = Folder::new();
    let other = folder.file("other.json", r#"{"runs":[{"policy":"wfq","mib_s":1}]}"#);
    let cfq = folder.file("cfq.json", r#"{"runs":[{"policy":"cfq","mib_s":1}]}"#);
    let empty = folder.file("empty.json", "{}");
    let drive = folder.file("drive.trace", "R Miss 8 8 5000 100\n");
    let absent = folder.arg("absent.sock");
    let refused = |args: &str, parts: &[&str]| {
        let ran = seekway(&line("predict", &line(args, &[])));
        assert!(!ran.err.contains("panicked"), "{args}: {}", ran.err);
        ran.refused(parts);
    };
    refused("--vm app=uniform", &["which disk? give --on PROFILE"]);
    refused("--on linear-15k4", &["nothing to run: give --trace FILE or --vm SPEC"]);
    refused("--vm app=uniform --on floppy", &["floppy", "cheetah-15k5"]);
    refused(&format!("--against {drive}"), &["which disk?"]);
    let load = |more: &str, parts: &[&str]| {
        refused(&format!("--vm app=uniform --on linear-15k4 {more}"), parts);
    };
    load("--seeds 0", &["--seeds 0"]);
    load("--policies wfq", &["no policy 'wfq'"]);
    let expected = ["--against floppy: expected a profile", "measured trace", "cheetah-15k5"];
    load("--against floppy", &expected);
    load(&format!("--against {empty}"), &["empty.json", "expected {\"runs\""]);
    load(&format!("--against {other}"), &["none of its policies"]);
    let none = ["--against has none of them, but cfq"];
    load(&format!("--against {cfq} --policies noop"), &none);
    load(&format!("--against {drive}"), &["is its own"]);
    load("--window 9s", &["--live"]);
    let measured = format!("--on linear-15k4 --against {drive}");
    refused(&format!("{measured} --policies cfq"), &["all policies give the"]);
    let on_drive = ["was measured on the drive itself"];
    refused(&format!("{measured} --prefetch vio"), &on_drive);
    let live = |more: &str, part: &str| refused(&format!("--live {absent} {more}"), &[part]);
    live("--on linear-15k4", "--on linear-15k4: with --live it is the daemon");
    live("--vm app=uniform", "for --against PROFILE only");
    live("--against linear-15k4", "nothing to run");
    live("--cache 1MiB", "--cache, --prefetch: for simulated disks");
    live("", "is `seekway serve` running");
    live("--window 1ms", "--window 1ms: from 100ms");
    live("--rounds 0", "--rounds 0: from 1");
    let text = folder.file("text.trace", "time,lba,size\n1,2,3\n");
    seekway(&["predict", "--on", "linear-15k4", "--against", &text])
        .refused(&["neither JSON of a real run nor a measured trace", "line 1"]);
}

#[test]
fn policies_are_ranked_by_each_measure() {
    let made = predict(&["--on", "linear-15k4", "--policies", "noop,cfq,sstf", "--seeds", "2"]);
    assert_eq!((&made["on"], &made["against"]), (&"linear-15k4".into(), &Value::Null));
    assert_eq!(made["runs"].as_array().map(Vec::len), Some(6));
    let policies = made["policies"].as_array().expect("a list");
    for measure in MEASURES {
        let mut ranked: Vec<(u64, f64)> = policies
            .iter()
            .map(|p| &p[measure])
            .map(|m| (m["rank"].as_u64().expect("a rank"), m["mean"].as_f64().expect("a mean")))
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        assert_eq!(ranked[0].0, 1, "{measure}");
        let better = |a: f64, b: f64| if measure == "sectors_per_ms" { a >= b } else { a <= b };
        // Those of one rank are within 2 % of each other.
        let in_order = |pair: &[(u64, f64)]| match pair[0].0 == pair[1].0 {
            true => (pair[0].1 / pair[1].1 - 1.0).abs() < 0.021,
            false => better(pair[0].1, pair[1].1),
        };
        assert!(ranked.windows(2).all(in_order), "{measure}: {ranked:?}");
    }
    // The mean is that of the seeds' runs.
    let run = |n: usize| made["runs"][n]["response_ms"].as_f64().expect("a number");
    let mean = made["policies"][0]["response_ms"]["mean"].as_f64().expect("a number");
    assert!((mean - (run(0) + run(1)) / 2.0).abs() < 1e-9);
    let again = predict(&["--on", "linear-15k4", "--policies", "noop,cfq,sstf", "--seeds", "2"]);
    assert_eq!(made, again);
}

#[test]
fn reads_and_writes_are_predicted_apart() {
    let load = "predict --vm name=a,app=uniform:read=70 --vm name=b,app=uniform --until 4s \
        --on linear-15k4 --policies noop,cfq";
    let made = json(&seekway(&line(load, &["--format", "json"])).ok());
    for run in made["runs"].as_array().expect("a list") {
        let [a, b] = [&run["vms"][0], &run["vms"][1]];
        assert!(number(&a["reads"]["iops"]) > number(&a["writes"]["iops"]), "{a:#}");
        assert!(b["writes"].is_null() && number(&b["reads"]["response_ms"]["p99"]) > 0.0);
        assert_eq!(run["writes"]["requests"], a["writes"]["requests"]);
    }
    let text = seekway(&line(load, &[])).ok();
    assert!(text.contains("read p99 (ms)") && text.contains("write p99 (ms)"), "{text}");
    let text = seekway(&line(LOAD, &["--on", "linear-15k4", "--policies", "noop"])).ok();
    assert!(!text.contains("read p99"), "{text}");
}

/// Fails unless `holds` is true of the agreement on every measure.
#[track_caller]
fn each<'a>(made: &'a Value, holds: impl Fn(&'a Value) -> bool) {
    let all = made["agreement"].as_array().expect("a list");
    assert!(!all.is_empty() && all.iter().all(holds), "{all:#?}");
}

#[test]
fn a_disk_predicts_itself_without_error() {
    let made =
        predict(&["--on", "linear-15k4", "--against", "linear-15k4", "--policies", "noop,sstf"]);
    each(&made, |a| a["same_order"] == true && a["tau"] == 1.0 && a["error_max"] == 0.0);
    each(&made, |a| a["seeds_same_order"] == 1);
}

#[test]
fn a_simpler_model_against_a_detailed_one() {
    let args = ["--on", "linear-15k4", "--against", "cheetah-15k4", "--policies", "noop,sstf"];
    let made = predict(&args);
    assert_eq!(made["against"]["what"], "cheetah-15k4");
    for a in made["agreement"].as_array().expect("a list") {
        let measure = a["measure"].as_str().expect("a name");
        let (p, t) = (&made["runs"][0][measure], &made["against"]["runs"][0][measure]);
        let error = p.as_f64().expect("predicted") / t.as_f64().expect("measured") - 1.0;
        assert!((a["errors"]["noop"].as_f64().expect("an error") - error).abs() < 1e-9);
    }
    let table = seekway(&line(LOAD, &args)).ok();
    for part in ["Service on linear-15k4, against cheetah-15k4", "Agreement", "Kendall's τ"] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    let folder = Folder::new();
    let page = folder.arg("page.html");
    let more = ["--format", "csv", "--report", &page];
    let csv = seekway(&line(LOAD, &[&more[..], &args].concat()));
    let lines: Vec<&str> = csv.out.lines().collect();
    assert!(lines[0].starts_with("side,disk,policy,seed,service_ms,"), "{}", csv.out);
    assert_eq!(lines.len(), 5, "{}", csv.out);
    assert!(lines[3].starts_with("against,cheetah-15k4,noop,1,"), "{}", csv.out);
    let page = std::fs::read_to_string(page).expect("written");
    assert!(
        page.contains("class=\"bars\"") && page.contains("Throughput of each policy"),
        "{page}"
    );
}

#[test]
fn a_measured_trace_is_its_own_load() {
    let folder = Folder::new();
    let mut text = String::new();
    for n in 0..200u64 {
        text += &format!("R Miss {} 8 {} 12000\n", n * n * 7_919 % 100_000_000, 5_000 + n * 20);
    }
    let path = folder.file("drive.trace", &text);
    let ran = ["predict", "--on", "cheetah-15k5", "--against", &path, "--format", "json"];
    let made = json(&seekway(&ran).ok());
    // The mean of 5 to 8.98 ms.
    let measured = number(&made["against"]["runs"][0]["service_ms"]);
    assert!((measured / 6.99 - 1.0).abs() < 1e-9, "{measured}");
    assert!(number(&made["runs"][0]["service_ms"]) > 0.0 && number(&made["demerit_ms"]) > 0.0);
    // 8 sectors each 12 ms and the service, 5 to 8.98 ms.
    let rate = made["against"]["runs"][0]["sectors_per_ms"].as_f64().expect("a number");
    assert!((rate - 8.0 / 18.99).abs() < 1e-6, "{rate}");
    each(&made, |a| a["tau"].is_null() && a["same_order"].is_null() && a["error_max"].is_number());
    let note = made["notes"][0].as_str().expect("a note");
    assert!(note.contains("ranks say nothing"), "{note}");
}

#[test]
fn a_drive_is_held_against_what_was_published_of_it() {
    let of = |on: &str, more: &[&str]| {
        let own = ["predict", "--on", on, "--against", "published", "--format", "json"];
        seekway(&[&own[..], more].concat())
    };
    let made = json(&of("intel-320", &[]).ok());
    assert_eq!(made["holds"], true);
    assert_eq!(number(&made["figures"][0]["published"]), 270.0);
    let off = of("intel-320:program_us=3500", &[]);
    assert_eq!(off.code, Some(1));
    assert_eq!(json(&off.out)["holds"], false, "the result is printed all the same");
    of("cheetah-15k5", &[]).refused(&["no published figures", "--against TRACE"]);
    of("intel-320", &["--policies", "noop"]).refused(&["all policies give the same"]);
    of("intel-320", &["--cache", "1GiB"]).refused(&["for simulated disks only"]);
}

#[test]
fn figures_of_a_real_run_choose_the_policies() {
    let folder = Folder::new();
    let load = folder.file("a.trace", &trace(300));
    // What `compare` wrote on the same disk is met exactly.
    let args = ["--trace", &load, "--format", "json"];
    let compare = ["compare", "--device", "cheetah-15k5", "--policies", "cfq,noop"];
    let compared = seekway(&[&compare[..], &args].concat()).ok();
    let compared = folder.file("compared.json", &compared);
    let predict = |against: &str, more: &[&str]| {
        let own = ["predict", "--on", "cheetah-15k5", "--against", against];
        seekway(&[&own[..], &args, more].concat())
    };
    let made = json(&predict(&compared, &[]).ok());
    let ran: Vec<&Value> = made["runs"].as_array().expect("a list").iter().collect();
    assert_eq!((&ran[0]["policy"], &ran[1]["policy"]), (&"cfq".into(), &"noop".into()));
    assert_eq!(made["agreement"].as_array().map(Vec::len), Some(6));
    each(&made, |a| a["error_max"].as_f64().is_some_and(|e| e < 1e-9));
    // So is what `predict` itself wrote.
    let own = folder.file("own.json", &predict(&compared, &[]).ok());
    each(&json(&predict(&own, &[]).ok()), |a| a["error_max"].as_f64().is_some_and(|e| e < 1e-9));
    // By hand, with one measure, and a policy that nobody has here.
    let by_hand =
        r#"{"runs":[{"policy":"noop","response_ms":5},{"policy":"wfq","response_ms":1}]}"#;
    let by_hand = folder.file("hand.json", by_hand);
    let ran = predict(&by_hand, &[]);
    assert!(ran.err.contains("--against has wfq"), "{}", ran.err);
    let made = json(&ran.ok());
    assert_eq!(made["agreement"].as_array().map(Vec::len), Some(1));
    assert_eq!(made["runs"].as_array().map(Vec::len), Some(1));
    let made = json(&predict(&by_hand, &["--policies", "cfq,noop"]).ok());
    assert_eq!(made["runs"].as_array().map(Vec::len), Some(2), "what was asked for is predicted");
    assert_eq!(made["agreement"][0]["errors"].as_object().map(|e| e.len()), Some(1));
}

/// Reads all over an image that a cache of 32 MiB holds and one of 1 MiB does not.
const SMALL: &[&str] = &["--vm", "image=8MiB,app=uniform:outstanding=2", "--until", "1s"];

fn predict_small(more: &[&str]) -> crate::common::Ran {
    let on = ["predict", "--on", "samsung-970-pro", "--policies", "noop,cfq"];
    seekway(&[&on[..], SMALL, more].concat())
}

#[test]
fn a_cache_in_front_of_the_disk_is_predicted_and_named() {
    let caches = ["--cache", "none,1MiB,32MiB"];
    let made = json(&predict_small(&[&caches[..], &["--format", "json"]].concat()).ok());
    let policies = made["policies"].as_array().expect("a list");
    let of = |policy: &str, mib: Option<f64>| {
        let found = policies
            .iter()
            .find(|p| p["policy"] == policy && p["cache_mib"].as_f64() == mib)
            .unwrap_or_else(|| panic!("no {policy} with {mib:?} in {made:#}"));
        found["response_ms"]["mean"].as_f64().expect("a mean")
    };
    assert_eq!(policies.len(), 6);
    assert!(2.0 * of("noop", Some(32.0)) < of("noop", Some(1.0)), "{made:#}");
    assert!(of("cfq", Some(32.0)) < of("cfq", None), "{made:#}");
    for run in made["runs"].as_array().expect("a list") {
        assert_eq!(run["prefetch"].is_null(), run["cache_mib"].is_null(), "{run:#}");
    }
    let text = predict_small(&caches).ok();
    for part in ["noop + no cache ", "cfq + cache 32MiB ", "all runs: prefetch none, no limits,"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let bare = predict_small(&[]).ok();
    assert!(bare.contains("all runs: cache none, prefetch none, no limits, vCPUs not"), "{bare}");
    let csv = predict_small(&[&caches[..], &["--format", "csv"]].concat()).ok();
    assert!(csv.lines().next().is_some_and(|l| l.contains(",cache_mib,prefetch,reads,")), "{csv}");
    assert!(csv.contains(",32,none,") && csv.contains(",0,none,"), "{csv}");
}

#[test]
fn runs_find_each_other_by_their_caches() {
    let folder = Folder::new();
    let compare = |more: &[&str]| {
        let on = ["compare", "--device", "samsung-970-pro", "--policies", "noop,cfq"];
        let made = seekway(&[&on[..], SMALL, more, &["--format", "json"]].concat()).ok();
        folder.file("compared.json", &made)
    };
    let against = |file: &str, more: &[&str]| {
        predict_small(&[&["--against", file, "--format", "json"], more].concat())
    };
    let exact = |made: &Value, stacks: usize| {
        assert!(made["agreement"].as_array().is_some_and(|a| !a.is_empty()), "{made:#}");
        each(made, |a| a["error_max"].as_f64().is_some_and(|e| e < 1e-9));
        each(made, |a| a["errors"].as_object().map(|e| e.len()) == Some(stacks));
    };
    // The caches of the file are predicted, as its policies are.
    let file = compare(&["--cache", "none,1MiB", "--prefetch", "none,vio"]);
    exact(&json(&against(&file, &[]).ok()), 6);
    exact(&json(&against(&file, &["--cache", "1MiB", "--prefetch", "vio"]).ok()), 2);
    let other = ["--cache", "2MiB", "--prefetch", "vio"];
    against(&file, &other).refused(&["nothing to compare", "the same --policies, --cache"]);
    // Another profile has the same caches in front.
    let same = ["--cache", "none,1MiB", "--against", "samsung-970-pro", "--format", "json"];
    exact(&json(&predict_small(&same).ok()), 4);
    // Figures that do not say which cache they had stand beside the only one.
    let by_hand = folder.file("hand.json", r#"{"runs":[{"policy":"noop","response_ms":5}]}"#);
    let made = json(&against(&by_hand, &["--cache", "1MiB"]).ok());
    assert_eq!(made["agreement"][0]["errors"].as_object().map(|e| e.len()), Some(1));
    against(&by_hand, &["--cache", "none,1MiB"])
        .refused(&["do not say which host cache", "give one --cache"]);
    let wrong = r#"{"runs":[{"policy":"noop","cache_mib":-1,"response_ms":5}]}"#;
    against(&folder.file("wrong.json", wrong), &[]).refused(&["a cache_mib of -1"]);
    let wrong = r#"{"runs":[{"policy":"noop","cache_mib":1,"prefetch":"amp","response_ms":5}]}"#;
    against(&folder.file("wrong.json", wrong), &[]).refused(&["no prefetcher 'amp'"]);
    let limits = r#"{"runs":[{"policy":"noop","limits":"none","response_ms":5},
        {"policy":"noop","limits":"given","response_ms":6}]}"#;
    against(&folder.file("limits.json", limits), &[]).refused(&["the runs differ in limits"]);
}

/// A guest's load: reads, or writes, all over a disk, by NBD with simple replies, four at a
/// time, until told to stop.
struct Guest {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Guest {
    fn start(socket: &Path, writes: bool) -> Guest {
        let mut client = crate::nbd::Client::open(socket);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut n = 0u64;
            let mut ask = |client: &mut crate::nbd::Client| {
                let block = n * 2_654_435_761 % 4096; // of 4 KiB, all over 16 MiB
                let op = if writes { crate::nbd::WRITE } else { crate::nbd::READ };
                client.send(&crate::nbd::request(op, n, block * 4096, 4096));
                if writes {
                    client.send(&[7; 4096]);
                }
                n += 1;
            };
            (0..4).for_each(|_| ask(&mut client));
            while !seen.load(Ordering::Relaxed) {
                assert_eq!(client.reply().0, 0, "no error");
                if !writes {
                    client.data(4096);
                }
                ask(&mut client);
            }
        });
        Guest { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
    }
}

fn policy_of(served: &Served) -> String {
    served.status()["devices"][0]["policy"].as_str().expect("a name").to_string()
}

#[test]
fn real_requests_through_a_daemon() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--emulate", "linear-15k4:k=2", "--policy", "deadline"]);
    let guests = [("web", false), ("db", true)]
        .map(|(disk, writes)| Guest::start(&folder.path(&format!("run/{disk}.nbd")), writes));
    let live = ["predict", "--live", &served.control, "--policies", "noop,sstf"];
    let short = ["--settle", "0s", "--window", "1s", "--rounds", "2", "--format", "json"];
    let ran = seekway(&[&live[..], &short].concat());
    let warned = ran.err.clone();
    let made = json(&ran.ok());
    assert_eq!(made["on"], "linear-15k4", "{made:#}");
    assert_eq!(policy_of(&served), "deadline", "the policy of before is back");
    assert!(warned.contains("divided by k = 2,") && warned.contains("they were not"), "{warned}");
    let runs = made["runs"].as_array().expect("a list");
    let order: Vec<(&str, u64)> = runs
        .iter()
        .map(|r| (r["policy"].as_str().expect("a name"), r["round"].as_u64().expect("a round")))
        .collect();
    assert_eq!(order, [("noop", 1), ("noop", 2), ("sstf", 1), ("sstf", 2)]);
    for run in runs {
        assert_eq!(number(&run["k"]), 2.0);
        // A busy host may leave the daemon and its readers next to no time in a window.
        let requests = number(&run["requests"]);
        if requests < 10.0 {
            seekway_testing::skip(format!("a processor for a second: {requests} requests in it"));
            continue;
        }
        // In the model's time: a second of the window is half a second there.
        let rate = requests * 8.0 / (number(&run["window_s"]) * 1e3) * 2.0;
        assert!((number(&run["sectors_per_ms"]) / rate - 1.0).abs() < 1e-6, "{run:#}");
        // 4.25 ms and a little seek or a hit; eight outstanding; never slower than
        // the model but by what this machine adds.
        assert!(number(&run["service_ms"]) > 0.2, "{run:#}");
        assert!(number(&run["response_ms"]) > number(&run["service_ms"]), "{run:#}");
        assert!(number(&run["response_p99_ms"]) >= number(&run["response_ms"]), "{run:#}");
        let [reads, writes] = [&run["reads"], &run["writes"]];
        let done = number(&reads["requests"]) + number(&writes["requests"]);
        assert_eq!(done, requests, "{run:#}");
        for operation in [reads, writes] {
            let rate = number(&operation["requests"]) / number(&run["window_s"]) * 2.0;
            assert!((number(&operation["iops"]) / rate - 1.0).abs() < 1e-6, "{run:#}");
            let times = &operation["response_ms"];
            assert!(number(&times["p99"]) >= number(&times["p50"]), "{run:#}");
        }
        let p99 = [reads, writes].map(|operation| number(&operation["response_ms"]["p99"]));
        assert!(number(&run["response_p99_ms"]) <= p99[0].max(p99[1]), "{run:#}");
    }
    // Against itself as a run of before.
    let before = folder.file("before.json", &made.to_string());
    let against = ["predict", "--live", &served.control, "--against", &before];
    let made = json(&seekway(&[&against[..], &short].concat()).ok());
    assert_eq!(made["runs"].as_array().map(Vec::len), Some(4), "the policies of the file");
    each(&made, |a| a["error_max"].is_number() && a["seeds"] == 0);
    seekway(&[&live[..], &["--device", "sda"]].concat())
        .refused(&["no such device", "linear-15k4"]);
    let text = seekway(&[&live[..], &["--settle", "0s", "--window", "1s"]].concat()).ok();
    assert!(text.contains("read p99 (ms)") && text.contains("write p99 (ms)"), "{text}");
    let figures = served.status();
    let device = &figures["devices"][0];
    let [web, db] = [&device["disks"][0], &device["disks"][1]];
    assert!(web["ops"]["read"]["responses"][0].is_array(), "{web:#}");
    assert!(db["ops"]["write"]["responses"][0].is_array(), "{db:#}");
    assert_eq!(web["ops"]["write"]["responses"], Value::Null, "{web:#}");
    assert!(number(&device["served"]["service_ms"]) > 0.0);
    assert!(number(&device["disks"][0]["device_time_ms"]) > 0.0);
    guests.into_iter().for_each(Guest::end);
    assert_eq!(served.end(), Some(0));
}

/// Starts a prediction with guests, of noop for an hour; it has noop in charge now.
fn predicting(served: &Served) -> std::process::Child {
    let args = ["predict", "--live", &served.control, "--policies", "noop", "--window", "1h"];
    let child = crate::common::command(&args).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_until("noop is in charge", || policy_of(served) == "noop");
    child
}

/// Ends it by a signal: what it says.
fn interrupted(mut child: std::process::Child, signal: i32) -> String {
    seekway_testing::signal(&child, signal);
    assert_eq!(child.wait().expect("ours").code(), Some(2));
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    said
}

#[test]
fn a_signal_puts_the_policy_of_before_back() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--policy", "deadline:fifo_batch=3"]);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let said = interrupted(predicting(&served), signal);
        assert!(said.contains("deadline:fifo_batch=3 is back in charge"), "{said}");
        assert_eq!(policy_of(&served), "deadline:fifo_batch=3");
    }
    assert_eq!(served.end(), Some(0));
}

#[test]
fn what_somebody_else_puts_in_charge_stays() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--policy", "deadline"]);
    let child = predicting(&served);
    seekway(&["ctl", "--socket", &served.control, "policy", "cfq"]).ok();
    let said = interrupted(child, libc::SIGTERM);
    assert!(said.contains("somebody else has put cfq in charge"), "{said}");
    assert_eq!(policy_of(&served), "cfq");
    assert_eq!(served.end(), Some(0));
}

#[test]
fn a_daemon_that_emulates_nothing_measures() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--policy", "noop"]);
    let args = ["predict", "--live", &served.control, "--policies", "noop", "--window", "100ms"];
    let ran =
        seekway(&[&args[..], &["--settle", "0s", "--rounds", "1", "--format", "json"]].concat());
    for part in ["measured on its own device", "nothing was read or written in a window of noop"] {
        assert!(ran.err.contains(part), "no {part:?} in {}", ran.err);
    }
    let made = json(&ran.ok());
    assert_eq!(made["runs"][0]["response_ms"], Value::Null, "what was not measured is absent");
    assert_eq!(served.end(), Some(0));
}
