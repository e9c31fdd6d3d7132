//! Statements of the archive's upkeep.

use outbox_core::Period;

use crate::config::{MySqlConfig, Names, literal, quote};

/// One upkeep of an archive at a time, until [`unlock`] or the end of the session. Nobody waits for it.
pub(crate) fn lock(config: &MySqlConfig) -> String {
    format!("select get_lock({}, 0) as locked", lock_name(config))
}

/// Gives the lock back.
pub(crate) fn unlock(config: &MySqlConfig) -> String {
    format!("do release_lock({})", lock_name(config))
}

fn lock_name(config: &MySqlConfig) -> String {
    format!("concat('outbox ', sha2({}, 224))", literal(&config.names().archive))
}

/// The partitions in their order: name, end in seconds since 1970 or MAXVALUE, and what time it is. None when it has none.
pub(crate) fn partitions(names: &Names) -> String {
    format!(
        "select partition_name, partition_description, unix_timestamp() from information_schema.partitions
          where table_schema = {} and table_name = {} and partition_name is not null
          order by partition_ordinal_position",
        literal(names.database()),
        literal(&names.plain("_archive"))
    )
}

/// The period that has begun and `?` more: the names of their partitions and their ends in seconds since 1970.
pub(crate) fn periods(period: Period) -> String {
    let begins = match period {
        Period::Week => "date(utc_timestamp()) - interval weekday(utc_timestamp()) day",
        Period::Month => "date(utc_timestamp()) - interval dayofmonth(utc_timestamp()) - 1 day",
        _ => "date(utc_timestamp())",
    };
    let one = period.as_sql();
    format!(
        "with recursive n as (select 1 as n union all select n + 1 from n where n <= ?)
         select concat('before_', date_format({begins} + interval n {one}, '%y%m%d')),
                timestampdiff(second, '1970-01-01', {begins} + interval n {one})
           from n order by n"
    )
}

/// How many rows are in a partition, up to `?`.
pub(crate) fn count(Names { archive, .. }: &Names, partition: &str) -> String {
    format!(
        "select count(*) from (select 1 from {archive} partition ({}) limit ?) as some",
        quote(partition)
    )
}

/// Makes partitions, out of the one without an end if there is one.
pub(crate) fn make(
    Names { archive, .. }: &Names,
    rest: Option<&str>,
    missing: &[(String, i64)],
) -> String {
    let mut parts: Vec<String> = missing
        .iter()
        .map(|(name, end)| format!("partition {} values less than ({end})", quote(name)))
        .collect();
    let Some(rest) = rest.map(quote) else {
        return format!("alter table {archive} add partition ({})", parts.join(", "));
    };
    parts.push(format!("partition {rest} values less than maxvalue"));
    format!("alter table {archive} reorganize partition {rest} into ({})", parts.join(", "))
}

/// Drops a partition with all its rows.
pub(crate) fn drop(Names { archive, .. }: &Names, partition: &str) -> String {
    format!("alter table {archive} drop partition {}", quote(partition))
}
