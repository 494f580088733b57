use super::draw::{self, Look};
use super::{Action, Asked, SORTS, View};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use seekway_hostd::control::{HostReport, Request};
use serde_json::{Value, json};

const PLAIN: Look = Look { colour: false, unicode: true };

/// A disk with `reads` reads done, each of 4 KiB and `ms`.
fn disk(name: &str, reads: u64, class: u32, device_ms: f64) -> Value {
    let op = |requests: u64| json!({"requests": requests, "bytes": requests.saturating_mul(4096), "errors": 0});
    json!({
        "name": name, "path": format!("/images/{name}.img"), "sockets": [], "weight": 2,
        "capacity_bytes": 1 << 30, "read_only": false, "ports": 1, "outstanding": 3,
        "held_ms": {}, "device_time_ms": device_ms, "policy_metrics": {},
        "ops": {"read": op(reads), "write": op(reads / 2)},
        "responses": if reads > 0 { json!([[class, reads]]) } else { json!([]) },
    })
}

fn report(uptime_s: f64, disks: &[Value]) -> HostReport {
    let device = json!({
        "name": "sda", "time_s": uptime_s, "policy": "fairway", "depth": 32, "in_flight": 2,
        "outstanding": 6, "requests": 9, "commands": 9, "forced": 0,
        "held_ms": {"idle": 200.0 * uptime_s}, "waits_tried": 0, "waits_paid": 0,
        "served": {"commands": 9, "service_ms": 700.0 * uptime_s, "service_from_dispatch_ms": 0.0},
        "fairness": {"interval_s": 1.0, "busy_disks": 2, "jain": 0.98},
        "regions": [], "policy_metrics": {}, "disks": disks,
    });
    let report = json!({
        "version": "0", "process": 1, "uptime_s": uptime_s, "sockets": [], "devices": [device],
    });
    serde_json::from_value(report).unwrap()
}

/// Two disks, one of which waits for the other, and for its limits.
fn view() -> View {
    let mut view = View::default();
    for second in 0..=5 {
        let mut db = disk("db", second * 1000, 30 + second as u32 % 3, 600.0 * second as f64);
        db["limits"] = json!("iops=2000");
        let mut web = disk("web", second * 10, 50, 100.0 * second as f64);
        web["limits"] = json!("iops=10");
        web["limited"] = json!(2);
        web["limited_ms"] = json!(400.0 * second as f64);
        web["cache"] = json!({
            "resident_bytes": 0, "streams": 1, "armed": 1, "reads": 1, "read_bytes": 4 << 20,
            "hit_bytes": 3 << 20, "late_bytes": 0, "missed_bytes": 0, "prefetched_bytes": 2 << 20,
            "used_bytes": 1 << 20, "wasted_bytes": 0, "dropped_bytes": 0, "promoted": 0,
            "accuracy": 0.5, "cost": 0.0,
            "processes": [{
                "tag": 7, "streams": 1, "armed": 1, "reads": 1, "read_bytes": 4 << 20,
                "hit_bytes": 3 << 20, "late_bytes": 0, "missed_bytes": 0,
                "prefetched_bytes": 2 << 20, "used_bytes": 1 << 20, "wasted_bytes": 0,
                "dropped_bytes": 0, "promoted": 0, "accuracy": 0.5, "cost": 0.0,
            }],
        });
        view.take(report(100.0 + second as f64, &[db, web]));
    }
    view
}

fn picture(view: &View, look: Look, columns: u16, lines: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| draw::draw(frame, view, look)).unwrap();
    draw::text(terminal.backend().buffer())
}

