//! Each built-in kind on its real server, in one daemon.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use outbox::NewEvent;
use outbox::kafka::rdkafka::ClientConfig;
use outbox::kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use outbox::kafka::rdkafka::client::DefaultClientContext;
use outbox::mysql::sqlx::MySqlPool;
use outbox::mysql::{MySqlConfig, MySqlOutbox};
use outbox::postgres::sqlx::{AssertSqlSafe, PgPool, raw_sql};
use outbox::postgres::{PostgresConfig, PostgresOutbox};
use outbox::{mysql, postgres};
use tokio::runtime::Runtime;

use crate::program::{Program, command, eventually};
use crate::shop::{Folder, HEAD};

const EVENTS: u64 = 3;

#[test]
fn one_daemon_delivers_from_three_databases_to_three_brokers() {
    let name = format!("outbox_{:016x}", fastrand::u64(..));
    let runtime = Runtime::new().unwrap();
    let (postgres, mysql, mariadb) = runtime.block_on(async {
        create_topic(&name).await;
        (
            in_postgres(&server("OUTBOX_TEST_POSTGRES_URL"), &name).await,
            in_mysql(&server("OUTBOX_TEST_MYSQL_URL"), &name).await,
            in_mysql(&server("OUTBOX_TEST_MARIADB_URL"), &name).await,
        )
    });
    create_sqs_queue(&name);
    let (kafka, rabbitmq) =
        (server("OUTBOX_TEST_KAFKA_BOOTSTRAP"), server("OUTBOX_TEST_RABBITMQ_URL"));
    let head = |pipeline: &str| {
        format!(
            "[[pipeline]]\nname = {pipeline:?}\nrouting.default = {name:?}\n[pipeline.source]\n"
        )
    };
    let folder = Folder::new();
    let file = folder.file(&format!(
        "{HEAD}\
         {}kind = \"postgres\"\nurl = {postgres:?}\n\
         [pipeline.publisher]\nkind = \"kafka\"\nbootstrap_servers = {kafka:?}\n\
         {}kind = \"mysql\"\nurl = {mysql:?}\n\
         [pipeline.publisher]\nkind = \"rabbitmq\"\nurl = {rabbitmq:?}\nrouting.to = \"queue\"\n\
         queues = [{{ name = {name:?}, type = \"classic\" }}]\n\
         {}kind = \"mysql\"\nurl = {mariadb:?}\n\
         [pipeline.publisher]\nkind = \"sqs\"\n",
        head("one"),
        head("two"),
        head("three"),
    ));

    let output = command(&["check", "--config", file.to_str().unwrap()]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}");
    assert_eq!(told.matches(": well").count(), 6, "{told}");

    let mut daemon = Program::run(&file);
    for pipeline in ["one", "two", "three"] {
        eventually(pipeline, || {
            let status = daemon.json(&format!("/api/v1/pipelines/{pipeline}"));
            (status["delivered"] == EVENTS).then_some(())
        });
    }
    daemon.signal("TERM");
    assert_eq!(daemon.ended().code(), Some(0));
    runtime.block_on(drop_databases(&name));
}

/// The address of a shared test server.
#[track_caller]
fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services start)\"` first")
    })
}

/// Makes a database with an outbox and events in it, and returns its URL.
async fn in_postgres(server: &str, name: &str) -> String {
    let administrator = PgPool::connect(server).await.unwrap();
    let create = AssertSqlSafe(format!("create database {name}"));
    raw_sql(create).execute(&administrator).await.unwrap();
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    let config = PostgresConfig::from_url(&url).unwrap();
    postgres::Schema::new(&config).unwrap().migrate().await.unwrap();
    let pool = PgPool::connect(&url).await.unwrap();
    let outbox = PostgresOutbox::new(&config).unwrap();
    let mut transaction = outbox.begin(&pool).await.unwrap();
    outbox.append(&mut transaction, &events()).await.unwrap();
    outbox.commit(transaction).await.unwrap();
    url
}

async fn in_mysql(server: &str, name: &str) -> String {
    let administrator = MySqlPool::connect(server).await.unwrap();
    let create = AssertSqlSafe(format!("create database {name}"));
    raw_sql(create).execute(&administrator).await.unwrap();
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    let config = MySqlConfig::from_url(&url).unwrap();
    mysql::Schema::new(&config).unwrap().migrate().await.unwrap();
    let pool = MySqlPool::connect(&url).await.unwrap();
    let outbox = MySqlOutbox::new(&config).unwrap();
    let mut transaction = outbox.begin(&pool).await.unwrap();
    outbox.append(&mut transaction, &events()).await.unwrap();
    outbox.commit(transaction).await.unwrap();
    url
}

async fn drop_databases(name: &str) {
    let postgres = PgPool::connect(&server("OUTBOX_TEST_POSTGRES_URL")).await.unwrap();
    let forced = AssertSqlSafe(format!("drop database {name} with (force)"));
    raw_sql(forced).execute(&postgres).await.unwrap();
    for variable in ["OUTBOX_TEST_MYSQL_URL", "OUTBOX_TEST_MARIADB_URL"] {
        let mysql = MySqlPool::connect(&server(variable)).await.unwrap();
        raw_sql(AssertSqlSafe(format!("drop database {name}"))).execute(&mysql).await.unwrap();
    }
}

fn events() -> Vec<NewEvent> {
    let event = |number: u64| {
        NewEvent::builder("order", format!("order-{number}"), "Paid").payload("{}").build()
    };
    (0..EVENTS).map(|number| event(number).unwrap()).collect()
}

async fn create_topic(name: &str) {
    let bootstrap = server("OUTBOX_TEST_KAFKA_BOOTSTRAP");
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let topic = NewTopic::new(name, 1, TopicReplication::Fixed(1));
    for result in admin.create_topics([&topic], &AdminOptions::new()).await.unwrap() {
        result.unwrap();
    }
}

fn create_sqs_queue(name: &str) {
    let endpoint = server("OUTBOX_TEST_SQS_ENDPOINT");
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let body = format!("Action=CreateQueue&QueueName={name}&Version=2012-11-05");
    let mut connection = TcpStream::connect(address).unwrap();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
