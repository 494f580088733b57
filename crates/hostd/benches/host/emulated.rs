//! Does an emulated disk take the time that its model says, seen by a client?

use crate::Options;
use crate::fio;
use crate::report::{Row, Target};
use crate::server::Server;
use seekway_client::{Load, Result, Span};
use serde_json::Value;
use std::time::Duration;

/// A 7200 rpm disk whose k stays at 1: whoever is late shows it.
const PROFILE: &str = "seagate-1tb-7200:k=1";
/// The image, sparse: seeks over nine tenths of the disk.
const IMAGE_BYTES: u64 = 900 << 30;
/// The ten seconds that count hold some 700 reads, one after another.
const SPAN: Span =
    Span { warm_up: Duration::from_millis(500), counted: Duration::from_millis(10_000) };

/// The mean time of a random read through NBD, beside the model's own for the
/// same reads.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    let image = tempfile::Builder::new()
        .prefix("seekway-bench-host.")
        .tempfile_in(&options.disk_dir)
        .map_err(|error| format!("{}: {error}", options.disk_dir.display()))?;
    image.as_file().set_len(IMAGE_BYTES).map_err(|error| format!("a sparse image: {error}"))?;
    let (mut ours, mut model) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds.min(3) {
        eprintln!("emulated {PROFILE}, round {round}");
        options.go_on()?;
        let images = [image.path().to_path_buf()];
        let server = Server::start_many(&options.seekway, &images, &["--emulate", PROFILE])?;
        let sample = fio::nbd(server.socket(), Load::random(1), SPAN, || server.cpu())?;
        ours.push(sample.mean_us / 1e3);
        model.push(model_mean_ms(&server)?);
    }
    Ok(vec![Row {
        part: "emulated",
        name: "seagate-1tb-7200, 4 KiB random reads by NBD: mean".to_owned(),
        unit: "ms",
        ours_name: "noop".to_owned(),
        peer_name: "the model".to_owned(),
        ours,
        peer: model,
        target: Target::Within(0.03),
    }])
}

/// The model's mean service time of what it has served, by the control socket.
fn model_mean_ms(server: &Server) -> Result<f64> {
    let status = server.status()?;
    let mean = status.pointer("/devices/0/emulated/model_service_mean_ms");
    mean.and_then(Value::as_f64).ok_or_else(|| format!("no mean of the model in {status}"))
}
