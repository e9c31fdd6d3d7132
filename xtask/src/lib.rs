//! Developers' commands of the workspace, and the library part that fault tests use: [`services`] and [`proxy`].
//!
//! The crate has no dependencies. `cargo xtask` lists the commands.

pub mod proxy;
pub mod services;

/// An error is a text for the developer who ran the command: what failed, where its log is, the way out.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Result of a developers' command.
pub type Result<T> = std::result::Result<T, Error>;
