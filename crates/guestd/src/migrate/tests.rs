//! What the agent costs, measured.

mod costs;
