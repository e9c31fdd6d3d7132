//! The shared servers: one of each, on fixed ports, until they are stopped.

use std::fs;
use std::path::PathBuf;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use super::elasticmq;
use super::folders;
use super::install::{self, Need};
use super::kafka::Node;
use super::mysql::{Brand, Instance};
use super::pgbouncer::Pgbouncer;
use super::postgres::{Cluster, PostgresVersion, answers};
use super::process::{Lifetime, Process};
use super::rabbitmq::{self, RabbitMqVersion};
use super::{kafka_wire, ports, tls};
use crate::Result;

/// An environment variable that tells the tests where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// `OUTBOX_TEST_…`.
    pub name: &'static str,
    /// A URL, an address or a path.
    pub value: String,
}

/// State of one shared server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The server's name.
    pub name: String,
    /// Its pid, while it runs.
    pub pid: Option<u32>,
    /// Whether it answered a query just now.
    pub answers: bool,
    /// Where it listens.
    pub address: String,
}

/// Starts the shared servers side by side and waits until each answers; what runs is left as it is.
///
/// A server that does not run starts empty: tests leave their databases and topics behind, and recovering gigabytes of
/// them after a crash takes longer than any test.
///
/// A server whose variable is set in the environment to a place of the user's own is not started.
/// What the build and these servers need is installed first, as by [`install`](super::install).
///
/// # Errors
///
/// What is missing and may not be installed; or the texts of all servers that did not start, each with the end of its log.
pub fn start() -> Result<()> {
    let _lock = folders::lock()?;
    let wants = |name| users_own(name).is_none();
    let mut needs = vec![Need::Build];
    if wants(POSTGRES_URL) || wants(POSTGRES_NEW_URL) || wants(PGBOUNCER_URL) {
        needs.push(Need::Postgres);
    }
    for (name, need) in
        [(MYSQL_URL, Need::MySql), (MARIADB_URL, Need::MariaDb), (KAFKA_BOOTSTRAP, Need::Kafka)]
    {
        if wants(name) {
            needs.push(need);
        }
    }
    if wants(RABBITMQ_URL) {
        needs.push(Need::RabbitMq);
    }
    if wants(SQS_ENDPOINT) {
        needs.push(Need::ElasticMq);
    }
    install::install_for(&needs)?;

    let servers = Servers::new();
    servers.discard_old_data()?;
    let behind_pgbouncer = wants(PGBOUNCER_URL);
    thread::scope(|scope| {
        let mut starts: Vec<ScopedJoinHandle<'_, Result<()>>> = Vec::new();
        if wants(POSTGRES_URL) || behind_pgbouncer {
            starts.push(scope.spawn(|| {
                timed(servers.postgres_15.process.name(), || servers.postgres_15.start())?;
                if behind_pgbouncer {
                    timed(servers.pgbouncer.process.name(), || servers.pgbouncer.start())?;
                }
                Ok(())
            }));
        }
        if wants(POSTGRES_NEW_URL) {
            starts.push(scope.spawn(|| {
                timed(servers.postgres_18.process.name(), || servers.postgres_18.start())
            }));
        }
        for (name, instance) in [(MYSQL_URL, &servers.mysql), (MARIADB_URL, &servers.mariadb)] {
            if wants(name) {
                starts
                    .push(scope.spawn(move || timed(instance.process.name(), || instance.start())));
            }
        }
        if wants(KAFKA_BOOTSTRAP) {
            starts.push(
                scope.spawn(|| timed(servers.kafka.process.name(), || servers.kafka.start())),
            );
        }
        if wants(RABBITMQ_URL) {
            starts.push(
                scope.spawn(|| timed(servers.rabbitmq.process.name(), || servers.rabbitmq.start())),
            );
        }
        if wants(SQS_ENDPOINT) {
            starts.push(
                scope.spawn(|| {
                    timed(servers.elasticmq.process.name(), || servers.elasticmq.start())
                }),
            );
        }
        let results = starts.into_iter().map(|start| start.join().expect("a start does not panic"));
        all(results.collect())
    })
}

/// Stops the shared servers. Their data go with the next start.
///
/// # Errors
///
/// The texts of all servers that had to be killed.
pub fn stop() -> Result<()> {
    let _lock = folders::lock()?;
    let servers = Servers::new();
    thread::scope(|scope| {
        let stops = [
            scope.spawn(|| all(vec![servers.pgbouncer.stop(), servers.postgres_15.stop()])),
            scope.spawn(|| servers.postgres_18.stop()),
            scope.spawn(|| servers.mysql.stop()),
            scope.spawn(|| servers.mariadb.stop()),
            scope.spawn(|| servers.kafka.stop()),
            scope.spawn(|| servers.rabbitmq.stop()),
            scope.spawn(|| servers.elasticmq.stop()),
        ];
        all(stops.into_iter().map(|stop| stop.join().expect("a stop does not panic")).collect())
    })
}

/// State of the shared servers, by asking each.
pub fn status() -> Vec<Status> {
    let servers = Servers::new();
    let Servers { postgres_15, postgres_18, pgbouncer, mysql, mariadb, kafka, rabbitmq, elasticmq } =
        &servers;
    let status = |process: &Process, address: String, answers: &dyn Fn(&str) -> bool| Status {
        name: process.name().to_owned(),
        pid: process.pid(),
        answers: process.pid().is_some() && answers(&address),
        address,
    };
    vec![
        status(&postgres_15.process, postgres_15.url(), &answers),
        status(&postgres_18.process, postgres_18.url(), &answers),
        status(&pgbouncer.process, pgbouncer.url(), &answers),
        status(&mysql.process, mysql.url(), &|_| mysql.answers()),
        status(&mariadb.process, mariadb.url(), &|_| mariadb.answers()),
        status(&kafka.process, kafka.bootstrap(), &kafka_wire::answers),
        status(&rabbitmq.process, rabbitmq.url(), &|_| rabbitmq.answers()),
        status(&elasticmq.process, elasticmq.endpoint(), &|_| elasticmq.answers()),
    ]
}

