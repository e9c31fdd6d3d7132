//! The tables. Why they are as they are: `docs/schema-mysql.md` and the decision record on indexes in MySQL.

use crate::config::{MySqlConfig, Names, literal};

/// The version of the tables, in the meta table.
pub(crate) const VERSION: &str = "1";

/// Text that compares byte for byte, blanks at the end included, whatever the database's own collation is.
///
/// Each server reads the comment that is meant for it.
pub(crate) const TEXT: &str =
    "character set utf8mb4 collate /*!80017 utf8mb4_0900_bin */ /*M!100200 utf8mb4_nopad_bin */";

/// The due time of what never comes by itself. Of type `datetime`, because `timestamp` ends in 2038.
pub(crate) const NEVER: &str = "timestamp'9999-12-31 23:59:59.999999'";

/// What an aggregate that waits is found by: null unless the row waits for a retry. Part of the lane's index, so that
/// an event that is inserted, published and deleted pays for no other one.
pub(crate) const HOLDS: &str = "case when due_at is not null and attempts > 0 then crc32(concat(aggregatetype, aggregateid)) end";

/// Without these a table is no outbox.
pub(crate) const NEEDED: [&str; 13] = [
    "position",
    "id",
    "aggregatetype",
    "aggregateid",
    "type",
    "payload",
    "headers",
    "created_at",
    "lane",
    "attempts",
    "due_at",
    "last_error",
    "holds",
];

/// Everything, each statement for itself, safe to repeat.
///
/// `lane` may be null, although it never is: declared `not null`, every insert would fail as soon as the table has a
/// trigger `before insert`. It stands in no key, because MariaDB allows no generated column there.
pub(crate) fn create(config: &MySqlConfig) -> Vec<String> {
    let names = config.names();
    let Names { live, lanes, workers, dead, archive, meta, inbox, .. } = &names;
    let payload = match config.payload.as_sql() {
        "longtext" => format!("longtext {TEXT}"),
        bytes => bytes.to_owned(),
    };
    let count = config.lanes;
    let event = format!(
        "position bigint not null,
  id varchar(255) {TEXT} not null,
  aggregatetype varchar(255) {TEXT} not null,
  aggregateid varchar(255) {TEXT},
  type varchar(255) {TEXT} not null,
  payload {payload},
  headers longtext {TEXT},
  created_at datetime(6) not null,
  lane smallint unsigned not null,
  attempts int unsigned not null"
    );
    let mut statements = vec![
        format!(
            "create table if not exists {live} (
  position bigint not null auto_increment primary key,
  id varchar(255) {TEXT} not null default (uuid()),
  aggregatetype varchar(255) {TEXT} not null,
  aggregateid varchar(255) {TEXT},
  type varchar(255) {TEXT} not null,
  payload {payload},
  headers longtext {TEXT},
  created_at datetime(6) not null default (utc_timestamp(6)),
  lane smallint unsigned generated always as (crc32(coalesce(aggregateid, id)) % {count}) stored,
  attempts int unsigned not null default 0,
  due_at datetime(6),
  last_error text {TEXT},
  holds int unsigned generated always as ({HOLDS}) stored,
  key outbox_lane (lane, holds, due_at, position),
  check (id <> '')
) engine = innodb"
        ),
        format!(
            "create table if not exists {workers} (
  worker varchar(36) {TEXT} not null primary key,
  pipeline varchar(63) {TEXT} not null,
  name text {TEXT} not null,
  types_rule varchar(6) {TEXT} not null,
  types longtext {TEXT} not null,
  wants int unsigned,
  joined_at datetime(6) not null default (utc_timestamp(6)),
  lease_until datetime(6) not null
) engine = innodb"
        ),
        format!(
            "create table if not exists {lanes} (
  pipeline varchar(63) {TEXT} not null,
  lane smallint unsigned not null,
  owner varchar(36) {TEXT},
  epoch bigint not null default 0,
  crashes smallint unsigned not null default 0,
  primary key (pipeline, lane),
  foreign key (owner) references {workers} (worker) on delete set null
) engine = innodb"
        ),
        format!(
            "create table if not exists {dead} (
  entry bigint not null auto_increment primary key,
  {event},
  reason text {TEXT},
  died_at datetime(6) not null default (utc_timestamp(6)),
  key outbox_died_at (died_at)
) engine = innodb"
        ),
        format!(
            "create table if not exists {archive} (
  {event},
  destination text {TEXT},
  settled_at timestamp(6) not null default current_timestamp(6),
  key outbox_archived_id (id)
) engine = innodb
partition by range (floor(unix_timestamp(settled_at))) (partition rest values less than maxvalue)"
        ),
        format!(
            "create table if not exists {inbox} (
  consumer varchar(255) {TEXT} not null,
  event_id varchar(255) {TEXT} not null,
  seen_at datetime(6) not null default (utc_timestamp(6)),
  primary key (consumer, event_id),
  key outbox_seen_at (seen_at)
) engine = innodb"
        ),
        format!(
            "create table if not exists {meta} (
  name varchar(63) {TEXT} not null primary key,
  value text {TEXT} not null
) engine = innodb"
        ),
        format!(
            "insert ignore into {meta} (name, value) values ('schema_version', '{VERSION}'), ('lanes', '{count}')"
        ),
        format!("insert ignore into {meta} (name, value) {}", identity_now(&names)),
    ];
    if config.sequence {
        statements.extend(numbers(&names));
    }
    statements
}

