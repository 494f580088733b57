//! Names of columns: what a header, or `--columns`, says a column holds, and in which unit.

/// Content of a column. A unit that its name does not tell is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// The power of ten that makes nanoseconds of it: 9 for seconds.
    Time(Option<u32>),
    /// Bytes in one of it.
    Start(Option<u64>),
    /// Bytes in one of it.
    Length(Option<u64>),
    /// Words, RWBS letters or SCSI commands.
    Op,
    /// One or true for a write.
    IsWrite,
    /// One or true for a read.
    IsRead,
    /// One or true if somebody waits for the request.
    Sync,
    Volume,
    Process,
    /// The name of a process: the one column that may hold blanks in a table of blanks.
    Command,
    /// Of a request's life, as blkparse has it: Q, D, C.
    Action,
    /// Of no interest.
    Other,
}

impl Role {
    pub(super) fn is_op(self) -> bool {
        matches!(self, Role::Op | Role::IsRead | Role::IsWrite)
    }
}

const SECTOR: u64 = 512;

/// Words that say a time is not the request's arrival.
const DURATIONS: &str = "latency lat response resp rt service duration delay wait queue que think gap \
                         interarrival next end ends complete completed completion finish ttl";
const SIZES: &str = "size len length nbytes count bytes sectors nsectors blocks nr bs";
const STARTS: &str = "offset off lba lbn lsn sector block blkno blockno address addr position pos slba \
                      startlba";
const TIMES: &str =
    "time timestamp ts clock arrival epoch issue issued submit submitted elapsed starts";
const VOLUMES: &str = "volume vol disk device dev lun asu vm host hostname drive file filename volumeid \
                       deviceid diskid disknumber node";
/// Words of units that are not read, in the singular.
const OTHER_UNITS: &str = "block page bit cluster chunk extent stripe pb pib min minute h hr hour day \
                           cycle tsc jiffie p psec";

