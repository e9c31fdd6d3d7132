//! What `check` compares: the catalogue with what the tables should be.

use outbox_core::{Drift, is_finish_marker};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection};

use crate::config::{MySqlConfig, Names, PayloadType};
use crate::row;
use crate::sql::{catalog, ddl};

/// Compares everything.
pub(crate) async fn find(
    connection: &mut MySqlConnection,
    config: &MySqlConfig,
) -> Result<Vec<Drift>, sqlx::Error> {
    let names = config.names();
    let mut drift = Vec::new();
    let columns = texts(&all(connection, catalog::columns(&names)).await?)?;
    for table in tables(config, &names) {
        compare_columns(&table, &columns, &mut drift);
    }
    let indexes = texts(&all(connection, catalog::indexes(&names)).await?)?;
    compare_indexes(config, &indexes, &mut drift);
    for hazard in texts(&all(connection, catalog::hazards(config)).await?)? {
        if let [what, found, expected] = &hazard[..] {
            drift.push(Drift::new(what, found, expected));
        }
    }
    if drift.is_empty() {
        let orphans = all(connection, catalog::rows_without_lane(&names)).await?;
        if row::int(&orphans[0], 0)? == Some(1) {
            let what = format!("column {}.lane", names.plain(""));
            let expected =
                "a number in every row: a trigger or an import set it; insert those rows anew";
            drift.push(Drift::new(what, "null in some rows, which nobody will publish", expected));
        }
    }
    Ok(drift)
}

async fn all(connection: &mut MySqlConnection, sql: String) -> Result<Vec<MySqlRow>, sqlx::Error> {
    sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_all(connection).await
}

fn texts(rows: &[MySqlRow]) -> Result<Vec<Vec<String>>, sqlx::Error> {
    use sqlx::Row as _;
    let text = |row: &MySqlRow| {
        (0..row.len()).map(|column| Ok(row::lossy(row, column)?.unwrap_or_default())).collect()
    };
    rows.iter().map(text).collect()
}

