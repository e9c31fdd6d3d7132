//! Rules of the configuration file.

use std::io;
use std::path::Path;
use std::time::Duration;

use outbox::{Exhausted, Limits, Timing, TypeFilter};

use super::expand::Environment;
use super::*;

/// One variable and one file.
struct Scripted;

impl Environment for Scripted {
    fn variable(&self, name: &str) -> Option<String> {
        (name == "PASSWORD").then(|| "hunter2".to_owned())
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        match path == Path::new("/etc/outbox/secret.txt") {
            true => Ok("from a file\n".to_owned()),
            false => Err(io::Error::other("there is none")),
        }
    }
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(File::new(Path::new("/etc/outbox/relay.toml"), text.to_owned(), Scripted))
}

/// A pipeline with these lines in it.
fn with(lines: &str) -> Result<Config, ConfigError> {
    parse(&format!(
        "[[pipeline]]\nname = \"shop\"\n{lines}\n[pipeline.source]\nkind = \"a\"\n[pipeline.publisher]\nkind = \"b\"\n"
    ))
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Adapter {
    url: String,
    #[serde(default)]
    lanes: u16,
}

#[test]
fn a_pipeline_has_the_relays_defaults_unless_the_file_says_otherwise() {
    let config = with("").unwrap();
    let [pipeline] = &config.pipelines[..] else { panic!("one pipeline") };
    assert_eq!((pipeline.limits, pipeline.timing), (Limits::default(), Timing::default()));
    assert_eq!(pipeline.router.destination("order", "Paid"), "outbox.event.order");
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:9464");

    let config = with(
        "limits.calls = 2\ntiming.lease = \"1m 30s\"\ntiming.poll_min = \"250ms\"\nretry.max_attempts = 3\n\
         retry.events.Paid.exhausted = \"hold\"\nrouting.default = \"all\"",
    );
    let pipeline = &config.unwrap().pipelines[0];
    assert_eq!(pipeline.limits.calls, 2);
    assert_eq!(pipeline.timing.lease, Duration::from_secs(90));
    assert_eq!(pipeline.timing.poll_min, Duration::from_millis(250));
    assert_eq!(pipeline.router.destination("order", "Paid"), "all");
    let paid = pipeline.retry.policy("Paid", "all");
    assert_eq!((paid.max_attempts, paid.exhausted), (3, Exhausted::Hold));
    assert_eq!(pipeline.retry.policy("Sent", "all").exhausted, Exhausted::DeadLetter);
}

#[test]
fn an_unknown_key_is_refused_with_line_column_and_the_nearest_known_key() {
    let told = with("tiping.lease = \"1s\"").unwrap_err();
    assert_eq!(told.place(), Some((3, 1)), "{told}");
    assert!(
        told.to_string()
            .starts_with("/etc/outbox/relay.toml:3:1: tiping is no key here; did you mean timing?"),
        "{told}"
    );
    let told = with("timing.leese = \"1s\"").unwrap_err();
    assert_eq!(told.place(), Some((3, 8)), "{told}");
    let told = parse("[htpp]\n").unwrap_err();
    assert_eq!(told.place(), Some((1, 2)), "{told}");
    let config = parse(
        "[[pipeline]]\nname = \"a\"\n[pipeline.source]\nkind = \"a\"\nurl = \"u\"\n  lane = 3\n[pipeline.publisher]\nkind = \"b\"",
    );
    let told = config.unwrap().pipelines[0].source.read::<Adapter>().unwrap_err();
    assert_eq!(told.place(), Some((6, 3)), "{told}");
    assert!(told.to_string().contains("did you mean lanes?"), "{told}");
}

#[test]
fn variables_and_files_are_filled_in_once_and_dollars_can_be_written() {
    let config = parse(
        "[[pipeline]]\nname = \"a\"\n[pipeline.source]\nkind = \"a\"\nurl = \"x:${PASSWORD}@${file:secret.txt}/$${PASSWORD}\"\n\
         [pipeline.publisher]\nkind = \"b\"",
    );
    let adapter: Adapter = config.unwrap().pipelines[0].source.read().unwrap();
    assert_eq!(adapter.url, "x:hunter2@from a file/${PASSWORD}");
}

#[test]
fn what_cannot_be_filled_in_is_refused_at_its_place() {
    for (text, reason) in [
        ("${NONE}", "the variable NONE of the environment is not set"),
        ("${file:none.txt}", "the file none.txt cannot be read: there is none"),
        ("50 $", "a $ stands alone"),
        ("${PASSWORD", "a $ stands alone"),
    ] {
        let told = with(&format!("routing.default = \"{text}\"")).unwrap_err();
        assert_eq!(told.place(), Some((3, 19)), "{told}");
        assert!(told.to_string().contains(reason), "{told}");
    }
}

#[test]
fn no_value_is_shown_by_an_error_or_by_debug() {
    let config = parse(
        "[http]\ntoken = \"${PASSWORD}\"\n[[pipeline]]\nname = \"a\"\n[pipeline.source]\nkind = \"a\"\nurl = \"u\"\n\
         lanes = \"${PASSWORD}\"\n[pipeline.publisher]\nkind = \"b\"\nkey = \"hunter2\"",
    )
    .unwrap();
    let told = config.pipelines[0].source.read::<Adapter>().unwrap_err().to_string();
    assert!(told.contains("expected u16") && !told.contains("hunter2"), "{told}");
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn two_pipelines_of_one_name_are_refused() {
    let one = "[[pipeline]]\nname = \"a\"\n[pipeline.source]\nkind = \"a\"\n[pipeline.publisher]\nkind = \"b\"\n";
    let told = parse(&one.repeat(2)).unwrap_err().to_string();
    assert!(told.contains("two pipelines are named a"), "{told}");
}

#[test]
fn an_open_port_needs_a_token() {
    let told = parse("[http]\nlisten = \"0.0.0.0:80\"").unwrap_err().to_string();
    assert!(told.contains("set http.token, or listen on 127.0.0.1"), "{told}");
    parse("[http]\nlisten = \"0.0.0.0:80\"\ntoken = \"t\"").unwrap();
    parse("[http]\nlisten = \"[::1]:80\"").unwrap();
}

#[test]
fn a_pipeline_without_source_or_with_both_type_filters_is_refused() {
    let told = parse("[[pipeline]]\nname = \"a\"\n").unwrap_err().to_string();
    assert!(told.contains("has no [pipeline.source]"), "{told}");
    let told = with("types = [\"a\"]\nexcept_types = [\"b\"]").unwrap_err().to_string();
    assert!(told.contains("either types or except_types"), "{told}");
    assert_eq!(
        with("types = [\"a\"]").unwrap().pipelines[0].pipeline.types(),
        &TypeFilter::Only(["a".to_owned()].into())
    );
}

#[test]
fn pipelines_are_the_same_when_no_value_differs() {
    let changed = with("limits.calls = 3").unwrap().pipelines.remove(0);
    let moved = with("# a comment\n\nlimits.calls   = 3").unwrap().pipelines.remove(0);
    let other = with("limits.calls = 4").unwrap().pipelines.remove(0);
    assert!(changed.is_same(&moved) && !changed.is_same(&other));
}

#[test]
fn limits_and_timing_that_no_relay_can_work_with_are_refused() {
    let told = with("limits.calls = 0").unwrap_err().to_string();
    assert!(told.contains("pipeline shop: limits: calls is 0"), "{told}");
    let told = with("timing.lease = \"1s\"").unwrap_err().to_string();
    assert!(told.contains("pipeline shop: timing: lease"), "{told}");
}

#[test]
fn an_exception_from_the_retries_has_no_exceptions_of_its_own() {
    let told = with("retry.events.Paid.events.Sent.max_attempts = 1").unwrap_err();
    assert!(told.to_string().contains("events is no key here"), "{told}");
}

#[test]
fn a_level_that_the_log_does_not_know_is_refused() {
    let told = parse("[log]\nlevel = \"outbox_core=loud\"").unwrap_err().to_string();
    assert!(told.contains("log.level: "), "{told}");
    parse("[log]\nlevel = \"warn,outbox_core=debug\"").unwrap();
}