/// Is the word one of the list?
fn is_in(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

/// Finds the content of the column called `name`: `time_us`, `TIME(s)`, `offset_bytes`, `lenKiB`,
/// `lba`.
pub(super) fn role(name: &str) -> Role {
    let words = words(name);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let has = |list: &str| words.iter().any(|word| is_in(list, word));
    if words.is_empty() || has(DURATIONS) {
        return Role::Other;
    }
    let plain = words.concat();
    match plain.as_str() {
        "op" | "ops" | "rw" | "rwbs" | "type" | "iotype" | "opcode" | "operation" | "optype"
        | "t" | "dir" | "direction" | "ddir" | "cmd" | "kind" | "request" | "requesttype"
        | "reqtype" | "accesstype" | "readwrite" | "command" => return Role::Op,
        "sync" => return Role::Sync,
        "iswrite" | "write" => return Role::IsWrite,
        "isread" | "read" => return Role::IsRead,
        "comm" | "process" | "processname" | "pname" => return Role::Command,
        "action" | "event" => return Role::Action,
        "pid" | "processid" | "tid" | "tgid" => return Role::Process,
        "name" | "version" | "index" | "id" | "id0" | "hash" => return Role::Other,
        _ => {}
    }
    let is_start = has(STARTS) || (has("start") && size_unit(&words).is_some());
    if is_start && !has("size len length count nr num") {
        let fixed = has("lba lbn lsn sector sectors slba startlba");
        return Role::Start(size_unit(&words).or(fixed.then_some(SECTOR)));
    }
    if has(SIZES) {
        return Role::Length(size_unit(&words));
    }
    if has(TIMES) || (words.len() == 2 && matches!(words[0], "t" | "at" | "start" | "begin")) {
        let unit = if plain == "starts" { Some(9) } else { time_unit(&words) };
        return Role::Time(unit);
    }
    if has(VOLUMES) { Role::Volume } else { Role::Other }
}

/// The power of ten that makes nanoseconds of the unit among `words`.
fn time_unit(words: &[&str]) -> Option<u32> {
    words.iter().find_map(|word| match *word {
        "s" | "sec" | "secs" | "second" | "seconds" => Some(9),
        "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => Some(6),
        "us" | "usec" | "usecs" | "micros" | "microsecond" | "microseconds" => Some(3),
        "ns" | "nsec" | "nsecs" | "nanos" | "nanosecond" | "nanoseconds" => Some(0),
        "filetime" | "ticks" | "100ns" => Some(2),
        _ => None,
    })
}

/// Bytes in one of the unit among `words`; there may be a number in front of it, `4k`.
fn size_unit(words: &[&str]) -> Option<u64> {
    words.iter().find_map(|word| {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        let bytes = match unit {
            "b" | "byte" | "bytes" | "nbytes" => 1,
            "sector" | "sectors" | "nsectors" => SECTOR,
            "k" | "kb" | "kib" | "ki" => 1 << 10,
            "m" | "mb" | "mib" | "mi" => 1 << 20,
            "g" | "gb" | "gib" | "gi" => 1 << 30,
            "tb" | "tib" | "ti" => 1 << 40,
            "" if matches!(*word, "512" | "4096") => 1,
            _ => return None,
        };
        match &word[..word.len() - unit.len()] {
            "" => Some(bytes),
            number => number.parse::<u64>().ok()?.checked_mul(bytes).filter(|bytes| *bytes > 0),
        }
    })
}

/// Does the column's name have a unit that is not read? Then no other is guessed.
pub(super) fn has_other_unit(name: &str) -> bool {
    words(name).iter().any(|word| is_in(OTHER_UNITS, word.strip_suffix('s').unwrap_or(word)))
}

/// Does the name tell of operations, though it is none of those that are known?
pub(super) fn may_be_op(name: &str) -> bool {
    const BEGINNINGS: [&str; 6] = ["rw", "read", "writ", "direction", "operation", "access"];
    words(name).iter().any(|word| {
        matches!(word.as_str(), "op" | "io" | "mode" | "dir" | "rd" | "wr" | "iotype" | "type")
            || BEGINNINGS.iter().any(|begins| word.starts_with(begins))
    })
}

/// The words of a name, in small letters: at signs, capitals behind small letters, and small
/// letters behind two capitals (`LATms`, `STARTs`) one ends and another begins.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    let letters: Vec<char> = name.replace(['µ', 'μ'], "u").chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        if !letter.is_alphanumeric() {
            open = false;
            continue;
        }
        let before = at.checked_sub(1).map_or(' ', |at| letters[at]);
        let capital = letter.is_uppercase() && before.is_lowercase();
        let unit = letter.is_lowercase()
            && at >= 2
            && before.is_uppercase()
            && letters[at - 2].is_uppercase()
            && matches!(
                letters[at..].iter().collect::<String>().as_str(),
                "s" | "ms" | "us" | "ns"
            );
        // `KiB` stays one word.
        let kib = before == 'i' && *letter == 'B';
        if !open || (capital && !kib) || unit {
            words.push(String::new());
        }
        open = true;
        words.last_mut().expect("one is open").extend(letter.to_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_column_holds_and_in_which_unit() {
        for (names, role_of) in [
            ("time_s TIME(s) TimeSec time.seconds STARTs t_s start_s", Role::Time(Some(9))),
            ("time_ms ts[ms] arrivalMs", Role::Time(Some(6))),
            ("time_us timestamp(µs) issue_us ts-usec elapsed_us begin_us", Role::Time(Some(3))),
            ("time_ns ts_ns Timestamp_ns", Role::Time(Some(0))),
            ("time_filetime time_100ns", Role::Time(Some(2))),
            ("time Timestamp ts", Role::Time(None)),
            ("offset_bytes offset_b start_bytes", Role::Start(Some(1))),
            ("offset Offset address", Role::Start(None)),
            ("lba lbn sector SECTOR start_sector offset_sectors LBA", Role::Start(Some(512))),
            ("offset_kib offsetKiB", Role::Start(Some(1024))),
            ("block", Role::Start(None)),
            ("block_4k", Role::Start(Some(4096))),
            ("bytes size_bytes BYTES nbytes len_b", Role::Length(Some(1))),
            ("size len length Size", Role::Length(None)),
            ("sectors nr_sectors nsectors sector_count size_sectors", Role::Length(Some(512))),
            ("len_kib size_kb sizeKiB", Role::Length(Some(1024))),
            ("op rw Type IOType io_type opcode T rwbs", Role::Op),
            ("is_write write", Role::IsWrite),
            ("is_read", Role::IsRead),
            ("disk volume DISK DiskNumber Hostname device_id VolumeID lun", Role::Volume),
            ("pid PID process_id", Role::Process),
            ("COMM", Role::Command),
            (
                "ResponseTime LAT(ms) QUE(ms) latency_us ENDs complete_time_us service_time \
                 version md5 P next_access_vtime",
                Role::Other,
            ),
        ] {
            for name in names.split(' ') {
                assert_eq!(role(name), role_of, "{name}");
            }
        }
        assert_eq!(role("Time (microseconds)"), Role::Time(Some(3)));
        assert_eq!(role("Transfer length [bytes]"), Role::Length(Some(1)));
        assert_eq!(role("Start LBA"), Role::Start(Some(512)));
        assert_eq!(role("R/W"), Role::Op);
        assert_eq!(role("Unnamed: 0"), Role::Other);
        assert_eq!(role(""), Role::Other);
    }
}
