//! The macros list every rule: one that is written but not listed would never run.

use std::fs;
use std::path::Path;

#[test]
fn every_rule_is_listed_in_its_macro() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut text = String::new();
    let mut rules = Vec::new();
    for file in ["lib.rs", "inbox.rs", "inbox", "store", "publisher"].map(|name| src.join(name)) {
        let files = match fs::read_dir(&file) {
            Ok(folder) => folder.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => vec![file],
        };
        for file in files {
            let source = fs::read_to_string(&file).unwrap();
            rules.extend(
                source
                    .lines()
                    .filter_map(|line| line.strip_prefix("pub async fn "))
                    .filter_map(|line| line.split_once('(').map(|(name, _)| name.to_owned())),
            );
            text.push_str(&source);
        }
    }
    assert!(rules.len() > 80, "only {} rules were found", rules.len());
    for rule in rules {
        assert!(text.contains(&format!("            {rule},\n")), "{rule} is not listed");
    }
}
