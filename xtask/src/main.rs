//! Developers' commands: `cargo xtask` lists them.

mod cargo;
mod prove;
mod test;

use std::process::ExitCode;

use xtask::{Result, services};

const HELP: &str = "\
cargo xtask services install   install what the build and the test servers need
cargo xtask services start     start all test servers; prints the variables for `eval`
cargo xtask services status    say which of them run and answer
cargo xtask services stop      stop them; the next start begins empty
cargo xtask test [-- ARGS]     start the servers and run every test; ARGS go to `cargo test`
cargo xtask prove [SUITE...]   run the long suites, all or those named; `prove --list` lists them";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match command(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn command(args: &[&str]) -> Result<ExitCode> {
    match args {
        ["services", "install"] => services::install()?,
        ["services", "start"] => {
            services::start()?;
            for variable in services::variables() {
                println!("export {}={}", variable.name, variable.value);
            }
        }
        ["services", "status"] => return Ok(status()),
        ["test", args @ ..] => return test::run(args),
        ["prove", "--list"] => prove::list(),
        ["prove", names @ ..] => return prove::run(names),
        ["services", "stop"] => services::stop()?,
        [] | ["help" | "--help" | "-h"] => println!("{HELP}"),
        ["services"] => {
            return Err(format!("services: install, start, status or stop?\n{HELP}").into());
        }
        _ => return Err(format!("unknown command: {}\n{HELP}", args.join(" ")).into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails unless all run and answer.
fn status() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for server in services::status() {
        let state = match (server.pid, server.answers) {
            (Some(pid), true) => format!("up, pid {pid}"),
            (Some(pid), false) => format!("pid {pid} does not answer"),
            (None, _) => "down".to_owned(),
        };
        if !server.answers {
            code = ExitCode::FAILURE;
        }
        println!("{:<14} {:<28} {}", server.name, state, server.address);
    }
    code
}
