//! What `check` compares: the catalogue with what the tables should be.

use outbox_core::{Drift, is_finish_marker};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::config::{Names, PostgresConfig};
use crate::sql::{catalog, ddl};

/// Compares everything.
pub(crate) async fn find(
    connection: &mut PgConnection,
    config: &PostgresConfig,
) -> Result<Vec<Drift>, sqlx::Error> {
    let names = config.names();
    let mut drift = Vec::new();
    let columns = all(connection, catalog::columns(&names)).await?;
    for table in tables(config, &names) {
        compare_columns(&table, &columns, &mut drift)?;
    }
    let found = all(connection, catalog::indexes(&names)).await?;
    compare_indexes(config, &names, &found, &mut drift)?;
    for row in all(connection, catalog::hazards(config)).await? {
        drift.push(Drift::new(
            row.try_get::<String, _>("what")?,
            row.try_get::<String, _>("found")?,
            row.try_get::<String, _>("expected")?,
        ));
    }
    let options = all(connection, catalog::options(&names)).await?;
    compare_options(&names, &options, &mut drift)?;
    Ok(drift)
}

async fn all(connection: &mut PgConnection, sql: String) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_all(connection).await
}

/// A table as it should be: each column as `name type [not null] [default …]`, written as the catalogue prints it.
struct Table {
    name: String,
    columns: Vec<(String, String)>,
    /// Whether an application may have columns of its own in it.
    open: bool,
}

fn tables(config: &PostgresConfig, names: &Names) -> Vec<Table> {
    let payload = config.payload.as_sql();
    let lane = format!(
        "smallint not null generated (((hashtextextended(COALESCE(aggregateid, (id)::text), (0)::bigint) & \
         '9223372036854775807'::bigint) % ({})::bigint))::smallint",
        config.lanes
    );
    let event = [
        ("position", "bigint not null"),
        ("id", "uuid not null"),
        ("aggregatetype", "text C not null"),
        ("aggregateid", "text C"),
        ("type", "text not null"),
        ("payload", payload),
        ("headers", "json"),
        ("created_at", "timestamp with time zone not null"),
        ("lane", "smallint not null"),
        ("attempts", "integer not null"),
    ];
    let now = "timestamp with time zone not null default clock_timestamp()";
    let time = "timestamp with time zone";
    let table = |name: &str, open: bool, columns: &[(&str, &str)]| Table {
        name: name.to_owned(),
        open,
        columns: columns.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
    };
    let with = |more: &[(&'static str, &'static str)]| [&event[..], more].concat();
    let identity = "bigint not null identity";
    let mut tables = vec![
        table(
            &names.plain(""),
            true,
            &[
                ("position", identity),
                ("id", "uuid not null default gen_random_uuid()"),
                ("aggregatetype", "text C not null"),
                ("aggregateid", "text C"),
                ("type", "text not null"),
                ("payload", payload),
                ("headers", "json"),
                ("created_at", now),
                ("lane", &lane),
                ("attempts", "integer not null default 0"),
                ("due_at", time),
                ("last_error", "text"),
            ],
        ),
        table(
            &names.plain("_workers"),
            false,
            &[
                ("worker", "uuid not null"),
                ("pipeline", "text C not null"),
                ("name", "text not null default ''::text"),
                ("types_rule", "text not null default 'all'::text"),
                ("types", "text[] not null default '{}'::text[]"),
                ("joined_at", now),
                ("lease_until", "timestamp with time zone not null"),
            ],
        ),
        table(
            &names.plain("_lanes"),
            false,
            &[
                ("pipeline", "text C not null"),
                ("lane", "smallint not null"),
                ("owner", "uuid"),
                ("epoch", "bigint not null default 0"),
                ("crashes", "smallint not null default 0"),
            ],
        ),
        table(
            &names.plain("_dead"),
            false,
            &with(&[("entry", identity), ("reason", "text"), ("died_at", now)]),
        ),
        table(
            &names.plain("_archive"),
            false,
            &with(&[("destination", "text"), ("settled_at", now)]),
        ),
        table(
            &names.plain("_inbox"),
            false,
            &[("consumer", "text C not null"), ("event_id", "text C not null"), ("seen_at", now)],
        ),
    ];
    if config.sequence {
        let last = ("last", "bigint not null");
        let of = |a, b| [(a, "text C not null"), (b, "text C not null"), last];
        tables.push(table(&names.plain("_sequences"), false, &of("aggregatetype", "aggregateid")));
        tables.push(table(&names.plain("_arrivals"), false, &of("consumer", "key")));
    }
    tables
}

