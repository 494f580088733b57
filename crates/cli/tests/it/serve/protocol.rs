//! Answers of the control socket, line by line and by HTTP, and the metrics by HTTP.

use crate::common::{Folder, json};
use crate::daemon::{PATIENCE, Served};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// Lines to the control socket, and the lines that come back.
fn talk(path: &str, text: &[u8]) -> Vec<String> {
    let mut stream = UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let own = stream.try_clone().expect("a socket");
    let text = text.to_vec();
    // It may end the connection before it has read all.
    let feeder = std::thread::spawn(move || {
        let _ = stream.write_all(&text);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    });
    let lines = BufReader::new(own).lines().map_while(Result::ok).collect();
    feeder.join().expect("no panic");
    lines
}

/// The answer to one line of JSON.
pub fn ask(served: &Served, line: &str) -> serde_json::Value {
    json(&talk(&served.control, format!("{line}\n").as_bytes())[0])
}

#[test]
fn the_protocol_answers_line_by_line_whoever_else_is_there() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    // One who says nothing, one who stops in the middle, one who never reads.
    let _silent = UnixStream::connect(&served.control).expect("it listens");
    let mut half = UnixStream::connect(&served.control).expect("it listens");
    half.write_all(b"{\"command\":").expect("a socket");
    let deaf = UnixStream::connect(&served.control).expect("it listens");
    deaf.set_nonblocking(true).expect("a socket");
    while (&deaf).write(&b"{\"command\":\"status\"}\n".repeat(100)).is_ok() {}
    let answers = talk(
        &served.control,
        b"{\"command\":\"status\"}\n\n{\"command\":\"reboot\"}\n\
          {\"command\":\"weight\",\"disk\":\"web\",\"weight\":2}\n{\"command\":\"status\",\"x\":1}",
    );
    assert_eq!(answers.len(), 4, "{answers:?}");
    assert_eq!(json(&answers[0])["result"]["devices"][0]["disks"][0]["name"], "web");
    for (n, part) in [(1, "no command 'reboot'; there are status"), (3, "unknown field `x`")] {
        let error = json(&answers[n])["error"].to_string();
        assert!(error.contains(part), "{n}: {error}");
    }
    assert_eq!(json(&answers[2])["result"], serde_json::json!({}));
    let long = talk(&served.control, &[&b"{"[..], &vec![b' '; (1 << 20) + 10]].concat());
    assert!(long.len() == 1 && long[0].contains("more than 1048576 bytes"), "{long:?}");
    assert_eq!(served.end(), Some(0));
}

#[test]
fn what_is_no_json_ends_a_control_connection() {
    let folder = Folder::new();
    let served = Served::start(&folder, &[]);
    let weight = "{\"command\":\"weight\",\"disk\":\"web\",\"weight\":77}\n";
    // What a browser sends for a page of another host: its method and body are the page's choice.
    let by_page = format!("x /x HTTP/1.1\r\nHost: evil.example\r\n\r\n{weight}");
    for (text, part) in [
        (by_page.as_bytes(), "an object of JSON"),
        (b"\n{\"command\":\"status\"}\n", "an object of JSON"),
        (b"[1]\n", "an object of JSON"),
        (format!("{{nonsense\n{weight}").as_bytes(), "not JSON"),
        (b"{\xff\xfe\n{\"command\":\"status\"}\n", "not JSON"),
    ] {
        let answers = talk(&served.control, text);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let error = json(&answers[0])["error"].to_string();
        assert!(error.contains(part) && error.contains("the connection ends"), "{error}");
    }
    assert_eq!(served.status()["devices"][0]["disks"][0]["weight"], 1);
    assert_eq!(served.end(), Some(0));
}

/// The answer to a GET by TCP, at the address of metrics or of the web page.
fn get_by_tcp(served: &Served, kind: &str, path: &str, host: &str) -> String {
    let status = served.status();
    let sockets = status["sockets"].as_array().expect("a list");
    let address = sockets.iter().find(|s| s[0] == kind).expect("it is served");
    let mut stream = TcpStream::connect(address[1].as_str().expect("text")).expect("listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("a socket");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

#[test]
fn metrics_by_http_and_by_ctl() {
    let folder = Folder::new();
    let served = Served::start(&folder, &["--metrics", "127.0.0.1:0", "--policy", "cfq"]);
    let get = |path: &str, host: &str| get_by_tcp(&served, "metrics", path, host);
    let answer = get("/metrics", "127.0.0.1:9187");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("disk=\"web\",policy=\"cfq\",op=\"read\"} 0\n"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    assert!(get("/secrets", "localhost").starts_with("HTTP/1.1 404"));
    // A page of another host whose name leads here.
    let foreign = get("/metrics", "evil.example:9187");
    assert!(foreign.starts_with("HTTP/1.1 403"), "{foreign}");
    let by_unix = talk(&served.control, b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(by_unix.first().map(String::as_str), Some("HTTP/1.1 403 Forbidden"));
    let by_unix = talk(&served.control, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(by_unix.first().map(String::as_str), Some("HTTP/1.1 200 OK"));
    assert_eq!(by_unix.last().map(String::as_str), Some("# EOF"));
    let by_ctl = served.ctl(&["metrics"]).ok();
    assert!(by_ctl.contains("seekway_capacity_bytes{") && by_ctl.ends_with("# EOF\n"));
    assert_eq!(served.end(), Some(0));
}

#[test]
fn allowed_names_reach_metrics_and_the_page() {
    let folder = Folder::new();
    let both = ["--metrics", "127.0.0.1:0", "--web", "127.0.0.1:0"];
    let names = ["--allow-host", "kvm1.example.org", "--allow-host", "kvm1"];
    let served = Served::start(&folder, &[&both[..], &names].concat());
    for (kind, path) in [("metrics", "/metrics"), ("web", "/"), ("web", "/app.js")] {
        for host in ["kvm1.example.org:9187", "KVM1", "127.0.0.1:9187", "localhost"] {
            let answer = get_by_tcp(&served, kind, path, host);
            assert!(answer.starts_with("HTTP/1.1 200"), "{path} by {host}: {answer}");
        }
        let refused = get_by_tcp(&served, kind, path, "kvm2.example.org:9187");
        for part in ["HTTP/1.1 403", "DNS rebinding", "--allow-host kvm2.example.org"] {
            assert!(refused.contains(part), "{path}: no {part:?} in {refused}");
        }
    }
    let by_unix = talk(&served.control, b"GET /metrics HTTP/1.1\r\nHost: kvm1\r\n\r\n");
    assert_eq!(by_unix.first().map(String::as_str), Some("HTTP/1.1 200 OK"));
    assert_eq!(served.end(), Some(0));
}