/// A table as it should be: each column's name and definition.
struct Table {
    name: String,
    columns: Vec<(&'static str, String)>,
    /// Whether an application may have columns of its own in it.
    open: bool,
}

fn tables(config: &MySqlConfig, names: &Names) -> Vec<Table> {
    const TEXT: &str = "varchar(255) bytewise";
    const NOW: &str = "datetime(6) not null default utc_timestamp(6)";
    let payload = match config.payload {
        PayloadType::LongText => "longtext bytewise",
        PayloadType::LongBlob => "longblob",
    };
    let lane =
        format!("smallint unsigned generated crc32(coalesce(aggregateid,id)) % {}", config.lanes);
    let holds = format!("int unsigned generated {}", ddl::HOLDS);
    let event = [
        ("position", "bigint not null"),
        ("id", "varchar(255) bytewise not null"),
        ("aggregatetype", "varchar(255) bytewise not null"),
        ("aggregateid", TEXT),
        ("type", "varchar(255) bytewise not null"),
        ("payload", payload),
        ("headers", "longtext bytewise"),
        ("created_at", "datetime(6) not null"),
        ("lane", "smallint unsigned not null"),
        ("attempts", "int unsigned not null"),
    ];
    let table = |suffix: &str, open: bool, columns: &[(&'static str, &str)]| Table {
        name: names.plain(suffix),
        open,
        columns: columns.iter().map(|(name, text)| (*name, (*text).to_owned())).collect(),
    };
    let with = |more: &[(&'static str, &'static str)]| [&event[..], more].concat();
    let mut tables = vec![
        table(
            "",
            true,
            &[
                ("position", "bigint not null auto_increment"),
                ("id", "varchar(255) bytewise not null default uuid()"),
                ("aggregatetype", "varchar(255) bytewise not null"),
                ("aggregateid", TEXT),
                ("type", "varchar(255) bytewise not null"),
                ("payload", payload),
                ("headers", "longtext bytewise"),
                ("created_at", NOW),
                ("lane", &lane),
                ("attempts", "int unsigned not null default 0"),
                ("due_at", "datetime(6)"),
                ("last_error", "text bytewise"),
                ("holds", &holds),
            ],
        ),
        table(
            "_workers",
            false,
            &[
                ("worker", "varchar(36) bytewise not null"),
                ("pipeline", "varchar(63) bytewise not null"),
                ("name", "text bytewise not null"),
                ("types_rule", "varchar(6) bytewise not null"),
                ("types", "longtext bytewise not null"),
                ("wants", "int unsigned"),
                ("joined_at", NOW),
                ("lease_until", "datetime(6) not null"),
            ],
        ),
        table(
            "_lanes",
            false,
            &[
                ("pipeline", "varchar(63) bytewise not null"),
                ("lane", "smallint unsigned not null"),
                ("owner", "varchar(36) bytewise"),
                ("epoch", "bigint not null default 0"),
                ("crashes", "smallint unsigned not null default 0"),
            ],
        ),
        table(
            "_dead",
            false,
            &with(&[
                ("entry", "bigint not null auto_increment"),
                ("reason", "text bytewise"),
                ("died_at", NOW),
            ]),
        ),
        table(
            "_archive",
            false,
            &with(&[
                ("destination", "text bytewise"),
                ("settled_at", "timestamp(6) not null default current_timestamp(6)"),
            ]),
        ),
        table(
            "_inbox",
            false,
            &[
                ("consumer", "varchar(255) bytewise not null"),
                ("event_id", "varchar(255) bytewise not null"),
                ("seen_at", NOW),
            ],
        ),
    ];
    if config.sequence {
        let of = |first, second| {
            [first, second, "last"].map(|name| match name {
                "last" => (name, "bigint not null"),
                _ => (name, "varchar(255) bytewise not null"),
            })
        };
        tables.push(table("_sequences", false, &of("aggregatetype", "aggregateid")));
        tables.push(table("_arrivals", false, &of("consumer", "key")));
    }
    tables
}

fn compare_columns(table: &Table, rows: &[Vec<String>], drift: &mut Vec<Drift>) {
    let found: Vec<(&str, &str)> = rows
        .iter()
        .filter(|row| row[0].eq_ignore_ascii_case(&table.name))
        .map(|row| (row[1].as_str(), row[2].as_str()))
        .collect();
    if found.is_empty() {
        drift.push(Drift::missing(&table.name));
        return;
    }
    for (name, expected) in &table.columns {
        let what = format!("column {}.{name}", table.name);
        match found.iter().find(|(found, _)| found == name) {
            None => drift.push(Drift::new(what, "missing", expected)),
            Some((_, found)) if plain(found) != plain(expected) => {
                drift.push(Drift::new(what, *found, expected));
            }
            Some(_) => {}
        }
    }
    for (name, definition) in found {
        if !table.open || table.columns.iter().any(|(expected, _)| *expected == name) {
            continue;
        }
        let what = format!("column {}.{name}", table.name);
        if is_finish_marker(name) {
            let expected = "no such column: a row is pending for as long as it is there";
            drift.push(Drift::new(what, "a finish marker", expected));
        } else if definition.contains(" not null")
            && !definition.contains(" default ")
            && !definition.contains(" generated ")
        {
            let expected = "a default or null allowed: an insert of the five columns must work";
            drift.push(Drift::new(what, definition, expected));
        }
    }
}

/// A definition without what the two servers write differently: brackets, quotes, the width of integers, `mod`.
fn plain(definition: &str) -> String {
    let mut text = definition
        .to_ascii_lowercase()
        .replace("utf8mb4_0900_bin", "bytewise")
        .replace("utf8mb4_nopad_bin", "bytewise")
        .replace(" mod ", " % ");
    while let Some(start) = text.find("int(") {
        let width = text[start + 3..].find(')').map_or(1, |end| end + 1);
        text.replace_range(start + 3..start + 3 + width, "");
    }
    text.chars().filter(|c| !c.is_whitespace() && !"`()'".contains(*c)).collect()
}

fn compare_indexes(config: &MySqlConfig, rows: &[Vec<String>], drift: &mut Vec<Drift>) {
    let names = config.names();
    let mut expected = vec![
        ("", "primary key (position)"),
        ("", "index outbox_lane (lane, holds, due_at, position)"),
        ("_workers", "primary key (worker)"),
        ("_lanes", "primary key (pipeline, lane)"),
        ("_dead", "primary key (entry)"),
        ("_dead", "index outbox_died_at (died_at)"),
        ("_archive", "index outbox_archived_id (id)"),
        ("_inbox", "primary key (consumer, event_id)"),
        ("_inbox", "index outbox_seen_at (seen_at)"),
        ("_meta", "primary key (name)"),
    ];
    if config.sequence {
        expected.push(("_sequences", "primary key (aggregatetype, aggregateid)"));
        expected.push(("_arrivals", "primary key (consumer, key)"));
    }
    for (suffix, index) in expected {
        let table = names.plain(suffix);
        let found = rows.iter().any(|row| row[0].eq_ignore_ascii_case(&table) && row[1] == index);
        if !found {
            drift.push(Drift::new(format!("index on {table}"), "missing", index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_servers_ways_of_writing_a_definition_are_one() {
        for (mysql, mariadb) in [
            ("bigint unsigned not null", "bigint(20) unsigned not null"),
            ("varchar(255) utf8mb4_0900_bin", "varchar(255) utf8mb4_nopad_bin"),
            (
                "smallint unsigned generated (crc32(coalesce(`aggregateid`,`id`)) % 16)",
                "smallint(5) unsigned generated crc32(coalesce(`aggregateid`,`id`)) MOD 16",
            ),
        ] {
            assert_eq!(plain(mysql), plain(mariadb));
        }
        assert_ne!(plain("varchar(255)"), plain("varchar(25)"));
        assert_ne!(plain("int unsigned"), plain("int"));
    }
}
