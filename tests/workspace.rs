//! The workspace keeps its shape: who may depend on whom, which file is where, what each document says.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What each crate of the workspace may use of the others. A crate that is not listed is red.
const ARROWS: &[(&str, &[&str])] = &[
    ("outbox-core", &[]),
    ("outbox-postgres", &["outbox-core"]),
    ("outbox-mysql", &["outbox-core"]),
    ("outbox-sqlite", &["outbox-core"]),
    ("outbox-kafka", &["outbox-core"]),
    ("outbox-rabbitmq", &["outbox-core"]),
    ("outbox-sqs", &["outbox-core"]),
    ("outbox-conformance", &["outbox-core"]),
    (
        "outbox",
        &[
            "outbox-core",
            "outbox-postgres",
            "outbox-mysql",
            "outbox-sqlite",
            "outbox-kafka",
            "outbox-rabbitmq",
            "outbox-sqs",
        ],
    ),
    (
        "outbox-bench",
        &["outbox", "outbox-core", "outbox-postgres", "outbox-sqlite", "outbox-kafka", "xtask"],
    ),
    ("outbox-relay", &["outbox"]),
    ("xtask", &[]),
];

const STORES: &[&str] = &["outbox-postgres", "outbox-mysql", "outbox-sqlite"];
const STORE_FILES: &[&str] =
    &["lib", "config", "error", "sql", "row", "writer", "store", "schema", "inbox", "admin"];
const PUBLISHERS: &[&str] = &["outbox-kafka", "outbox-rabbitmq", "outbox-sqs"];
const PUBLISHER_FILES: &[&str] = &["lib", "config", "error", "publisher"];

#[test]
fn crates_depend_only_downwards() {
    for package in packages() {
        let arrows = ARROWS.iter().find(|(name, _)| *name == package.name);
        let (_, allowed) = arrows.unwrap_or_else(|| panic!("{} is not in ARROWS", package.name));
        for dependency in package.workspace_dependencies(Kind::Normal) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{} must not depend on {dependency}",
                package.name
            );
        }
    }
}

#[test]
fn xtask_depends_on_nothing_so_that_it_starts_at_once() {
    let xtask = packages().into_iter().find(|package| package.name == "xtask").unwrap();
    assert_eq!(xtask.dependencies(Kind::Normal), [""; 0]);
}

#[test]
fn nothing_depends_on_the_benchmark() {
    for package in packages() {
        let all = [Kind::Normal, Kind::Development].map(|kind| package.dependencies(kind)).concat();
        assert!(!all.iter().any(|name| name == "outbox-bench"), "{} does", package.name);
    }
}

#[test]
fn no_crate_can_be_published_by_accident() {
    for package in packages() {
        assert_eq!(package.json["publish"], serde_json::json!([]), "{}", package.name);
    }
}

#[test]
fn adapters_have_the_same_files_so_that_reading_one_teaches_all() {
    let stores = STORES.iter().map(|adapter| (adapter, STORE_FILES));
    let publishers = PUBLISHERS.iter().map(|adapter| (adapter, PUBLISHER_FILES));
    for (adapter, names) in stores.chain(publishers) {
        for name in names {
            let file = root().join(adapter).join("src").join(name).with_extension("rs");
            assert!(file.is_file(), "{} is missing", file.display());
        }
    }
}

#[test]
fn the_readme_names_every_example() {
    let readme = read(&root().join("README.md"));
    let examples = files(&root().join("examples"));
    assert!(!examples.is_empty());
    for example in examples {
        let name = example.file_name().unwrap().to_string_lossy().into_owned();
        assert!(readme.contains(&name), "README.md does not name examples/{name}");
    }
}

#[test]
fn every_decision_record_has_context_decision_and_consequences() {
    let records: Vec<PathBuf> = files(&root().join("docs/adr"))
        .into_iter()
        .filter(|file| is_numbered(&file.file_name().unwrap().to_string_lossy()))
        .collect();
    assert!(!records.is_empty());
    for record in records {
        let text = read(&record);
        for heading in ["## Context", "## Decision", "## Consequences"] {
            let has = text.lines().any(|line| line.trim_end() == heading);
            assert!(has, "{} lacks the heading {heading}", record.display());
        }
    }
}

struct Package {
    name: String,
    json: Value,
}

/// Build dependencies count as normal ones: both reach the user of a crate.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Normal,
    Development,
}

impl Package {
    fn dependencies(&self, kind: Kind) -> Vec<String> {
        let list = self.json["dependencies"].as_array().expect("cargo lists them");
        list.iter()
            .filter(|dependency| (dependency["kind"] == "dev") == (kind == Kind::Development))
            .map(|dependency| dependency["name"].as_str().expect("a name").to_owned())
            .collect()
    }

    fn workspace_dependencies(&self, kind: Kind) -> Vec<String> {
        let own: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
        self.dependencies(kind).into_iter().filter(|name| own.contains(name.as_str())).collect()
    }
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo speaks JSON");
    let packages = metadata["packages"].as_array().expect("cargo lists the packages");
    packages
        .iter()
        .map(|json| Package {
            name: json["name"].as_str().expect("a name").to_owned(),
            json: json.clone(),
        })
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|e| panic!("cannot read {}: {e}", folder.display()));
    entries.map(|entry| entry.expect("a readable folder").path()).collect()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()))
}

/// `0001-lanes.md`, but not `template.md`.
fn is_numbered(name: &str) -> bool {
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    digits == 4 && name[digits..].starts_with('-') && name.ends_with(".md")
}
