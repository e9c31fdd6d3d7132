//! Running cargo with the tests' variables, and telling how long it took.

use std::process::Command;
use std::time::Instant;

use xtask::{Result, services};

/// One selection for all: packages and features as in every other command, so that nothing is built twice.
pub(crate) const WHOLE_WORKSPACE: [&str; 2] = ["--workspace", "--all-features"];

/// Runs cargo in the foreground; true when it succeeded.
pub(crate) fn run(args: &[&str], variables: &[(&str, &str)]) -> Result<bool> {
    let mut command = Command::new(env!("CARGO"));
    command.args(args).envs(variables.iter().copied());
    for variable in services::variables() {
        command.env(variable.name, variable.value);
    }
    let settings: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    eprintln!("==> {}cargo {}", settings.concat(), args.join(" "));
    let status = command.status().map_err(|e| format!("cannot run {}: {e}", env!("CARGO")))?;
    Ok(status.success())
}

/// Does a part of the work and prints its name and seconds.
pub(crate) fn part<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let result = work();
    eprintln!("<== {name}: {:.1} s", begin.elapsed().as_secs_f64());
    result
}
