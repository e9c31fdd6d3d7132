//! The tables: created once, compared, refused, adopted.

use outbox_core::{Pipeline, Store as _, StoreErrorKind, TypeFilter};
use outbox_postgres::PayloadType;

use crate::claim::buffers_of;
use crate::common::{LEASE, Outbox, event, everything, run, worker};

const SERVERS: [&str; 2] = ["OUTBOX_TEST_POSTGRES_URL", "OUTBOX_TEST_POSTGRES_NEW_URL"];

/// H082: any number of processes may start at once.
#[tokio::test(flavor = "multi_thread")]
async fn eight_migrations_at_once_make_one_schema() {
    for server in SERVERS {
        let outbox = Outbox::bare(server, |config| config.with_schema("shop")).await;
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let schema = outbox.schema();
            tasks.push(tokio::spawn(async move { schema.migrate().await }));
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(outbox.schema().check().await.unwrap(), []);
        outbox.schema().migrate().await.unwrap();
        outbox.store().join(&worker("w")).await.unwrap();
    }
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables() {
    for payload in [PayloadType::Json, PayloadType::Jsonb, PayloadType::Text, PayloadType::Bytea] {
        let outbox = Outbox::bare("OUTBOX_TEST_POSTGRES_NEW_URL", |config| {
            config.with_payload(payload).with_lanes(7).with_table("my \"events\"")
        })
        .await;
        outbox.execute(&outbox.schema().sql()).await;
        outbox.execute(&outbox.schema().sql()).await;
        assert_eq!(outbox.schema().check().await.unwrap(), []);
        assert_eq!(outbox.store().join(&worker("w")).await.unwrap(), 7);
    }
}

/// H084, B102, H007, H085, H086, L1: each change is named.
#[tokio::test]
async fn each_drift_is_named() {
    for server in SERVERS {
        let outbox = Outbox::bare(server, |config| config).await;
        for (change, named) in [
            ("alter table outbox alter created_at drop default", "outbox.created_at"),
            ("alter table outbox alter created_at set default now()", "outbox.created_at"),
            ("alter table outbox alter id drop default", "outbox.id"),
            ("alter table outbox alter type drop not null", "outbox.type"),
            ("alter table outbox alter payload type text", "outbox.payload"),
            ("alter table outbox alter attempts type bigint", "outbox.attempts"),
            ("alter table outbox alter aggregatetype type text collate \"POSIX\"", "outbox.aggregatetype"),
            ("alter table outbox alter lane drop expression", "outbox.lane"),
            (
                "drop index outbox_lane; alter table outbox drop lane cascade; alter table outbox add lane smallint not null
                 generated always as ((abs(hashtext(aggregateid)) % 16)::smallint) stored;
                 create index on outbox (lane, position)",
                "outbox.lane",
            ),
            ("alter table outbox drop last_error", "outbox.last_error"),
            ("alter table outbox add tenant text not null", "outbox.tenant"),
            ("alter table outbox add published_at timestamptz", "outbox.published_at"),
            ("drop index outbox_lane", "(lane, position)"),
            ("drop index outbox_due", "(due_at)"),
            (
                "drop index outbox_waiting; create index outbox_waiting on outbox
                 (lane, aggregatetype, aggregateid, position) where due_at is not null",
                "attempts > 0",
            ),
            ("alter sequence outbox_position_seq cache 10", "cache 10"),
            ("alter sequence outbox_position_seq increment 2", "increment 2"),
            ("alter table outbox set unlogged", "unlogged"),
            ("alter table outbox enable row level security", "row-level security"),
            ("alter table outbox_lanes enable row level security", "row-level security"),
            ("alter table outbox_dead enable row level security", "row-level security"),
            ("alter table outbox_archive enable row level security", "row-level security"),
            ("alter table outbox_inbox enable row level security", "row-level security"),
            ("alter table outbox_meta enable row level security", "row-level security"),
            ("alter table outbox replica identity full", "replica identity"),
            (
                "create publication p for table outbox; alter table outbox replica identity nothing",
                "replica identity",
            ),
            ("drop table outbox_dead", "outbox_dead"),
            ("alter table outbox_archive drop destination", "outbox_archive.destination"),
            ("alter table outbox_workers alter lease_until drop not null", "outbox_workers.lease_until"),
            (
                "create table orders (id uuid primary key);
                 alter table outbox add foreign key (id) references orders on delete cascade",
                "foreign key",
            ),
        ] {
            let schema = format!("s{}", uuid::Uuid::new_v4().simple());
            let outbox = outbox.reconfigured(|config| config.with_schema(&schema).with_pool_size(2));
            outbox.schema().migrate().await.unwrap();
            let mut operator = outbox.session().await;
            run(&mut operator, &format!("set search_path = {schema}; {change}")).await;
            let drift = outbox.schema().check().await.unwrap();
            let text: Vec<_> = drift.iter().map(ToString::to_string).collect();
            assert!(text.iter().any(|line| line.contains(named)), "{change}: {text:?}");
            let error = outbox.store().join(&worker("w")).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{change}");
            assert!(error.to_string().contains(named), "{change}: {error}");
            run(&mut operator, "drop publication if exists p").await;
        }
    }
}

/// What costs time and breaks no promise is told by `check`, and stops no relay. H084
#[tokio::test]
async fn a_setting_of_storage_is_advice() {
    for (change, named) in [
        ("alter table outbox reset (autovacuum_vacuum_threshold)", "autovacuum_vacuum_threshold"),
        ("alter table outbox_lanes set (fillfactor = 100)", "fillfactor"),
        ("drop index outbox_dead_died_at", "(died_at)"),
        ("drop index outbox_archive_id", "(id)"),
    ] {
        let outbox = Outbox::new().await;
        outbox.execute(change).await;
        let drift = outbox.schema().check().await.unwrap();
        assert_eq!(drift.len(), 1, "{change}: {drift:?}");
        assert!(drift[0].to_string().contains(named), "{change}: {drift:?}");
        outbox.store().join(&worker("w")).await.unwrap();
    }
}

/// A name is data, whatever it holds. H162
#[tokio::test]
async fn any_name_of_a_schema_will_do() {
    for name in ["a $$ b", "it's \"quoted\"", "back\\slash", "$create$ %s"] {
        let outbox = Outbox::bare("OUTBOX_TEST_POSTGRES_URL", |config| config.with_schema(name));
        let outbox = outbox.await;
        outbox.execute(&outbox.schema().sql()).await;
        outbox.schema().migrate().await.unwrap();
        outbox.store().join(&worker("w")).await.unwrap();
    }
}

/// A start-up that changes nothing logs nothing: sqlx logs each notice of the server.
#[tokio::test]
async fn repeating_a_migration_is_silent() {
    use tracing_subscriber::layer::SubscriberExt as _;
    let log = Log::default();
    let subscriber = tracing_subscriber::registry().with(
        tracing_subscriber::fmt::layer().with_ansi(false).with_writer({
            let log = log.clone();
            move || log.clone()
        }),
    );
    let _guard = tracing::subscriber::set_default(subscriber);
    let outbox = Outbox::new().await;
    outbox.schema().migrate().await.unwrap();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("skipping"), "{text}");
}

