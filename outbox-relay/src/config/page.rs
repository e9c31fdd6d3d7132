//! `docs/configuration.md` and `outbox-relay.example.toml` say what the code does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::expand::Environment;
use super::pipeline::{Body, Exception, LimitsTable, Retry, Routing, TimingTable};
use super::settings::File;
use super::{Config, Http, Log};
use crate::kinds::{kafka, mysql, postgres, rabbitmq, sqlite, sqs};

/// A table of the file, as the code knows it.
struct Section {
    /// As in the page.
    heading: &'static str,
    keys: BTreeSet<String>,
    /// Where the example shows it: in which pipeline, behind which keys.
    example: (usize, &'static [&'static str]),
    /// What has no default.
    required: &'static str,
    /// What the code makes of the table.
    made: fn(&str) -> String,
}

fn sections() -> Vec<Section> {
    let mut body = keys::<Body>();
    body.extend(["source".to_owned(), "publisher".to_owned()]);
    let section = |heading, keys, example| Section {
        heading,
        keys,
        example,
        required: "",
        made: |_| String::new(),
    };
    let with = |section: Section, required, made| Section { required, made, ..section };
    vec![
        with(section("`[http]`", keys::<Http>(), (9, &["http"])), "", |text| {
            show(read::<Http>(text))
        }),
        with(section("`[log]`", keys::<Log>(), (9, &["log"])), "", |text| show(read::<Log>(text))),
        section("`[[pipeline]]`", body, (0, &[])),
        section("`[pipeline.routing]`", keys::<Routing>(), (0, &["routing"])),
        with(section("`[pipeline.retry]`", keys::<Retry>(), (0, &["retry"])), "", |text| {
            show(read::<Retry>(text).policies())
        }),
        section(
            "`[pipeline.retry.events.NAME]`",
            keys::<Exception>(),
            (0, &["retry", "events", "OrderPaid.v1"]),
        ),
        with(section("`[pipeline.limits]`", keys::<LimitsTable>(), (0, &["limits"])), "", |text| {
            show(read::<LimitsTable>(text).settings())
        }),
        with(section("`[pipeline.timing]`", keys::<TimingTable>(), (0, &["timing"])), "", |text| {
            show(read::<TimingTable>(text).settings())
        }),
        with(
            section(
                "`[pipeline.source]` with `kind = \"postgres\"`",
                keys::<postgres::Postgres>(),
                (0, &["source"]),
            ),
            "url = 'postgres://localhost/shop'",
            |text| show(read::<postgres::Postgres>(text).config().expect("it is in order")),
        ),
        with(
            section(
                "`[pipeline.source]` with `kind = \"mysql\"`",
                keys::<mysql::MySql>(),
                (1, &["source"]),
            ),
            "url = 'mysql://localhost/shop'",
            |text| show(read::<mysql::MySql>(text).config().expect("it is in order")),
        ),
        with(
            section(
                "`[pipeline.source]` with `kind = \"sqlite\"`",
                keys::<sqlite::Sqlite>(),
                (2, &["source"]),
            ),
            "file = 'shop.db'",
            |text| show(read::<sqlite::Sqlite>(text).config()),
        ),
        with(
            section(
                "`[pipeline.publisher]` with `kind = \"kafka\"`",
                keys::<kafka::Kafka>(),
                (0, &["publisher"]),
            ),
            "bootstrap_servers = 'localhost:9092'",
            |text| show(read::<kafka::Kafka>(text).config().expect("it is in order")),
        ),
        section(
            "`[pipeline.publisher.sasl]` of Kafka",
            keys::<kafka::Login>(),
            (0, &["publisher", "sasl"]),
        ),
        section(
            "`[pipeline.publisher.tls]` of Kafka",
            keys::<kafka::Encryption>(),
            (0, &["publisher", "tls"]),
        ),
        with(
            section(
                "`[pipeline.publisher]` with `kind = \"rabbitmq\"`",
                keys::<rabbitmq::RabbitMq>(),
                (1, &["publisher"]),
            ),
            "url = 'amqp://localhost'",
            |text| show(read::<rabbitmq::RabbitMq>(text).config().expect("it is in order")),
        ),
        section(
            "`[pipeline.publisher.routing]` of RabbitMQ",
            keys::<rabbitmq::RoutingTable>(),
            (1, &["publisher", "routing"]),
        ),
        section(
            "`[pipeline.publisher.tls]` of RabbitMQ",
            keys::<rabbitmq::Encryption>(),
            (1, &["publisher", "tls"]),
        ),
        section(
            "`[[pipeline.publisher.exchanges]]`",
            keys::<rabbitmq::ExchangeTable>(),
            (1, &["publisher", "exchanges"]),
        ),
        section(
            "`[[pipeline.publisher.queues]]`",
            keys::<rabbitmq::QueueTable>(),
            (1, &["publisher", "queues"]),
        ),
        with(
            section(
                "`[pipeline.publisher]` with `kind = \"sqs\"`",
                keys::<sqs::Sqs>(),
                (2, &["publisher"]),
            ),
            "",
            |text| show(read::<sqs::Sqs>(text).config()),
        ),
    ]
}