/// The variables that point the tests to their servers: those of the user's own where the
/// environment names them, else the shared ones.
pub fn variables() -> Vec<Variable> {
    let own_postgres = users_own(POSTGRES_URL).is_some();
    shared_variables()
        .into_iter()
        // Our certificate says nothing about a server of the user's own.
        .filter(|shared| shared.name != POSTGRES_CA || !own_postgres)
        .map(|shared| match users_own(shared.name) {
            Some(value) => Variable { value, ..shared },
            None => shared,
        })
        .collect()
}

fn shared_variables() -> Vec<Variable> {
    let servers = Servers::new();
    vec![
        Variable { name: POSTGRES_URL, value: servers.postgres_15.url() },
        Variable { name: POSTGRES_NEW_URL, value: servers.postgres_18.url() },
        Variable { name: PGBOUNCER_URL, value: servers.pgbouncer.url() },
        Variable { name: POSTGRES_CA, value: tls::ca_certificate().display().to_string() },
        Variable { name: MYSQL_URL, value: servers.mysql.url() },
        Variable { name: MARIADB_URL, value: servers.mariadb.url() },
        Variable { name: KAFKA_BOOTSTRAP, value: servers.kafka.bootstrap() },
        Variable { name: RABBITMQ_URL, value: servers.rabbitmq.url() },
        Variable { name: SQS_ENDPOINT, value: servers.elasticmq.endpoint() },
    ]
}

/// The value that the user has set, unless it names our own server.
fn users_own(name: &str) -> Option<String> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    shared_variables().iter().all(|shared| shared.value != value).then_some(value)
}

const POSTGRES_URL: &str = "OUTBOX_TEST_POSTGRES_URL";
const POSTGRES_NEW_URL: &str = "OUTBOX_TEST_POSTGRES_NEW_URL";
const PGBOUNCER_URL: &str = "OUTBOX_TEST_PGBOUNCER_URL";
const POSTGRES_CA: &str = "OUTBOX_TEST_POSTGRES_CA";
const MYSQL_URL: &str = "OUTBOX_TEST_MYSQL_URL";
const MARIADB_URL: &str = "OUTBOX_TEST_MARIADB_URL";
const KAFKA_BOOTSTRAP: &str = "OUTBOX_TEST_KAFKA_BOOTSTRAP";
const RABBITMQ_URL: &str = "OUTBOX_TEST_RABBITMQ_URL";
const SQS_ENDPOINT: &str = "OUTBOX_TEST_SQS_ENDPOINT";

struct Servers {
    postgres_15: Cluster,
    postgres_18: Cluster,
    pgbouncer: Pgbouncer,
    mysql: Instance,
    mariadb: Instance,
    kafka: Node,
    rabbitmq: rabbitmq::Node,
    elasticmq: elasticmq::Node,
}

impl Servers {
    fn new() -> Self {
        let folder = |name: &str| -> PathBuf { folders::servers().join("shared").join(name) };
        let postgres = |version, name: &str, port| {
            Cluster::new(version, &folder(name), port, Lifetime::Detached)
        };
        let mysql =
            |brand, name: &str, port| Instance::new(brand, &folder(name), port, Lifetime::Detached);
        Self {
            postgres_15: postgres(PostgresVersion::V15, "postgres-15", ports::POSTGRES_15),
            postgres_18: postgres(PostgresVersion::V18, "postgres-18", ports::POSTGRES_18),
            pgbouncer: Pgbouncer::new(&folder("pgbouncer")),
            mysql: mysql(Brand::MySql, "mysql", ports::MYSQL),
            mariadb: mysql(Brand::MariaDb, "mariadb", ports::MARIADB),
            kafka: Node::new(
                &folder("kafka"),
                ports::KAFKA,
                ports::KAFKA_CONTROLLER,
                Lifetime::Detached,
            ),
            rabbitmq: rabbitmq::Node::new(
                RabbitMqVersion::V3,
                &folder("rabbitmq"),
                rabbitmq::Ports {
                    amqp: ports::RABBITMQ,
                    distribution: ports::RABBITMQ_DISTRIBUTION,
                    names: ports::RABBITMQ_NAMES,
                    tls: None,
                },
                Lifetime::Detached,
            ),
            elasticmq: elasticmq::Node::new(
                &folder("elasticmq"),
                ports::ELASTICMQ,
                Lifetime::Detached,
            ),
        }
    }
}

impl Servers {
    fn discard_old_data(&self) -> Result<()> {
        if self.rabbitmq.process.pid().is_none() {
            // Its name daemon survives a kill, and is found by a file in the folder.
            self.rabbitmq.stop()?;
        }
        let processes = [
            &self.postgres_15.process,
            &self.postgres_18.process,
            &self.mysql.process,
            &self.mariadb.process,
            &self.kafka.process,
            &self.rabbitmq.process,
            &self.elasticmq.process,
        ];
        for process in processes.into_iter().filter(|process| process.pid().is_none()) {
            if process.folder().exists() {
                fs::remove_dir_all(process.folder())?;
            }
        }
        Ok(())
    }
}

fn timed(name: &str, start: impl FnOnce() -> Result<()>) -> Result<()> {
    let begin = Instant::now();
    start()?;
    eprintln!("{name} is up ({:.1} s)", begin.elapsed().as_secs_f64());
    Ok(())
}

fn all(results: Vec<Result<()>>) -> Result<()> {
    let errors: Vec<String> =
        results.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n").into()) }
}