#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Columns of the application's own that need no value are none of our business.
#[tokio::test]
async fn a_column_of_the_applications_own_is_allowed() {
    let outbox = Outbox::new().await;
    outbox.execute("alter table outbox add tenant text, add n int not null default 1").await;
    assert_eq!(outbox.schema().check().await.unwrap(), []);
}

/// History must never be published by accident.
#[tokio::test]
async fn a_table_with_a_history_is_refused_with_the_way_out() {
    let five = "id uuid, aggregatetype text, aggregateid text, type text, payload json";
    for (table, way_out) in [
        (format!("create table outbox ({five}, processed_at timestamptz)"), "processed_at"),
        (format!("create table outbox ({five}, publicado_em timestamptz)"), "publicado_em"),
        (format!("create table outbox ({five}, \"ProcessedOnUtc\" timestamptz)"), "ProcessedOnUtc"),
        (format!("create table outbox ({five}, status text)"), "status"),
        (format!("create table outbox ({five})"), "no column position"),
    ] {
        let outbox = Outbox::bare("OUTBOX_TEST_POSTGRES_URL", |config| config).await;
        outbox.execute(&table).await;
        for result in [outbox.schema().migrate().await, outbox.schema().adopt().await] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
            assert!(error.to_string().contains(way_out), "{error}");
            assert!(error.to_string().contains("setting table"), "{error}");
        }
        assert_eq!(outbox.count("pg_class where relname like 'outbox%'").await, 1);
    }
}

#[tokio::test]
async fn rows_from_before_are_refused_until_adopted() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1")]).await;
    outbox.execute("drop table outbox_meta").await;
    let error = outbox.schema().migrate().await.unwrap_err();
    assert!(error.to_string().contains("adopt"), "{error}");
    assert!(outbox.store().join(&worker("w")).await.is_err());
    outbox.schema().adopt().await.unwrap();
    outbox.store().join(&worker("w")).await.unwrap();
}

