//! Pregather's parameters, and its readings of the paper. A reading is ours or the
//! paper's letter (`literal=true`), and `except` takes one of them the other way.

use crate::vnavigator::{ModelParams, ZONES_MAX};
use seekway_core::params::{DURATION_MAX, Kind, ParamError, ParamSpec, Params, param};
use seekway_core::units::{Nanos, Sectors};

/// Values of `except`. The last four stay as they are with `literal=true`: the paper is silent.
const READINGS: &[&str] = &[
    "none",
    // Windows count the VM's serving time; the letter: the wall's.
    "window_clock",
    // Intervals longer than the window are dropped; the letter: they count.
    "interval_cap",
    // The sum of intervals is divided by their number; the letter: by that of requests.
    "interval_mean",
    // No interval below 1 ms is predicted; the letter: any is.
    "interval_min",
    // AvgT is the think time; the letter: the time between arrivals.
    "think",
    // The coarse timer adds four mean deviations of the think time to AvgT, up to the seek that it
    // saves; the letter: it runs for AvgT.
    "patience",
    // SeekTime has half a rotation in it; the letter: it has none.
    "half_rotation",
    // P(LR) is the end of the last request; the letter: its start.
    "position",
    // A suitable arrival in a fine hold sends itself; the letter: PR.
    "arrival",
    // An arrival's seek is measured from LR; the letter: from PR.
    "arrival_seek",
    // A VM's region is its extents; the letter: the interval around them.
    "region",
    // The coarse timer runs with no neighbour pending too; the letter: it does not.
    "alone",
    // Deadlines are looked at for each request; else: once a turn.
    "expire",
    // A continuation joins its command before deadlines are looked at; else: it does not.
    "merge",
    // A turn goes on where the VM's own last request ended; else: at the head.
    "sweep",
    // For a hot zone without an interval yet the least is waited; else: nothing is.
    "unmeasured",
];

#[rustfmt::skip]
pub(super) static PARAMS: &[ParamSpec] = &[
    param("zone", Kind::Size, "1000KiB", "zone size B of the model, 2000 sectors"),
    param("lambda", Kind::Number(1.1, 1000.0), "2", "decay of a request's weight per window"),
    param("window", Kind::Duration, "20ms", "prediction window"),
    param("slice", Kind::Duration, "200ms", "a VM's turn, times its weight"),
    param("sync_expire", Kind::Duration, "125ms", "deadline of synchronous requests"),
    param("async_expire", Kind::Duration, "250ms", "deadline of the others"),
    param("zones", Kind::Count(64, ZONES_MAX as u64), "4096", "most zones a VM's model remembers"),
    param("literal", Kind::Flag, "false", "the paper's letter, without our corrections"),
    param("except", Kind::Choice(READINGS), "none",
        "one reading that is taken the other way than 'literal' says, or than is usual"),
];

/// The parameters as the scheduler uses them. A flag named after a correction
/// is true for our form.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Config {
    pub model: ModelParams,
    pub slice: Nanos,
    pub sync_expire: Nanos,
    pub async_expire: Nanos,
    pub expire_always: bool,
    pub merge: bool,
    pub sweep_own: bool,
    pub skip_unmeasured: bool,
    pub serving_clock: bool,
    pub think: bool,
    pub patience: bool,
    pub half_rotation: bool,
    pub position_end: bool,
    pub arrival_new: bool,
    pub arrival_from_lr: bool,
    pub region_extents: bool,
    pub alone: bool,
}

impl Config {
    pub fn new(p: &Params) -> Result<Config, ParamError> {
        if p.size("zone") == Sectors::ZERO {
            return Err(ParamError::new("zone=0: a zone has at least one sector"));
        }
        let window = p.duration_within("window", Nanos::from_micros(1), DURATION_MAX)?;
        let slice = p.duration_within("slice", Nanos::from_millis(1), DURATION_MAX)?;
        let (literal, except) = (p.flag("literal"), p.choice("except"));
        let usual = |reading: &str| {
            debug_assert!(READINGS.contains(&reading), "{reading} is no reading");
            reading != except
        };
        let ours = |reading: &str| usual(reading) != literal;
        let floor = Nanos::from_millis(1);
        Ok(Config {
            model: ModelParams {
                zone: p.size("zone"),
                lambda: p.number("lambda"),
                window,
                interval_cap: ours("interval_cap"),
                interval_mean: ours("interval_mean"),
                interval_min: if ours("interval_min") { floor } else { Nanos::ZERO },
                zones: p.count("zones") as usize,
            },
            slice,
            sync_expire: p.duration("sync_expire"),
            async_expire: p.duration("async_expire"),
            expire_always: usual("expire"),
            merge: usual("merge"),
            sweep_own: usual("sweep"),
            skip_unmeasured: !usual("unmeasured"),
            serving_clock: ours("window_clock"),
            think: ours("think"),
            patience: ours("patience"),
            half_rotation: ours("half_rotation"),
            position_end: ours("position"),
            arrival_new: ours("arrival"),
            arrival_from_lr: ours("arrival_seek"),
            region_extents: ours("region"),
            alone: ours("alone"),
        })
    }
}
