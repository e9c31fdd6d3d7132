//! The statements of an inbox.

use outbox_core::InboxTable;
use sqlx::SqlStr;

use super::{NOW, safe};

/// A consumer marks an event as seen. ?1 event id, ?2 consumer where it has a column.
pub(crate) fn first_seen(inbox: &InboxTable) -> SqlStr {
    let (mut columns, mut values) = (format!("\"{}\"", inbox.event_id), "?1".to_owned());
    let consumer = inbox.consumer().map(|column| (column, "?2"));
    let seen_at = inbox.seen_at.as_deref().map(|column| (column, NOW));
    for (column, value) in consumer.into_iter().chain(seen_at) {
        columns = format!("{columns}, \"{column}\"");
        values = format!("{values}, {value}");
    }
    let table = &inbox.table;
    safe(format!("insert into \"{table}\" ({columns}) values ({values}) on conflict do nothing"))
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
