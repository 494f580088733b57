//! `seekway top` in a virtual terminal, on a real daemon under a real load.

use crate::common::{Folder, command, seekway};
use crate::daemon::{PATIENCE, Served};
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::FromRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ROWS: NonZero<u16> = NonZero::new(24).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(80).unwrap();

/// A program on a terminal of 80 x 24.
struct OnTerminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// The other side, which the program had.
    side: File,
}

impl OnTerminal {
    fn start(mut command: Command) -> OnTerminal {
        let (mut main, mut side) = (-1, -1);
        let size =
            libc::winsize { ws_row: ROWS.get(), ws_col: COLUMNS.get(), ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: two places for descriptors, and a size that lives through the call.
        let opened = unsafe {
            libc::openpty(&mut main, &mut side, std::ptr::null_mut(), std::ptr::null(), &size)
        };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: they are ours, and new.
        let (main, side) = unsafe { (File::from_raw_fd(main), File::from_raw_fd(side)) };
        let end = || Stdio::from(side.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(Stdio::piped());
        command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
        let child = command.spawn().expect("the program starts");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let (mut read, drawn) = (main.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = read.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..count]);
            }
        });
        OnTerminal { child, keys: main, screen, side }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Wait until the screen shows it.
    fn shows(&self, what: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if what(&text) {
                return text;
            }
            assert!(Instant::now() < until, "the screen shows:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Is the terminal as programs find it: does it echo, and read lines?
    fn is_cooked(&self) -> bool {
        use std::os::fd::AsRawFd;
        // SAFETY: a struct of plain numbers, which the call fills.
        let modes = unsafe {
            let mut modes = std::mem::zeroed::<libc::termios>();
            assert_eq!(libc::tcgetattr(self.side.as_raw_fd(), &mut modes), 0);
            modes
        };
        modes.c_lflag & (libc::ECHO | libc::ICANON) == libc::ECHO | libc::ICANON
    }

    fn ends(mut self) -> Option<i32> {
        let status = self.child.wait().expect("ours");
        assert!(self.is_cooked(), "the terminal is left raw");
        let until = Instant::now() + PATIENCE;
        while self.screen.lock().unwrap().screen().alternate_screen() {
            assert!(Instant::now() < until, "the other screen stays");
            std::thread::sleep(Duration::from_millis(20));
        }
        status.code()
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The figure of a disk in a column of the screen; columns are counted from the name.
fn figure(text: &str, disk: &str, column: usize) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(&format!("{disk} ")))?;
    line.split_whitespace().nth(column)?.parse().ok()
}

#[test]
fn it_shows_a_load_and_changes_settings() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--policy", "cfq", "--cache", "off"]);
    let socket = folder.arg("run/db.nbd");
    // A real client, until the test ends it.
    let uri = format!("nbd+unix:///db?socket={socket}");
    let mut load = Command::new("qemu-img");
    load.args(["bench", "-f", "raw", "-c", "100000000", "-d", "4", "-s", "4096", &uri]);
    let Ok(mut load) = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return seekway_testing::skip("qemu-img");
    };
    let mut top =
        OnTerminal::start(command(&["top", "--socket", &served.control, "--interval", "200ms"]));
    let text = top.shows(|text| figure(text, "db", 2).is_some_and(|iops| iops > 0.0));
    assert!(text.contains("cfq") && text.contains("under way"), "{text}");
    assert!(figure(&text, "web", 2).is_some_and(|iops| iops == 0.0), "{text}");
    // Sort by IOPS: the busy one comes first; the selection stays where it is.
    top.press("s");
    top.shows(|text| text.contains("sorted by IOPS"));
    top.press("w");
    top.shows(|text| text.contains("weight of db: 4"));
    top.press("\x7f9\r");
    top.shows(|text| figure(text, "db", 1) == Some(9.0));
    let status = served.status();
    let disks = status["devices"][0]["disks"].as_array().unwrap();
    assert!(disks.iter().any(|d| d["name"] == "db" && d["weight"] == 9), "{status}");
    top.press("p");
    top.shows(|text| text.contains("policy of"));
    top.press("x\r");
    top.shows(|text| text.contains("no policy 'cfqx'"));
    load.kill().unwrap();
    load.wait().unwrap();
    top.shows(|text| figure(text, "db", 2) == Some(0.0));
    // The daemon goes: top says so, and stays.
    assert_eq!(served.end(), Some(0));
    top.shows(|text| text.contains("no answer for"));
    top.press("q");
    assert_eq!(top.ends(), Some(0));
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    let top = OnTerminal::start(command(&["top", "--socket", &served.control]));
    top.shows(|text| text.contains("web"));
    seekway_testing::signal(&top.child, libc::SIGTERM);
    assert_eq!(top.ends(), Some(0));
}

#[test]
fn without_a_terminal_it_prints_once() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    let told = seekway(&["top", "--socket", &served.control, "--interval", "100ms"]).ok();
    assert!(told.contains("db") && told.contains("p99") && !told.contains('\u{1b}'), "{told}");
    assert!(!told.contains("q quit"), "{told}");
    for (args, part) in [
        (&["--socket", "/absent/control.sock"][..], "is `seekway serve` running"),
        (&["--socket", &served.control, "--interval", "5"], "--interval 5: expected"),
        (&["--socket", &served.control, "--interval", "2h"], "--interval 2h: expected"),
    ] {
        seekway(&[&["top"], args].concat()).refused(&[part]);
    }
}
