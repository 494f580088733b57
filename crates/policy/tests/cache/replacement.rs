//! Who stays.