/// H067, H068: a copy of the database is noticed before anything is published.
#[tokio::test]
async fn a_clone_is_refused_until_adopted() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1")]).await;
    outbox.pool.close().await;
    let clone = Outbox::bare("OUTBOX_TEST_POSTGRES_URL", |config| config).await;
    let name = outbox.url.rsplit('/').next().unwrap();
    let copy = format!("{name}_copy");
    clone.execute(&format!("create database {copy} template {name}")).await;
    let url = outbox.url.replace(name, &copy);
    let clone = Outbox {
        config: outbox_postgres::PostgresConfig::from_url(&url).unwrap(),
        pool: sqlx::PgPool::connect_lazy(&url).unwrap(),
        url,
    };
    for error in [
        clone.store().join(&worker("w")).await.unwrap_err(),
        clone.schema().migrate().await.unwrap_err(),
        clone.schema().check().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
        assert!(error.to_string().contains("adopt"), "{error}");
    }
    clone.schema().adopt().await.unwrap();
    clone.store().join(&worker("w")).await.unwrap();
    assert_eq!(clone.store().claim(&everything(16)).await.unwrap().events.len(), 1);
}

#[tokio::test]
async fn a_new_timeline_is_refused_where_it_is_pinned() {
    let outbox = Outbox::new().await;
    outbox.execute("update outbox_meta set value = '000000FF' where key = 'timeline'").await;
    outbox.store().join(&worker("w")).await.unwrap();
    let pinned = outbox.reconfigured(|config| config.with_pin_timeline(true));
    let error = pinned.store().join(&worker("w")).await.unwrap_err();
    assert!(error.to_string().contains("timeline"), "{error}");
    pinned.schema().adopt().await.unwrap();
    pinned.store().join(&worker("w")).await.unwrap();
}

/// H009: the number of lanes is the table's.
#[tokio::test]
async fn another_number_of_lanes_is_refused() {
    let outbox = Outbox::new().await;
    let other = outbox.reconfigured(|config| config.with_lanes(8));
    let error = other.store().join(&worker("w")).await.unwrap_err();
    assert!(error.to_string().contains("set lanes to 16"), "{error}");
}

/// H086: the relay's role needs rights on the tables and on nothing else.
#[tokio::test]
async fn rights_on_the_tables_are_enough() {
    let outbox = Outbox::new().await;
    let role = format!("r{}", uuid::Uuid::new_v4().simple());
    let limited = outbox.reconfigured(|_| {
        let url = outbox.url.replace("postgres:postgres", &format!("{role}:x"));
        outbox_postgres::PostgresConfig::from_url(&url).unwrap()
    });
    outbox.execute(&format!("create role {role} login password 'x'")).await;
    let refused = limited.store().join(&worker("w")).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Misconfigured, "{refused}");
    outbox
        .execute(&format!(
            "grant select, insert, update, delete on all tables in schema public to {role}"
        ))
        .await;
    outbox.append(&[event("a", "1")]).await;
    let store = limited.store();
    let worker = worker("w");
    store.join(&worker).await.unwrap();
    store.acquire(&worker, 16).await.unwrap();
    let epoch = store.heartbeat(&worker, LEASE).await.unwrap().lanes[0].epoch;
    let events = store.claim(&everything(16)).await.unwrap().events;
    let settled = store.settle(&crate::common::delivered(&worker, epoch, &events)).await.unwrap();
    assert_eq!(settled.missing, 0);
    assert_eq!(store.probe(0).await.unwrap().writers, []);
    assert!(store.backlog(&crate::common::pipeline(), 10).await.unwrap().is_some());
    store.leave(&worker).await.unwrap();
}

/// H086: a right that is missing is told before anything is published.
#[tokio::test]
async fn each_missing_right_is_named() {
    let outbox = Outbox::with(|config| config.with_keep(outbox_postgres::Keep::Archive)).await;
    let role = format!("r{}", uuid::Uuid::new_v4().simple());
    outbox.execute(&format!("create role {role} login password 'x'")).await;
    let url = outbox.url.replace("postgres:postgres", &format!("{role}:x"));
    let limited = outbox.reconfigured(|_| {
        let config = outbox_postgres::PostgresConfig::from_url(&url).unwrap();
        config.with_keep(outbox_postgres::Keep::Archive)
    });
    for (right, table) in [
        ("insert", "outbox_dead"),
        ("update", "outbox_lanes"),
        ("insert", "outbox_lanes"),
        ("delete", "outbox_workers"),
        ("insert", "outbox_archive"),
        ("delete", "outbox"),
    ] {
        outbox
            .execute(&format!(
                "grant select, insert, update, delete on all tables in schema public to {role};
                 revoke {right} on {table} from {role}"
            ))
            .await;
        let error = limited.store().join(&worker("w")).await.unwrap_err();
        let (text, rights) = (error.to_string(), format!("rights of {role} on {table}"));
        assert!(text.contains(&rights) && text.contains(right), "{right} on {table}: {text}");
    }
}

