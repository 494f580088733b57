//! fio's job files, as far as the generator `fio` can follow them: sections,
//! `[global]`, and the keys that decide which requests are made. Keys that only
//! say how fio itself works (engine, reports, directories) are passed over;
//! any other key is an error that names it.

use crate::generators::{AppPlan, REGISTRY};
use seekway_core::params::{ParamError, Params};

/// Keys without a bearing on the requests.
const PASSED_OVER: &[&str] = &[
    "ioengine",
    "filename",
    "directory",
    "group_reporting",
    "name",
    "description",
    "thread",
    "refill_buffers",
    "randrepeat",
    "invalidate",
    "end_fsync",
    "gtod_reduce",
    "log_avg_msec",
    "write_bw_log",
    "write_iops_log",
    "write_lat_log",
    "create_serialize",
    "randseed",
];
/// Longest job file that is read, in bytes.
pub const JOB_FILE_BYTES_MAX: usize = 1 << 20;

/// The jobs of a job file, each as a load of a VM. The error says in which line.
pub fn parse_fio_job(text: &str) -> Result<Vec<AppPlan>, ParamError> {
    if text.len() > JOB_FILE_BYTES_MAX {
        return Err(ParamError::new(format!("job file of more than {JOB_FILE_BYTES_MAX} bytes")));
    }
    let mut global: Vec<(String, String)> = Vec::new();
    let mut jobs: Vec<Vec<(String, String)>> = Vec::new();
    let mut in_global = true;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = |what: String| ParamError::new(format!("line {}: {what}", number + 1));
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            in_global = section == "global";
            if !in_global {
                jobs.push(global.clone());
            }
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, "1"));
        let pair = translate(key.trim(), value.trim()).map_err(wrong)?;
        let (Some((key, value)), section) = (pair, jobs.last_mut()) else { continue };
        let section = match section {
            Some(job) if !in_global => job,
            _ => &mut global,
        };
        section.retain(|(k, _)| *k != key);
        section.push((key, value));
    }
    let generator = REGISTRY.find("fio")?;
    let finish = |given: &Vec<(String, String)>| {
        let given: Vec<_> = given.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let params = Params::with(generator.params, "fio", &given)?;
        Ok(AppPlan { generator, params, disk: 0 })
    };
    jobs.iter().map(finish).collect()
}

/// fio's spelling into ours; `None` for what is passed over.
fn translate(key: &str, value: &str) -> Result<Option<(String, String)>, String> {
    let bare = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    let unit = |unit: &str| if bare { format!("{value}{unit}") } else { value.to_string() };
    let (key, value) = match key {
        k if PASSED_OVER.contains(&k) => return Ok(None),
        "readwrite" => ("rw", value.to_string()),
        // Bytes that need not be whole sectors.
        "blocksize" => ("bs", unit("b")),
        "bs" | "size" | "offset" | "io_size" => (key, unit("b")),
        "runtime" | "timeout" => ("runtime", unit("s")),
        "thinktime" => (key, unit("us")),
        "random_distribution" => match value.split_once(':') {
            Some(("zipf", theta)) => ("zipf", theta.to_string()),
            None if value == "random" => return Ok(None),
            _ => return Err(format!("random_distribution={value}: random or zipf:theta")),
        },
        "buffered" => ("direct", if value == "0" { "1" } else { "0" }.to_string()),
        "rw" | "iodepth" | "numjobs" | "time_based" | "direct" | "sync" | "fsync" | "rate_iops"
        | "rwmixread" | "norandommap" => (key, value.to_string()),
        "bssplit" | "bsrange" | "blocksize_range" => {
            return Err(format!("{key} is not supported: give one block size, as bs=4k"));
        }
        _ => return Err(format!("{key} is not understood: take it out if it does not matter")),
    };
    Ok(Some((key.to_string(), value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::units::{Nanos, Sectors};

    #[test]
    fn a_job_file_becomes_loads() {
        let text = "; OLTP\n[global]\nioengine=libaio\ndirect=1\nsize=64m\nruntime=30\ntime_based\n\
                    [a]\nrw=randread\nbs=4096\niodepth=16\n\
                    [b]\nreadwrite=write\nsize=8m\nrandom_distribution=zipf:1.2\n";
        let jobs = parse_fio_job(text).unwrap();
        assert_eq!(jobs.len(), 2);
        let (a, b) = (&jobs[0].params, &jobs[1].params);
        assert_eq!(
            (a.choice("rw"), a.count("iodepth"), a.size("bs")),
            ("randread", 16, Sectors::new(8))
        );
        assert_eq!((a.duration("runtime"), a.flag("direct")), (Nanos::from_secs(30), true));
        assert_eq!(
            (b.choice("rw"), b.size("size"), b.number("zipf")),
            ("write", Sectors::new(16384), 1.2)
        );
        for (text, part) in [
            ("[a]\nrw=trim\n", "rw=trim: expected one of"),
            ("[a]\nbssplit=4k/50\n", "line 2: bssplit is not supported: give one block size"),
        ] {
            let error = parse_fio_job(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
