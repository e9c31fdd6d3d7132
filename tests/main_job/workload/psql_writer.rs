//! A service that knows no library: plain SQL, five columns, through a `psql` that stays open.

use std::process::Stdio;

use outbox::async_trait;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::ROLLED_BACK;
use crate::support::checker::Intent;
use crate::support::event_maker::EventMaker;
use crate::support::workload::Writer;

pub(crate) struct PsqlWriter {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    maker: EventMaker,
    _process: Child,
}

impl PsqlWriter {
    pub(crate) fn start(url: &str, maker: EventMaker) -> Self {
        let mut process = Command::new("psql")
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args(["--set=ON_ERROR_STOP=1", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("psql is installed: cargo xtask services install");
        let input = process.stdin.take().expect("it is piped");
        let output = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        Self { input, output, maker, _process: process }
    }

    async fn run(&mut self, script: &str) {
        self.input.write_all(script.as_bytes()).await.expect("psql runs");
    }

    async fn line(&mut self) -> String {
        let line = self.output.next_line().await.expect("psql prints UTF-8");
        line.expect("psql ended at an error, see above")
    }
}

#[async_trait]
impl Writer for PsqlWriter {
    /// psql tells the version that it got, so that the content is known only then.
    async fn transaction(&mut self) -> Vec<Intent> {
        let aggregate = self.maker.aggregates(1).remove(0);
        let committed = !self.maker.chance(ROLLED_BACK);
        let (kind, id) = &aggregate;
        self.run(&format!(
            "begin; update orders set version = version + 1 \
             where type = '{kind}' and id = '{id}' returning version;\n"
        ))
        .await;
        let version = self.line().await.parse().expect("psql prints the version");
        let mut intent = self.maker.plain_event(&aggregate, version);
        let end = if committed { "commit" } else { "rollback" };
        let insert = insert(&intent);
        self.run(&format!("{insert}\n{end};\n\\echo {end}\n")).await;
        assert_eq!(self.line().await, end);
        intent.committed = committed;
        vec![intent]
    }
}

fn insert(intent: &Intent) -> String {
    let literal = |value: &Option<Vec<u8>>| match value {
        Some(bytes) => {
            format!("'{}'", String::from_utf8(bytes.clone()).unwrap().replace('\'', "''"))
        }
        None => "null".to_owned(),
    };
    let (kind, id) = &intent.aggregate;
    let event_type = literal(&intent.content.headers[1].1);
    let payload = literal(&intent.content.payload);
    format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload) \
         values ('{}', '{kind}', '{id}', {event_type}, {payload});",
        intent.id
    )
}
