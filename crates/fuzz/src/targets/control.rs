//! Lines of the control protocol. A request that is understood means the same
//! after it has been written and read again; an error is short and one line.

use crate::Target;
use seekway_hostd::control;

pub const TARGET: Target = Target {
    name: "control",
    run,
    heap_bytes_max: 1 << 20,
    test_runs: 180_000,
    words: &[
        b"{\"command\":\"",
        b"\"status\"",
        b"\"policy\"",
        b"\"attach\"",
        b"\"limit\"",
        b"\"limits\":",
        b"\"disk\":",
        b"\"group\":",
        b"\"size\":",
        b"\"size_bytes\":",
        b"\"weight\":",
        b"\"iops=5\"",
        b"\"2GiB\"",
        b"null",
        b"true",
        b"1e999",
        b"\\u0000",
        b",",
        b":",
        b"[",
        b"{",
    ],
};

fn run(line: &[u8]) {
    match control::parse(line) {
        Ok(request) => {
            let text = serde_json::to_vec(&request).expect("a request can be written");
            let again = control::parse(&text);
            assert_eq!(again.as_ref(), Ok(&request), "{}", String::from_utf8_lossy(&text));
        }
        // A message may quote the line, and adds little to it.
        Err(text) => assert!(text.len() <= 6 * line.len() + 1024, "{text}"),
    }
}
