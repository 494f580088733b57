use super::Entry;
use super::beside::Beside;
use super::following::{Key, StreamFollower};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::prefetcher::Prefetcher;
use seekway_core::units::{Nanos, Sectors};

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("interval", Kind::DurationOr("continuous"), "500ms",
        "T, how often the pace is set; continuous: whenever a read advances a stream"),
    param("threshold", Kind::NumberOr(0.0, 1.0, "auto"), "0.60",
        "linear share above which a stream is prefetched for; auto: by what was of use"),
    param("literal", Kind::Flag, "false",
        "the paper's letter: without our corrections; by interval and a fixed threshold only"),
    param("host", Kind::Choice(&["none", "linux"]), "none",
        "what reads ahead beside it: linux, as a Linux host does below the paper's program"),
];

/// Furthest ahead of a reader, but for the paper's letter.
const LEAD: Sectors = Sectors::from_bytes(4 << 20);

pub(super) const ENTRY: Entry = Entry {
    name: "vio",
    summary: "streams of each in-guest process, as fast as it reads and the device can spare",
    source: "VIO-prefetching (IEEE TSC 2015), section 3",
    params: PARAMS,
    build,
};

fn build(params: &Params) -> Result<Box<dyn Prefetcher>, ParamError> {
    let interval = params.duration_or_word("interval");
    if let Some(interval) = interval.filter(|&interval| interval < Nanos::from_millis(1)) {
        return Err(ParamError::new(format!("interval={interval}: at least 1ms, or continuous")));
    }
    let (threshold, literal) = (params.number_or_word("threshold"), params.flag("literal"));
    if literal && (interval.is_none() || threshold.is_none()) {
        return Err(ParamError::new(
            "literal=true: the paper knows neither interval=continuous nor threshold=auto; \
             give a time and a number, or leave literal=true out",
        ));
    }
    let lead = (!literal).then_some(LEAD);
    let vio = Box::new(StreamFollower::new(interval, threshold, lead, Key::Process));
    Ok(match params.choice("host") {
        "linux" => Box::new(Beside { host: super::build("linux")?, policy: vio }),
        _ => vio,
    })
}
