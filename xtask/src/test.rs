//! `cargo xtask test`: every test of the workspace, doctests included, on real servers.

use std::process::ExitCode;

use xtask::{Result, services};

use crate::cargo::{self, WHOLE_WORKSPACE, part};

/// Runs the tests to the last also when one is red. The servers stay up for the next run.
pub(crate) fn run(args: &[&str]) -> Result<ExitCode> {
    let args = args.strip_prefix(&["--"]).unwrap_or(args);
    part("servers", services::start)?;

    let test = [&["test", "--no-fail-fast"], &WHOLE_WORKSPACE[..]].concat();
    let build = [&test[..], &["--no-run"]].concat();
    if !part("build", || cargo::run(&build, &[]))? {
        return Ok(ExitCode::FAILURE);
    }
    let green = part("tests", || cargo::run(&[&test[..], args].concat(), &[]))?;
    eprintln!("<== {}", if green { "green" } else { "RED" });
    Ok(if green { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