fn key(view: &mut View, code: KeyCode) -> Action {
    super::press(view, KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(view: &mut View, text: &str) {
    text.chars().for_each(|c| assert_eq!(key(view, KeyCode::Char(c)), Action::Draw));
}

#[test]
fn eighty_columns_show_all_figures() {
    let mut view = view();
    view.move_selection(1);
    expect_test::expect![[r#"
        seekway top  up 1 min 45 s  devices 1  disks 2  sorted by name
        device         policy               queued in flight busy  Jain  withheld
        sda            fairway                   4      2/32  70 %  0.98 idle 20 %

        disk weight    IOPS rd MiB/s wr MiB/s  p50 ms  p99 ms  time wait  err trend
        db        2    1500     3.91     1.95    0.28    0.28  86 %    3    0      ▇█▆▇█
        web       2    15.0     0.04     0.02    6.32    6.32  14 %    3    0      █████








        web on sda: /images/web.img, limits iops=10
          3 under way
          2 wait for its limits, which held requests for 40 % of the time
          db has 86 % of the device's time
          process 7: read 4 MiB, cache hits 75 %, read ahead 2 MiB, used 50 %



        s sort  r reverse  w weight  l limits  p policy  space pause  ? help  q quit
    "#]]
    .assert_eq(&picture(&view, PLAIN, 80, 24));
}

#[test]
fn without_unicode_all_is_ascii() {
    let look = Look { colour: false, unicode: false };
    let picture = picture(&view(), look, 120, 30);
    assert!(picture.is_ascii(), "{picture}");
    assert!(picture.contains('#'), "{picture}");
}

#[test]
fn keys_sort_select_and_ask() {
    let mut view = view();
    assert_eq!(view.selected.as_deref(), Some("db"));
    key(&mut view, KeyCode::Down);
    assert_eq!(view.selected.as_deref(), Some("web"));
    key(&mut view, KeyCode::End);
    assert_eq!(view.selected.as_deref(), Some("web"));
    key(&mut view, KeyCode::Char('s'));
    assert_eq!((SORTS[view.sort].0, view.disks()[0].name.as_str()), ("IOPS", "db"));
    key(&mut view, KeyCode::Char('r'));
    assert_eq!(view.disks()[0].name, "web");
    // The line begins with what it is now.
    key(&mut view, KeyCode::Char('w'));
    let input = view.input.clone().unwrap();
    assert_eq!((input.asked, input.of.as_str(), input.text.as_str()), (Asked::Weight, "web", "2"));
    key(&mut view, KeyCode::Backspace);
    type_text(&mut view, "0");
    assert_eq!(key(&mut view, KeyCode::Enter), Action::Draw);
    assert!(view.message.contains("from 1") && view.input.is_some());
    key(&mut view, KeyCode::Backspace);
    type_text(&mut view, "7");
    let weight = Request::Weight { disk: "web".into(), weight: 7.try_into().unwrap() };
    assert_eq!(key(&mut view, KeyCode::Enter), Action::Ask(weight));
    assert_eq!(view.input, None);
    key(&mut view, KeyCode::Char('p'));
    type_text(&mut view, ":x=1");
    let policy = Request::Policy { policy: "fairway:x=1".into(), device: Some("sda".into()) };
    assert_eq!(key(&mut view, KeyCode::Enter), Action::Ask(policy));
    key(&mut view, KeyCode::Char('l'));
    assert_eq!(key(&mut view, KeyCode::Esc), Action::Draw);
    assert_eq!(view.input, None);
    key(&mut view, KeyCode::Char('?'));
    assert!(picture(&view, PLAIN, 80, 24).contains("any key") || view.help);
    key(&mut view, KeyCode::Char('q'));
    assert!(!view.help, "the first key closes the help");
    assert_eq!(key(&mut view, KeyCode::Char('q')), Action::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(super::press(&mut view, interrupt), Action::Quit);
}

#[test]
fn another_daemon_begins_anew() {
    let mut view = view();
    assert_eq!(view.samples.len(), 5);
    view.take(report(1.0, &[disk("log", 5, 10, 1.0)]));
    assert_eq!((view.samples.len(), view.selected.as_deref()), (0, Some("log")));
    view.take(report(2.0, &[]));
    assert_eq!(view.selected, None);
    picture(&view, PLAIN, 80, 24);
}

#[test]
fn no_size_and_no_figures_are_too_much() {
    let mut disks: Vec<Value> = (0..200)
        .map(|n| disk(&format!("{n}{}", "x".repeat(n)), u64::MAX / 100_000 * n as u64, 128, 1e300))
        .collect();
    disks.push(disk("磁盤\u{1b}[2J😀", 1, 0, 0.0));
    let mut crowded = View::default();
    crowded.take(report(1.0, &[]));
    crowded.take(report(1.0 + 1e-9, &disks));
    let mut views = [View::default(), view(), crowded];
    for view in &mut views {
        for (columns, lines) in
            [(1, 1), (2, 100), (79, 24), (80, 23), (80, 24), (81, 25), (300, 100), (500, 3)]
        {
            picture(view, PLAIN, columns, lines);
            for key in ['w', 'l', 'p', '?'] {
                super::press(view, KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
                (0..600).for_each(|_| _ = self::key(view, KeyCode::Char('ä')));
                picture(view, PLAIN, columns, lines);
                self::key(view, KeyCode::Esc);
            }
        }
        // What a disk is called cannot steer the terminal.
        assert!(!picture(view, PLAIN, 300, 100).contains('\u{1b}'));
    }
}
