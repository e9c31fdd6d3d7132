//! Umbrella.
