//! The tables. Why they are as they are: `docs/schema.md` and `docs/adr/0002-postgres-indexes-and-autovacuum.md`.

use crate::config::{Names, PostgresConfig, literal};

/// The version of the tables, in the meta table.
pub(crate) const VERSION: &str = "1";

/// Storage settings of the hot table, as in the catalogue.
pub(crate) const HOT: [(&str, &str); 6] = [
    ("autovacuum_vacuum_scale_factor", "0"),
    ("autovacuum_vacuum_threshold", "10000"),
    ("autovacuum_vacuum_insert_scale_factor", "0"),
    ("autovacuum_vacuum_insert_threshold", "100000"),
    ("autovacuum_analyze_scale_factor", "0"),
    ("autovacuum_analyze_threshold", "50000"),
];

/// Without these a table is no outbox.
pub(crate) const NEEDED: [&str; 12] = [
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
];

/// Everything, each statement for itself, safe to repeat.
pub(crate) fn create(config: &PostgresConfig) -> Vec<String> {
    let names = config.names();
    let Names { schema, live, lanes, workers, dead, archive, archive_rest, meta, inbox, .. } =
        &names;
    let payload = config.payload.as_sql();
    let count = config.lanes;
    let hot = HOT.map(|(name, value)| format!("{name} = {value}")).join(", ");
    let event = format!(
        "position bigint not null, id uuid not null, aggregatetype text collate \"C\" not null,
  aggregateid text collate \"C\", type text not null, payload {payload}, headers json,
  created_at timestamptz not null, lane smallint not null, attempts integer not null"
    );
    // `create schema if not exists` needs the right to create schemas although there is one. The body is a literal,
    // because a name may hold any dollar quote.
    let create_schema = format!(
        "begin if to_regnamespace({}) is null then create schema {schema}; end if; end",
        literal(schema)
    );
    let create_schema = format!("do {}", literal(&create_schema));
    let mut statements = vec![
        create_schema,
        format!(
            "create table if not exists {live} (
  position bigint generated always as identity (cache 1) primary key,
  id uuid not null default gen_random_uuid(),
  aggregatetype text collate \"C\" not null,
  aggregateid text collate \"C\",
  type text not null,
  payload {payload},
  headers json,
  created_at timestamptz not null default clock_timestamp(),
  lane smallint not null generated always as
    (((hashtextextended(coalesce(aggregateid, id::text), 0) & 9223372036854775807) % {count})::smallint) stored,
  attempts integer not null default 0,
  due_at timestamptz,
  last_error text
) with ({hot})"
        ),
        format!("create index if not exists {} on {live} (lane, position)", names.index("_lane")),
        format!(
            "create index if not exists {} on {live} (lane, aggregatetype, aggregateid, position) \
             where due_at is not null and attempts > 0",
            names.index("_waiting")
        ),
        format!(
            "create index if not exists {} on {live} (due_at) where due_at is not null",
            names.index("_due")
        ),
        format!(
            "create table if not exists {workers} (
  worker uuid primary key,
  pipeline text collate \"C\" not null,
  name text not null default '',
  types_rule text not null default 'all',
  types text[] not null default '{{}}',
  joined_at timestamptz not null default clock_timestamp(),
  lease_until timestamptz not null
) with (fillfactor = 50)"
        ),
        format!(
            "create table if not exists {lanes} (
  pipeline text collate \"C\" not null,
  lane smallint not null,
  owner uuid references {workers} on delete set null,
  epoch bigint not null default 0,
  crashes smallint not null default 0,
  primary key (pipeline, lane)
) with (fillfactor = 50)"
        ),
        format!(
            "create table if not exists {dead} (
  entry bigint generated always as identity primary key,
  {event},
  reason text,
  died_at timestamptz not null default clock_timestamp()
)"
        ),
        format!("create index if not exists {} on {dead} (died_at)", names.index("_dead_died_at")),
        format!(
            "create table if not exists {archive} (
  {event},
  destination text,
  settled_at timestamptz not null default clock_timestamp()
) partition by range (settled_at)"
        ),
        format!("create table if not exists {archive_rest} partition of {archive} default"),
        format!("create index if not exists {} on {archive} (id)", names.index("_archive_id")),
        format!(
            "create table if not exists {inbox} (
  consumer text collate \"C\" not null,
  event_id text collate \"C\" not null,
  seen_at timestamptz not null default clock_timestamp(),
  primary key (consumer, event_id)
)"
        ),
        format!(
            "create index if not exists {} on {inbox} (seen_at)",
            names.index("_inbox_seen_at")
        ),
        format!("create table if not exists {meta} (key text primary key, value text not null)"),
        format!(
            "insert into {meta} (key, value) values ('schema_version', '{VERSION}'), ('lanes', '{count}')
  on conflict (key) do nothing"
        ),
        adopt(config, "on conflict (key) do nothing"),
    ];
    if config.sequence {
        let Names { sequences, arrivals, .. } = &names;
        statements.push(format!(
            "create table if not exists {sequences} (
  aggregatetype text collate \"C\" not null,
  aggregateid text collate \"C\" not null,
  last bigint not null,
  primary key (aggregatetype, aggregateid)
) with (fillfactor = 50)"
        ));
        statements.push(format!(
            "create table if not exists {arrivals} (
  consumer text collate \"C\" not null,
  key text collate \"C\" not null,
  last bigint not null,
  primary key (consumer, key)
) with (fillfactor = 50)"
        ));
    }
    if config.unique_id {
        let index = names.index("_id");
        statements.insert(2, format!("create unique index if not exists {index} on {live} (id)"));
    }
    statements
}