/// Rows of other pipelines are not read without end. H078
#[tokio::test]
async fn the_backlog_of_one_type_reads_a_bounded_part_of_the_others() {
    let outbox = Outbox::with(|config| config.with_pool_size(2)).await;
    outbox
        .execute(
            "insert into outbox (aggregatetype, aggregateid, type, attempts, due_at)
             select 'bill', n, 'Paid', 1, 'infinity' from generate_series(1, 50000) n;
             insert into outbox_dead (position, id, aggregatetype, type, created_at, lane, attempts)
             select n, gen_random_uuid(), 'bill', 'Paid', now(), 0, 1 from generate_series(1, 50000) n",
        )
        .await;
    outbox.execute("vacuum analyze").await;
    let types = TypeFilter::Only(["order".to_owned()].into());
    let orders = Pipeline::with_types("orders", types).unwrap();
    let store = outbox.store();
    let buffers = buffers_of(&outbox, &store, async || {
        let backlog = store.backlog(&orders, 10).await.unwrap().unwrap();
        assert_eq!((backlog.pending, backlog.blocked, backlog.dead), (0, 0, 0));
    })
    .await;
    assert!(buffers < 500, "{buffers} buffers");
}

#[tokio::test]
async fn the_backlog_is_counted_up_to_its_cap() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let empty = store.backlog(&crate::common::pipeline(), 10).await.unwrap().unwrap();
    assert_eq!((empty.pending, empty.oldest, empty.blocked, empty.dead), (0, None, 0, 0));
    outbox.append(&(0..20).map(|_| event("a", "1")).collect::<Vec<_>>()).await;
    outbox
        .execute(
            "update outbox set due_at = 'infinity', attempts = 1 where position = 1;
             update outbox set created_at = clock_timestamp() - interval '1 h' where position = 2",
        )
        .await;
    let backlog = store.backlog(&crate::common::pipeline(), 10).await.unwrap().unwrap();
    assert_eq!((backlog.pending, backlog.blocked, backlog.dead), (10, 1, 0));
    let oldest = backlog.oldest.unwrap().as_secs();
    assert!((3600..3660).contains(&oldest), "{oldest}");
    let names: Vec<_> = backlog.table_bytes.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["live", "dead", "archive", "inbox"]);
    assert!(backlog.table_bytes.iter().all(|(_, bytes)| *bytes > 0), "{backlog:?}");
}

/// The server converts texts for the client, and refuses the whole claim when one row's cannot be.
#[tokio::test]
async fn a_database_without_an_encoding_is_refused() {
    let outbox = Outbox::bare("OUTBOX_TEST_POSTGRES_URL", |config| config).await;
    let name = format!("ascii_{}", uuid::Uuid::new_v4().simple());
    let create = "template template0 encoding 'SQL_ASCII' locale 'C'";
    outbox.execute(&format!("create database {name} {create}")).await;
    let (base, _) = outbox.url.rsplit_once('/').unwrap();
    let ascii = outbox.reconfigured(|_| {
        outbox_postgres::PostgresConfig::from_url(&format!("{base}/{name}")).unwrap()
    });
    ascii.schema().migrate().await.unwrap();
    let error = ascii.store().join(&worker("w")).await.unwrap_err();
    assert!(error.to_string().contains("SQL_ASCII"), "{error}");
}

/// A table of an earlier version gets what a purge needs, and until then `check` names it.
#[tokio::test]
async fn migrate_adds_the_index_of_the_inbox() {
    let outbox = Outbox::new().await;
    outbox.execute("drop index outbox_inbox_seen_at").await;
    let drift = outbox.schema().check().await.unwrap();
    assert_eq!(drift.len(), 1, "{drift:?}");
    assert!(!drift[0].hazard && drift[0].to_string().contains("outbox_inbox"), "{drift:?}");
    outbox.schema().migrate().await.unwrap();
    assert_eq!(outbox.schema().check().await.unwrap(), []);
}
