//! `cargo xtask prove`: the long suites, which take minutes to hours and are not part of `test`.

use std::process::ExitCode;
use std::time::Instant;

use xtask::{Result, services};

use crate::cargo::{self, WHOLE_WORKSPACE, part};

/// A suite is a test of the workspace under settings that make it long.
struct Suite {
    name: &'static str,
    what: &'static str,
    /// The integration test that it runs.
    test: &'static str,
    /// Variables that make it long; one that the user has set is left as it is.
    variables: &'static [(&'static str, &'static str)],
}

/// One line a suite.
#[rustfmt::skip]
const SUITES: &[Suite] = &[
    Suite { name: "simulation", what: "the relay's own code under simulated faults, many seeds", test: "simulation", variables: &[("OUTBOX_SIM_SEEDS", "100000")] },
    Suite { name: "sabotage", what: "taking any one rule of the relay away turns a test red", test: "sabotage", variables: &[("OUTBOX_SABOTAGE", "all")] },
    Suite { name: "main_job", what: "all events of many writers arrive once and in order, at full size", test: "main_job", variables: &[("OUTBOX_MAIN_JOB", "full")] },
    Suite { name: "pairs", what: "every store with every publisher through faults, and from commit to effect through 20 kills", test: "pairs", variables: &[("OUTBOX_PAIRS", "full")] },
];

pub(crate) fn list() {
    for Suite { name, what, test, variables } in SUITES {
        println!("{name:<14} {what} (test {test}, {variables:?})");
    }
}

/// Runs the named suites, or all, one after the other, and reports at the end.
pub(crate) fn run(names: &[&str]) -> Result<ExitCode> {
    let suites = select(names)?;
    part("servers", services::start)?;
    let mut report = Vec::new();
    for suite in suites {
        let begin = Instant::now();
        let green = part(suite.name, || suite.run())?;
        report.push((suite.name, green, begin.elapsed().as_secs_f64()));
    }
    for (name, green, seconds) in &report {
        println!("{name:<14} {} {seconds:>8.1} s", if *green { "green" } else { "RED  " });
    }
    let all = report.iter().all(|(_, green, _)| *green);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Suite {
    fn run(&self) -> Result<bool> {
        let unset = |(name, _): &&(&str, &str)| std::env::var_os(name).is_none();
        let variables: Vec<_> = self.variables.iter().filter(unset).copied().collect();
        let args =
            [&["test"], &WHOLE_WORKSPACE[..], &["--test", self.test, "--", "--nocapture"]].concat();
        cargo::run(&args, &variables)
    }
}

fn select(names: &[&str]) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(SUITES.iter().collect());
    }
    let known = |name: &&str| SUITES.iter().find(|suite| suite.name == *name);
    names
        .iter()
        .map(|name| {
            known(name).ok_or_else(|| format!("no suite is named {name}; see --list").into())
        })
        .collect()
}
