//! Taking any one rule away turns a test red.
//!
//! Every row of [`rules`] breaks one rule of reading, order, outages or leases. `OUTBOX_SABOTAGE=all` builds a copy of the
//! workspace in which each rule can be switched off, runs the core's tests once per rule and prints which test noticed; it
//! takes minutes (`cargo xtask prove sabotage`); parts of names, separated by commas, pick some. Without it this test only looks whether the table still fits the code.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod rules;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rules::{RULES, Rule};

/// Seeds of the simulation per rule; it stops at the first that is red.
const SEEDS: &str = "600";

/// Longer than any green run: a broken rule may also be noticed by a run that does not end.
const DEADLINE_SECONDS: &str = "150";

#[test]
fn every_rule_has_its_place_in_the_code() {
    for rule in RULES {
        let source = std::fs::read_to_string(relay(root()).join(rule.file)).unwrap();
        let found = source.matches(rule.text).count();
        assert_eq!(
            found, 1,
            "{:?} is to be broken in {}, at the text {:?}",
            rule.name, rule.file, rule.text
        );
    }
}

#[test]
fn taking_any_one_rule_away_turns_a_test_red() {
    let Ok(wanted) = std::env::var("OUTBOX_SABOTAGE") else { return };
    let copy = copy();
    assert_eq!(run(&copy, "none", "0", &["--no-run"]), [""; 0], "the copy can be built");
    assert_eq!(red(&copy, "none"), [""; 0], "the copy is green while every rule holds");
    let mut unnoticed = Vec::new();
    let is_wanted = |rule: &&Rule| wanted.split(',').any(|part| rule.name.contains(part));
    let mut names: Vec<&str> = RULES
        .iter()
        .filter(|rule| wanted == "all" || is_wanted(rule))
        .map(|rule| rule.name)
        .collect();
    // A rule that is broken in two places has two rows.
    names.sort_unstable();
    names.dedup();
    for name in names {
        let red = red(&copy, name);
        println!("{name} | {}", red.join(", "));
        if red.is_empty() {
            unnoticed.push(name);
        }
    }
    assert_eq!(unnoticed, [""; 0], "rules that no test notices");
}

/// A copy of the workspace whose relay asks `OUTBOX_RULE_OFF` which rule is taken away.
fn copy() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    let copy = target.join("sabotage");
    let files = Command::new("git").args(["ls-files"]).current_dir(root()).output().unwrap();
    for file in String::from_utf8(files.stdout).unwrap().lines() {
        let to = copy.join(file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        // A file that is listed but was removed is not copied.
        if root().join(file).is_file() {
            let text = std::fs::read(root().join(file)).unwrap();
            write(&to, &text);
        }
    }
    let mut files: Vec<&str> = RULES.iter().map(|rule| rule.file).collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        let path = relay(&copy).join(file);
        let source = std::fs::read_to_string(relay(root()).join(file)).unwrap();
        let of_file = RULES.iter().filter(|rule| rule.file == file);
        write(&path, of_file.fold(source, |source, rule| broken(&source, rule)).as_bytes());
    }
    let lib = copy.join("outbox-core/src/lib.rs");
    let source = std::fs::read_to_string(root().join("outbox-core/src/lib.rs")).unwrap();
    write(&lib, format!("{source}{SWITCH}").as_bytes());
    copy
}

fn broken(source: &str, rule: &Rule) -> String {
    let off = format!("crate::is_off({:?})", rule.name);
    source.replacen(rule.text, &rule.broken.replace("OFF", &off), 1)
}

/// Writes only what has changed, so that a second run builds nothing.
fn write(path: &Path, text: &[u8]) {
    if std::fs::read(path).ok().as_deref() != Some(text) {
        std::fs::write(path, text).unwrap();
    }
}

const SWITCH: &str = r#"
pub(crate) fn is_off(rule: &str) -> bool {
    static OFF: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    OFF.get_or_init(|| std::env::var("OUTBOX_RULE_OFF").ok()).as_deref() == Some(rule)
}
"#;

/// The tests that fail while `rule` is taken away; the simulation comes last, since it takes longest.
fn red(copy: &Path, rule: &str) -> Vec<String> {
    let quick =
        ["--lib", "--test", "schedules", "--test", "relay", "--test", "faults", "--test", "leases"];
    let mut red = run(copy, rule, DEADLINE_SECONDS, &quick);
    if red.is_empty() {
        red = run(copy, rule, DEADLINE_SECONDS, &["--test", "simulation"]);
    }
    red
}

fn run(copy: &Path, rule: &str, deadline: &str, what: &[&str]) -> Vec<String> {
    let output = Command::new("timeout")
        .args([deadline, "cargo", "test", "--offline", "--no-fail-fast", "-p", "outbox-core"])
        .args(what)
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .env("RUSTFLAGS", "-Awarnings")
        .env("OUTBOX_RULE_OFF", rule)
        .env("OUTBOX_SIM_SEEDS", SEEDS)
        .env_remove("OUTBOX_SABOTAGE")
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!err.contains("could not compile"), "{err}");
    let failed =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    let mut red: Vec<String> = out.lines().filter_map(failed).collect();
    if red.is_empty() && !output.status.success() {
        red.push("a run that does not end".to_owned());
    }
    red
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn relay(workspace: &Path) -> PathBuf {
    workspace.join("outbox-core/src/relay")
}
