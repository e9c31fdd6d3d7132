//! The statements of an inbox.

use outbox_core::InboxTable;
use sqlx::SqlStr;

use super::{NOW, safe};

/// A consumer marks an event as seen. ?1 event id, ?2 consumer where it has a column.
pub(crate) fn first_seen(inbox: &InboxTable) -> SqlStr {
    let inbox = inbox.quoted(|name| format!("\"{name}\""));
    let [columns, values] = inbox.mark("?1", "?2", NOW);
    let table = &inbox.table;
    safe(format!("insert into {table} ({columns}) values ({values}) on conflict do nothing"))
}

/// Accepts everything up to a number, and returns the last one that is accepted then. ?1 consumer, ?2 key, ?3 number.
pub(crate) fn accept(outbox: &str) -> SqlStr {
    safe(format!(
        "insert into \"{outbox}_arrivals\" (consumer, key, last) values (?1, ?2, ?3)
         on conflict do update set last = max(last, excluded.last) returning last"
    ))
}

/// Removes old marks, the oldest first. ?1 age in microseconds, ?2 how many.
pub(crate) fn purge(inbox: &InboxTable, seen_at: &str) -> SqlStr {
    let table = &inbox.table;
    let key: Vec<String> = inbox.key().iter().map(|column| format!("\"{column}\"")).collect();
    let key = key.join(", ");
    safe(format!(
        "delete from \"{table}\" where ({key}) in (
           select {key} from \"{table}\" where \"{seen_at}\" < {NOW} - ?1 order by \"{seen_at}\" limit ?2)"
    ))
}

/// What stands against a table as an inbox.
pub(crate) fn faults(inbox: &InboxTable) -> SqlStr {
    let table = &inbox.table;
    let (key, count) = (inbox.key(), inbox.key().len());
    let list = key.iter().map(|column| format!("'{column}'")).collect::<Vec<_>>().join(", ");
    safe(format!(
        "select 'its column ' || name || ' is of type ' || type || ': make it text' from pragma_table_xinfo('{table}')
          where name in ({list})
            and not (type like '%text%' or type like '%char%' or type like '%clob%')
         union all
         select 'it has no unique key, compared byte for byte, of exactly these columns: {key}'
          where exists (select 1 from pragma_table_xinfo('{table}')) and not exists (
                select 1 from pragma_index_list('{table}') l
                 where l.\"unique\" and not l.partial
                   and {count} = (select count(*) from pragma_index_xinfo(l.name) where key)
                   and {count} = (select count(*) from pragma_index_xinfo(l.name)
                                   where key and coll = 'BINARY' and name in ({list})))",
        key = key.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{ConnectOptions, Row};

    use super::*;
    use crate::config::SqliteConfig;
    use crate::sql::Sql;

    /// H205: a purge finds the old marks by the time, and each by its key.
    #[tokio::test]
    async fn a_purge_reads_no_more_than_it_removes() {
        let config = SqliteConfig::new("x");
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut connection = options.connect().await.unwrap();
        let schema = Sql::new(&config).unwrap().schema();
        sqlx::raw_sql(safe(schema)).execute(&mut connection).await.unwrap();
        let purge = purge(&config.inbox(), "seen_at");
        let explained = safe(format!("explain query plan {}", purge.as_str()));
        let plan = sqlx::query(explained).bind(0).bind(0).fetch_all(&mut connection).await.unwrap();
        let steps: Vec<String> = plan.iter().map(|step| step.get("detail")).collect();
        assert!(
            steps.iter().any(|step| step.contains("outbox_inbox_seen (seen_at<?)")),
            "{steps:?}"
        );
        assert!(!steps.iter().any(|step| step.contains("SCAN")), "{steps:?}");
    }
}
