//! README and ARCHITECTURE name the versions that the tests run on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::path::Path;

use sqlx::{Connection, MySqlConnection, PgConnection};

#[tokio::test]
async fn the_tables_of_stacks_name_the_databases_that_answer() {
    for variable in ["OUTBOX_TEST_POSTGRES_URL", "OUTBOX_TEST_POSTGRES_NEW_URL"] {
        let mut server = PgConnection::connect(&server(variable)).await.unwrap();
        let version: String =
            sqlx::query_scalar("show server_version").fetch_one(&mut server).await.unwrap();
        is_named("PostgreSQL", parts(&version, 1));
    }
    for (name, variable) in
        [("MySQL", "OUTBOX_TEST_MYSQL_URL"), ("MariaDB", "OUTBOX_TEST_MARIADB_URL")]
    {
        let mut server = MySqlConnection::connect(&server(variable)).await.unwrap();
        let version: String =
            sqlx::query_scalar("select version()").fetch_one(&mut server).await.unwrap();
        is_named(name, parts(&version, 2));
    }
}

#[test]
fn the_tables_of_stacks_name_the_brokers_that_are_installed() {
    let installed = read("xtask/src/services/install.rs");
    for (name, constant) in [("Apache Kafka", "KAFKA"), ("Amazon SQS", "ELASTICMQ")] {
        let begin = format!("const {constant}: &str = \"");
        let version = installed.split_once(&begin).expect(constant).1;
        is_named(name, parts(version, 2));
    }
    // They are Debian's own: their versions stand at the two variants.
    let rabbitmq = read("xtask/src/services/rabbitmq.rs");
    let variants = rabbitmq.split_once("pub enum RabbitMqVersion {").expect("the enum").1;
    for variant in variants.split("/// ").skip(1).take(2) {
        is_named("RabbitMQ", parts(variant, 2));
    }
}

/// Whether both tables have this version in the row of `name`.
fn is_named(name: &str, version: &str) {
    for page in ["README.md", "ARCHITECTURE.md"] {
        let text = read(page);
        let row = text.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let row = row.unwrap_or_else(|| panic!("{page} has no row for {name}"));
        let words = || row.split([' ', ',', ';', ':']);
        assert!(
            words().any(|word| word == version),
            "{page} does not name {name} {version}: {row}"
        );
    }
}

/// The first parts of a version, `9.7` of `9.7.1-log`.
fn parts(version: &str, count: usize) -> &str {
    let end = version.match_indices(|letter: char| !letter.is_ascii_digit()).nth(count - 1);
    &version[..end.map_or(version.len(), |(at, _)| at)]
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services start)\"` first")
    })
}

fn read(file: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()))
}