/// Writes the identity of this database into the meta table.
pub(crate) fn adopt(config: &PostgresConfig, on_conflict: &str) -> String {
    let meta = config.names().meta;
    format!(
        "insert into {meta} (key, value)
  select 'system_identifier', system_identifier::text from pg_control_system()
  union all select 'database', oid || ' ' || datname from pg_database where datname = current_database()
  union all select 'timeline', left(pg_walfile_name(pg_current_wal_lsn()), 8)
  {on_conflict}"
    )
}

/// What is there before a migration. `columns` is null when there is no table of that name.
pub(crate) fn survey(config: &PostgresConfig) -> String {
    let Names { live, meta, .. } = config.names();
    let (live, meta) = (literal(&live), literal(&meta));
    format!(
        "select pg_is_in_recovery() as replica, to_regclass({meta}) is not null as ours,
                (select array_agg(attname::text) from pg_attribute
                  where attrelid = to_regclass({live}) and attnum > 0 and not attisdropped) as columns"
    )
}

/// Whether the table has a row.
pub(crate) fn has_rows(config: &PostgresConfig) -> String {
    format!("select exists (select from {})", config.names().live)
}

/// What the meta table says, beside what is true now.
pub(crate) fn identity(config: &PostgresConfig) -> String {
    let meta = config.names().meta;
    format!(
        "select (select value from {meta} where key = 'schema_version') as schema_version,
                (select value from {meta} where key = 'lanes') as lanes,
                (select value from {meta} where key = 'system_identifier') as system_then,
                (select system_identifier::text from pg_control_system()) as system_now,
                (select value from {meta} where key = 'database') as database_then,
                (select oid || ' ' || datname from pg_database where datname = current_database()) as database_now,
                (select value from {meta} where key = 'timeline') as timeline_then,
                case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end as timeline_now"
    )
}

/// Lets one migration at a time run on a schema; the others wait for as long as a statement of theirs may take. No
/// notices: what is there already is no news.
pub(crate) fn prepare(config: &PostgresConfig) -> String {
    let key = literal(&format!("migrate {}", config.names().live));
    format!(
        "set local client_min_messages = warning; set local lock_timeout = 0;
         select pg_advisory_xact_lock(hashtextextended({key}, 0));
         set local lock_timeout = {}",
        config.lock_timeout.as_millis()
    )
}
