//! Developers commands.
fn main() {}
