//! Figures of the daemon's reports. One table has each of them once: its key in JSON with its
//! help and type, how it is read, and its name for Prometheus if it has one there.

use hdrhistogram::Histogram;
use seekway_policy::schedulers;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A type of the report: its keys, its values and its metrics, in one table. Attributes of serde
/// stand in brackets; behind `=>` are one of the functions below and the metric's name.
macro_rules! report {
    ($(#[$of:meta])* $name:ident($($from:ident: $type_from:ty),+) {
        $(
            $(#[doc = $help:literal])*
            $([$($serde:tt)+])? $key:ident: $type:ty = $value:expr $(=> $kind:ident $metric:literal)?;
        )+
    }) => {
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        $(#[$of])*
        pub struct $name {
            $($(#[doc = $help])* $(#[serde($($serde)+)])? pub $key: $type,)+
        }

        impl $name {
            pub(super) fn of($($from: $type_from),+) -> $name {
                $name { $($key: $value),+ }
            }
        }

        impl Figures for $name {
            const METRICS: &'static [Option<Metric<$name>>] =
                &[$(metric!($name $key [$($help)*] $($kind $metric)?)),+];
        }
    };
}

/// The metric that a key is, if it has a name for Prometheus.
macro_rules! metric {
    ($of:ident $key:ident $help:tt) => {
        None
    };
    ($of:ident $key:ident [$($help:literal)*] $kind:ident $name:literal) => {
        metric($name, concat!($($help),*), |of: &$of| $kind(&of.$key))
    };
}

/// A type of the report with figures for Prometheus.
pub(super) trait Figures: Sized + 'static {
    /// One entry for each key; `None` for those that Prometheus does not get.
    const METRICS: &'static [Option<Metric<Self>>];
}

/// A metric that a `T` has.
pub(super) struct Metric<T> {
    /// Without a suffix such as `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub samples: fn(&T) -> Samples,
}

pub(super) const fn metric<T>(
    name: &'static str,
    help: &'static str,
    samples: fn(&T) -> Samples,
) -> Option<Metric<T>> {
    Some(Metric { name, help, samples })
}

pub(super) type Labels = Vec<(&'static str, String)>;
/// Values of a metric, each with its own labels.
pub(super) type Samples = Vec<(Labels, Value)>;

pub(super) enum Value {
    Count(Number),
    Gauge(Number),
    Info,
    /// Times in nanoseconds.
    Times(Arc<Histogram<u64>>),
}

/// A figure's value.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Whole(u64),
    Real(f64),
}

macro_rules! number_of {
    ($($type:ty => $kind:ident;)+) => {
        $(impl From<$type> for Number {
            fn from(value: $type) -> Number {
                Number::$kind(value.into())
            }
        })+
    };
}
number_of! { u32 => Whole; u64 => Whole; f64 => Real; }

// How a key is a metric.

fn one(value: Value) -> Samples {
    vec![(Labels::new(), value)]
}

pub(super) fn count(count: &u64) -> Samples {
    one(Value::Count((*count).into()))
}

pub(super) fn gauge<N: Copy + Into<Number>>(value: &N) -> Samples {
    one(Value::Gauge((*value).into()))
}

pub(super) fn gauge_if<N: Copy + Into<Number>>(value: &Option<N>) -> Samples {
    value.as_ref().map(gauge).unwrap_or_default()
}

pub(super) fn seconds(ms: &f64) -> Samples {
    one(seconds_of(*ms))
}

/// A time of whole nanoseconds, as seconds.
fn seconds_of(ms: f64) -> Value {
    Value::Count(Number::Real((ms * 1e6).round() / 1e9))
}

/// Times withheld by cause, also of causes that have not occurred: a series that begins late has
/// no rate.
pub(super) fn causes(held_ms: &BTreeMap<String, f64>) -> Samples {
    let mut all: BTreeMap<String, f64> =
        schedulers::hold_causes().into_iter().map(|cause| (cause.to_string(), 0.0)).collect();
    all.extend(held_ms.clone());
    let of = |(cause, ms)| (vec![("cause", cause)], seconds_of(ms));
    all.into_iter().map(of).collect()
}

/// Figures that only a policy or a prefetcher knows.
pub(super) fn named(metrics: &BTreeMap<String, f64>) -> Samples {
    let of = |(name, value): (&String, &f64)| {
        (vec![("metric", name.clone())], Value::Gauge((*value).into()))
    };
    metrics.iter().map(of).collect()
}

pub(super) fn times(times: &Option<Arc<Histogram<u64>>>) -> Samples {
    times.iter().flat_map(|times| one(Value::Times(times.clone()))).collect()
}
