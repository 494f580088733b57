//! Journals for `seekway replay`: no line panics or takes much memory, a replay
//! is the same each time, and readers that do not replay understand the lines
//! that a replay takes.

use crate::Target;
use seekway_stack::journal::{Build, Entry, Replay, ReplayError, ReplaySummary, entry};

pub const TARGET: Target = Target {
    name: "journal",
    run,
    heap_bytes_max: 64 << 20,
    test_runs: 30_000,
    words: &[
        b" submit 0 R sync 0+8 tag=0 token=1\n",
        b" attach 1 weight=1 size=99 cached=no map=99/99:0@0\n",
        b" issue 0 R 0+8\n",
        b" io 0 ok\n",
        b" done 1 ok\n",
        b" wait - -\n",
        b" switch cfq\n",
        b" leave 0\n",
        b" detach 0\n",
        b" limit 0 iops=5\n",
        b" weight 0 2\n",
        b" resize 0 8 ",
        b" cache 0\n",
        b" trim 0\n",
        b" group a iops=1\n",
        b" bandwidth 1\n",
        b" prefetcher vio\n",
        b" remap 0 ",
        b"18446744073709551615",
    ],
};

fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    assert_eq!(replay(&text), replay(&text), "a replay differs from the same replay");
}

fn replay(text: &str) -> (ReplaySummary, Option<ReplayError>) {
    let mut replay = Replay::new(Build::default());
    for (number, line) in text.lines().enumerate() {
        let read = entry(line);
        if let Err(error) = replay.feed(line) {
            return (replay.replayed(), Some(error));
        }
        match line.split(' ').nth(1) {
            Some("submit") if number > 0 => assert!(matches!(read, Some(Entry::Submit(_)))),
            Some("issue") if number > 0 => assert!(matches!(read, Some(Entry::Issue(..)))),
            _ => {}
        }
    }
    (replay.replayed(), None)
}
