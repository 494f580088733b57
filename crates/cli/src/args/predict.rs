//! Arguments of `seekway predict`.

use clap::Args;

/// What a load would get from another disk, under each policy
#[derive(Args, Debug)]
pub struct PredictArgs {}
