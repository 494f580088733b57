//! A progress bar on a terminal's standard error; nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A bar over `total` requests (unknown: a spinner).
pub fn requests(total: Option<u64>, what: &str) -> ProgressBar {
    bar(total, what, "{pos}/{len} requests, {per_sec}, {eta} left", "{pos} requests, {per_sec}")
}

/// A bar over `total` runs.
#[cfg(feature = "daemon")]
pub fn runs(total: u64, what: &str) -> ProgressBar {
    bar(Some(total), what, "{pos}/{len} runs, {eta} left", "")
}

/// A spinner whose message says what is being done.
#[cfg(feature = "daemon")]
pub fn steps(what: &str) -> ProgressBar {
    bar(None, what, "", "{elapsed}")
}

fn bar(total: Option<u64>, what: &str, known: &str, unknown: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(n) => (ProgressBar::new(n), format!("{{msg}} [{{bar:30}}] {known}")),
        None => (ProgressBar::new_spinner(), format!("{{msg}} {{spinner}} {unknown}")),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    let style = ProgressStyle::with_template(&template).expect("a constant template");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