#[test]
fn the_page_has_every_key_of_every_table_and_no_other() {
    let mut page = page();
    for Section { heading, keys, .. } in sections() {
        let rows = page.remove(heading).unwrap_or_else(|| panic!("no section {heading}"));
        assert_eq!(
            rows.into_keys().collect::<BTreeSet<_>>(),
            keys,
            "{heading}: the page, and the code"
        );
    }
    assert_eq!(page.into_keys().collect::<Vec<_>>(), [""; 0], "sections about nothing");
}

#[test]
fn the_page_has_the_defaults_of_the_code() {
    let mut defaults = 0;
    let page = page();
    for Section { heading, required, made, .. } in sections() {
        let rows = &page[heading];
        let with_value = rows.iter().filter(|(_, default)| default.starts_with('`'));
        let lines: Vec<String> = with_value
            .map(|(key, default)| format!("{key} = {}", default.trim_matches('`')))
            .collect();
        defaults += lines.len();
        assert_eq!(made(&format!("{required}\n{}", lines.join("\n"))), made(required), "{heading}");
    }
    assert!(defaults > 80, "the page has {defaults} defaults: is this test still reading them?");
}

#[test]
fn the_example_is_a_file_that_the_daemon_takes_with_and_without_what_is_optional() {
    for text in [example(), with_optional_keys(&example())] {
        let file = File::new(Path::new("example.toml"), text, Anything);
        for pipeline in Config::parse(file).unwrap().pipelines {
            let source = &pipeline.source;
            match source.kind() {
                "postgres" => drop(source.read::<postgres::Postgres>().unwrap().config().unwrap()),
                "mysql" => drop(source.read::<mysql::MySql>().unwrap().config().unwrap()),
                _ => drop(source.read::<sqlite::Sqlite>().unwrap().config()),
            }
            let publisher = &pipeline.publisher;
            match publisher.kind() {
                "kafka" => drop(publisher.read::<kafka::Kafka>().unwrap().config().unwrap()),
                "rabbitmq" => {
                    drop(publisher.read::<rabbitmq::RabbitMq>().unwrap().config().unwrap());
                }
                _ => drop(publisher.read::<sqs::Sqs>().unwrap().config()),
            }
        }
    }
}

#[test]
fn the_example_shows_every_key() {
    let example: Table = toml::from_str(&with_optional_keys(&example())).unwrap();
    let pipelines = example["pipeline"].as_array().unwrap();
    let mut shown_of_pipelines = BTreeSet::new();
    for pipeline in pipelines {
        shown_of_pipelines.extend(pipeline.as_table().unwrap().keys().cloned());
    }
    for Section { heading, keys, example: (index, path), .. } in sections() {
        let shown = match path {
            [] => shown_of_pipelines.clone(),
            path => {
                let file = Value::Table(example.clone());
                let mut at = pipelines.get(index).unwrap_or(&file);
                for key in path {
                    at = at.get(*key).unwrap_or_else(|| panic!("{heading}: no {key}"));
                    at = at.get(0).unwrap_or(at);
                }
                at.as_table().unwrap().keys().filter(|key| *key != "kind").cloned().collect()
            }
        };
        assert_eq!(shown, keys, "{heading}: the example, and the code");
    }
}

/// The keys of a type, from what it says about one that it does not know.
fn keys<T: DeserializeOwned>() -> BTreeSet<String> {
    let error = toml::from_str::<T>("\"?\" = 0").err().expect("no type knows this key");
    let known = error.message().split_once("`?`").expect("it is named").1;
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn read<T: DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn show(made: impl Debug) -> String {
    format!("{made:?}")
}

/// Default by key of each section of the page that has a table.
fn page() -> BTreeMap<String, BTreeMap<String, String>> {
    let text = include_str!("../../../docs/configuration.md");
    let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for section in text.split("\n## ").skip(1) {
        let (heading, text) = section.split_once('\n').expect("text stands below a heading");
        for row in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let key = cells[1].trim_matches('`').to_owned();
            let rows = sections.entry(heading.to_owned()).or_default();
            rows.insert(key, cells[3].to_owned());
        }
    }
    sections
}

fn example() -> String {
    include_str!("../../../outbox-relay.example.toml").to_owned()
}

/// The file with each line that begins with `#` and no space behind it.
fn with_optional_keys(text: &str) -> String {
    let optional = |line: &str| {
        let key = line.strip_prefix('#').filter(|key| key.starts_with(|first: char| first != ' '));
        format!("{}\n", key.unwrap_or(line))
    };
    text.lines().map(optional).collect()
}

/// An environment in which everything is there.
struct Anything;

impl Environment for Anything {
    fn variable(&self, _: &str) -> Option<String> {
        Some("something".to_owned())
    }

    fn file(&self, _: &Path) -> io::Result<String> {
        Ok("something".to_owned())
    }
}
