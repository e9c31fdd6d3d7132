//! The pages name files and tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A file as `folder/file.rs`, a test as `folder/file.rs::name`, from the root of the repository.
#[test]
fn every_file_and_every_test_that_a_page_names_exists() {
    let top: BTreeSet<String> = names(root()).collect();
    let mut missing = Vec::new();
    let mut tests = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a readable page");
        for quoted in text.split('`').skip(1).step_by(2) {
            let (file, test) = quoted.split_once("::").unwrap_or((quoted, ""));
            let is_file = file.ends_with(".rs") || file.ends_with(".md");
            let folder = file.split('/').next().unwrap_or_default();
            if !is_file || !file.contains('/') || !top.contains(folder) {
                continue;
            }
            let source = fs::read_to_string(root().join(file)).unwrap_or_default();
            let is_there = ["(", "<"].iter().any(|end| source.contains(&format!("fn {test}{end}")));
            if source.is_empty() || !(is_there || test.is_empty()) {
                missing.push(format!("{}: {quoted}", page.display()));
            }
            tests += usize::from(!test.is_empty());
        }
    }
    assert!(missing.is_empty(), "named, but not there:\n{}", missing.join("\n"));
    assert!(tests > 20, "the pages name {tests} tests: is this test still reading them?");
}

/// Links from page to page.
#[test]
fn every_link_to_a_file_leads_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a readable page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let target = page.parent().expect("a page has a folder").join(file);
            assert!(target.exists(), "{}: {link}", page.display());
        }
    }
}

fn pages() -> Vec<PathBuf> {
    ["", "docs", "docs/adr"]
        .into_iter()
        .map(|folder| root().join(folder))
        .flat_map(|folder| names(&folder).map(|name| folder.join(name)).collect::<Vec<_>>())
        .filter(|file| file.extension().is_some_and(|end| end == "md"))
        .collect()
}

fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
