//! Private servers do to a test what they say: lose nothing by a crash, keep their address, end with their value.

use std::io::{BufRead, BufReader, ErrorKind::WouldBlock, Read};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use xtask::services::{Kafka, Postgres, PostgresVersion};

#[test]
fn a_killed_postgres_keeps_what_was_committed() {
    for version in [PostgresVersion::V15, PostgresVersion::V18] {
        let postgres = Postgres::start(version);
        let url = postgres.url();
        psql(&url, "create table kept (n int); insert into kept values (7)").unwrap();

        postgres.kill9();
        assert!(psql(&url, "select 1").is_err(), "a killed server must not answer");

        postgres.start_again();
        assert_eq!(psql(&url, "select n from kept").unwrap(), "7");
        assert_eq!(psql(&url, "show fsync").unwrap(), "on");
        assert_eq!(postgres.url(), url);
    }
}

#[test]
fn a_postgres_takes_settings_and_connections_with_verified_tls_and_without() {
    let postgres = Postgres::start_with(PostgresVersion::V15, &[("max_connections", "17")]);
    let ca = postgres.ca_certificate();
    let verified = format!("{}?sslmode=verify-full&sslrootcert={}", postgres.url(), ca.display());
    let plain = format!("{}?sslmode=disable", postgres.url());
    let is_tls = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";

    assert_eq!(psql(&postgres.url(), "show max_connections").unwrap(), "17");
    assert_eq!(psql(&verified, is_tls).unwrap(), "t");
    assert_eq!(psql(&plain, is_tls).unwrap(), "f");
}

#[test]
fn a_frozen_postgres_keeps_its_sessions_and_goes_on_when_thawed() {
    let postgres = Postgres::start(PostgresVersion::V15);
    let url = postgres.url();
    postgres.freeze();
    let question = std::thread::spawn(move || psql(&url, "select 1"));
    postgres.thaw();
    assert_eq!(question.join().unwrap().unwrap(), "1");
    postgres.freeze();
    postgres.stop();
    assert!(psql(&postgres.url(), "select 1").is_err());
}

#[test]
fn two_servers_of_one_test_are_strangers_and_end_with_their_values() {
    let first = Postgres::start(PostgresVersion::V15);
    let second = Postgres::start(PostgresVersion::V15);
    assert_ne!(first.port(), second.port());
    psql(&first.url(), "create table only_here ()").unwrap();
    assert!(psql(&second.url(), "table only_here").is_err());

    let port = first.port();
    drop(first);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(psql(&second.url(), "select 1").unwrap(), "1");
}

#[test]
fn a_server_ends_with_a_process_that_is_killed() {
    const HOLD: &str = "OUTBOX_TEST_HOLD_A_SERVER";
    if std::env::var_os(HOLD).is_some() {
        let postgres = Postgres::start(PostgresVersion::V15);
        println!("\nport {}", postgres.port());
        std::thread::park();
    }
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["a_server_ends_with_a_process_that_is_killed", "--exact", "--nocapture"])
        .env(HOLD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
    let port: u16 = lines
        .filter_map(|line| line.strip_prefix("port ")?.parse().ok())
        .next()
        .expect("the holder prints its port");
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();

    holder.kill().unwrap(); // SIGKILL: nothing of ours is dropped
    holder.wait().unwrap();
    // A dying server closes the connection, some with a last word; a living one waits for us to speak.
    connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let end = connection.read_to_end(&mut Vec::new());
    assert!(!end.is_err_and(|e| e.kind() == WouldBlock), "the server lives");
}

#[test]
fn a_killed_kafka_keeps_its_topics() {
    let kafka = Kafka::start();
    kafka.create_topic("kept", 3);

    kafka.kill9();
    assert!(TcpStream::connect(kafka.bootstrap()).is_err(), "a killed broker must not answer");

    kafka.start_again();
    let again = std::panic::catch_unwind(|| kafka.create_topic("kept", 3));
    let message = *again.expect_err("the topic is there").downcast::<String>().unwrap();
    assert!(message.contains("already exists"), "{message}");

    kafka.freeze();
    kafka.thaw();
    kafka.create_topic("another", 1);
    kafka.stop();
}

fn psql(url: &str, sql: &str) -> Result<String, String> {
    let output = Command::new("psql")
        .args(["-X", "-q", "-A", "-t", "-c", sql, url])
        .env("PGCONNECT_TIMEOUT", "10")
        .output()
        .expect("psql is installed");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}