/// The tables of numbered events: the last number of each aggregate, and the last one that a consumer has accepted.
fn numbers(Names { sequences, arrivals, .. }: &Names) -> [String; 2] {
    [(sequences, "aggregatetype", "aggregateid"), (arrivals, "consumer", "`key`")].map(
        |(table, first, second)| {
            format!(
                "create table if not exists {table} (
  {first} varchar(255) {TEXT} not null,
  {second} varchar(255) {TEXT} not null,
  last bigint not null,
  primary key ({first}, {second})
) engine = innodb"
            )
        },
    )
}

/// Writes the identity of this database into the meta table.
pub(crate) fn adopt(config: &MySqlConfig) -> String {
    let names = config.names();
    format!("replace into {} (name, value) {}", names.meta, identity_now(&names))
}

/// MariaDB has no identity of a server that outlives a restart elsewhere.
const SERVER: &str = "/*!80000 @@server_uuid */ /*M! '' */";

fn identity_now(names: &Names) -> String {
    let database = literal(names.database());
    format!("select 'server', {SERVER} union all select 'database', {database}")
}

/// What is there before a migration: the columns of the table, and whether the meta table is there.
pub(crate) fn survey(config: &MySqlConfig) -> String {
    let names = config.names();
    let (database, live) = (literal(names.database()), literal(&names.plain("")));
    let meta = literal(&names.plain("_meta"));
    format!(
        "select @@global.read_only = 1 as replica,
                (select count(*) from information_schema.tables
                  where table_schema = {database} and table_name = {meta}) as ours,
                (select group_concat(lower(column_name) separator '\n') from information_schema.columns
                  where table_schema = {database} and table_name = {live}) as columns"
    )
}

/// Whether the table has a row.
pub(crate) fn has_rows(config: &MySqlConfig) -> String {
    format!("select exists (select 1 from {}) as found", config.names().live)
}

/// What the meta table says, beside what is true now.
pub(crate) fn identity(config: &MySqlConfig) -> String {
    let names = config.names();
    let meta = &names.meta;
    format!(
        "select (select value from {meta} where name = 'schema_version') as schema_version,
                (select value from {meta} where name = 'lanes') as lanes,
                (select value from {meta} where name = 'server') as server_then,
                {SERVER} as server_now,
                (select value from {meta} where name = 'database') as database_then,
                {} as database_now",
        literal(names.database())
    )
}

/// Lets one migration at a time run on a table. `$1` seconds to wait. A statement that makes a table ends a transaction, so that
/// no row's lock would last; this one lasts as long as the session.
pub(crate) fn lock(config: &MySqlConfig) -> String {
    format!("select get_lock({}, ?) as locked", lock_name(config))
}

/// Gives the lock back.
pub(crate) fn unlock(config: &MySqlConfig) -> String {
    format!("do release_lock({})", lock_name(config))
}

/// Names have 64 characters at most, and letters of either case are the same.
fn lock_name(config: &MySqlConfig) -> String {
    format!("concat('outbox ', sha2({}, 224))", literal(&config.names().live))
}
