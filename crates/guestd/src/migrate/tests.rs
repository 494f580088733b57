//! Measurements of the agent's cost.

mod costs;
