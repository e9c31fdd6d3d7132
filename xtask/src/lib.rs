//! Developers commands.