fn compare_columns(
    table: &Table,
    rows: &[PgRow],
    drift: &mut Vec<Drift>,
) -> Result<(), sqlx::Error> {
    let mut found: Vec<(String, String)> = Vec::new();
    for row in rows {
        if row.try_get::<&str, _>("table")? == table.name {
            found.push((row.try_get("name")?, row.try_get("definition")?));
        }
    }
    if found.is_empty() {
        drift.push(Drift::missing(&table.name));
        return Ok(());
    }
    for (name, expected) in &table.columns {
        let what = format!("column {}.{name}", table.name);
        match found.iter().find(|(found, _)| found == name) {
            None => drift.push(Drift::new(what, "missing", expected)),
            Some((_, found)) if found != expected => {
                drift.push(Drift::new(what, found, expected));
            }
            Some(_) => {}
        }
    }
    for (name, definition) in &found {
        if !table.open || table.columns.iter().any(|(expected, _)| expected == name) {
            continue;
        }
        let what = format!("column {}.{name}", table.name);
        if is_finish_marker(name) {
            let expected = "no such column: a row is pending for as long as it is there";
            drift.push(Drift::new(what, "a finish marker", expected));
        } else if definition.contains(" not null") && !definition.contains(" default ") {
            let expected = "a default or null allowed: an insert of the five columns must work";
            drift.push(Drift::new(what, definition, expected));
        }
    }
    Ok(())
}

fn compare_indexes(
    config: &PostgresConfig,
    names: &Names,
    rows: &[PgRow],
    drift: &mut Vec<Drift>,
) -> Result<(), sqlx::Error> {
    let mut hazards = vec![
        ("", "primary key (position)"),
        ("", "index (lane, position)"),
        (
            "",
            "index (lane, aggregatetype, aggregateid, position) where ((due_at IS NOT NULL) AND (attempts > 0))",
        ),
        ("", "index (due_at) where (due_at IS NOT NULL)"),
        ("_workers", "primary key (worker)"),
        ("_lanes", "primary key (pipeline, lane)"),
        ("_dead", "primary key (entry)"),
        ("_inbox", "primary key (consumer, event_id)"),
    ];
    if config.sequence {
        hazards.push(("_sequences", "primary key (aggregatetype, aggregateid)"));
        hazards.push(("_arrivals", "primary key (consumer, key)"));
    }
    if config.unique_id {
        hazards.push(("", "unique index (id)"));
    }
    // They serve operators and purges only.
    let advice =
        [("_dead", "index (died_at)"), ("_archive", "index (id)"), ("_inbox", "index (seen_at)")];
    let expected = hazards.into_iter().map(|index| (index, true));
    for ((suffix, index), hazard) in expected.chain(advice.map(|index| (index, false))) {
        let table = names.plain(suffix);
        let mut found = false;
        for row in rows {
            found |= row.try_get::<&str, _>("table")? == table
                && row.try_get::<&str, _>("definition")? == index;
        }
        if !found {
            let missing = Drift::new(format!("index on {table}"), "missing or not valid", index);
            drift.push(if hazard { missing } else { missing.advice() });
        }
    }
    Ok(())
}

fn compare_options(
    names: &Names,
    rows: &[PgRow],
    drift: &mut Vec<Drift>,
) -> Result<(), sqlx::Error> {
    let hot = ddl::HOT.map(|(name, value)| ("", name, value));
    let half = [("_workers", "fillfactor", "50"), ("_lanes", "fillfactor", "50")];
    for (suffix, name, expected) in hot.into_iter().chain(half) {
        let table = names.plain(suffix);
        let mut found = "the server's default".to_owned();
        for row in rows {
            if row.try_get::<&str, _>("table")? == table && row.try_get::<&str, _>("name")? == name
            {
                found = row.try_get("value")?;
            }
        }
        if found != expected {
            let way_out = format!("{expected}: alter table … set ({name} = {expected})");
            let what = format!("setting {name} of {table}");
            drift.push(Drift::new(what, found, way_out).advice());
        }
    }
    Ok(())
}
