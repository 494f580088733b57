//! Pregather's parameters. A correction of the paper's letter is a choice of
//! `auto`, our form or the paper's; `auto` is ours, or the paper's when
//! `literal=true`.

use crate::vnavigator::{ModelParams, ZONES_MAX};
use seekway_core::params::{DURATION_MAX, Kind, ParamError, ParamSpec, Params, param};
use seekway_core::units::{Nanos, Sectors};

const FLAGS: Kind = Kind::Choice(&["auto", "true", "false"]);

#[rustfmt::skip]
pub(super) static PARAMS: &[ParamSpec] = &[
    param("zone", Kind::Size, "1000KiB", "zone size B of the model, 2000 sectors"),
    param("lambda", Kind::Number(1.1, 1000.0), "2", "decay of a request's weight per window"),
    param("window", Kind::Duration, "20ms", "prediction window"),
    param("slice", Kind::Duration, "200ms", "a VM's turn, times its weight"),
    param("sync_expire", Kind::Duration, "125ms", "deadline of synchronous requests"),
    param("async_expire", Kind::Duration, "250ms", "deadline of the others"),
    param("expire", Kind::Choice(&["always", "slice"]), "always",
        "look at deadlines, or once a turn"),
    param("zones", Kind::Count(64, ZONES_MAX as u64), "4096", "most zones a VM's model remembers"),
    param("merge", Kind::Flag, "true",
        "a continuation joins its command before deadlines are looked at"),
    param("sweep", Kind::Choice(&["own", "head"]), "own",
        "a turn goes on where the VM's own last request ended, or at the head"),
    param("unmeasured", Kind::Choice(&["wait", "skip"]), "wait",
        "a hot zone without an interval yet: wait the least, or not at all"),
    param("literal", Kind::Flag, "false", "the paper's letter: turns every 'auto' below"),
    param("window_clock", Kind::Choice(&["auto", "serving", "wall"]), "auto",
        "windows count the VM's serving time, or the wall's (literal)"),
    param("interval_cap", FLAGS, "auto", "drop intervals longer than the window (literal: false)"),
    param("interval_mean", FLAGS, "auto",
        "divide by the number of intervals (literal: false, of requests)"),
    param("interval_min", FLAGS, "auto", "predict no interval below 1 ms (literal: false)"),
    param("think", Kind::Choice(&["auto", "think", "interarrival"]), "auto",
        "AvgT is the think time, or the time between arrivals (literal)"),
    param("patience", FLAGS, "auto",
        "the coarse timer adds four mean deviations of the think time to AvgT, up to the seek it saves (ours; literal: false)"),
    param("half_rotation", FLAGS, "auto", "SeekTime has half a rotation in it (literal: false)"),
    param("position", Kind::Choice(&["auto", "end", "start"]), "auto",
        "P(LR) is the end of the last request, or its start (literal)"),
    param("arrival", Kind::Choice(&["auto", "new", "pr"]), "auto",
        "a suitable arrival in a fine hold sends itself, or PR (literal)"),
    param("arrival_seek", Kind::Choice(&["auto", "lr", "pr"]), "auto",
        "an arrival's seek is measured from LR, or from PR (literal)"),
    param("region", Kind::Choice(&["auto", "extents", "interval"]), "auto",
        "a VM's region is its extents, or the interval around them (literal)"),
    param("alone", FLAGS, "auto",
        "the coarse timer runs with no neighbour pending too (literal: false)"),
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
        let literal = p.flag("literal");
        let ours = |key: &str, word: &str| match p.choice(key) {
            "auto" => !literal,
            given => given == word,
        };
        let floor = Nanos::from_millis(1);
        Ok(Config {
            model: ModelParams {
                zone: p.size("zone"),
                lambda: p.number("lambda"),
                window,
                interval_cap: ours("interval_cap", "true"),
                interval_mean: ours("interval_mean", "true"),
                interval_min: if ours("interval_min", "true") { floor } else { Nanos::ZERO },
                zones: p.count("zones") as usize,
            },
            slice,
            sync_expire: p.duration("sync_expire"),
            async_expire: p.duration("async_expire"),
            expire_always: p.choice("expire") == "always",
            merge: p.flag("merge"),
            sweep_own: p.choice("sweep") == "own",
            skip_unmeasured: p.choice("unmeasured") == "skip",
            serving_clock: ours("window_clock", "serving"),
            think: ours("think", "think"),
            patience: ours("patience", "true"),
            half_rotation: ours("half_rotation", "true"),
            position_end: ours("position", "end"),
            arrival_new: ours("arrival", "new"),
            arrival_from_lr: ours("arrival_seek", "lr"),
            region_extents: ours("region", "extents"),
            alone: ours("alone", "true"),
        })
    }
}
