//! Every statement of this adapter, in the order an event meets it.
//!
//! Times are whole microseconds since 1970 by SQLite's own clock, which reads milliseconds. All statements run on
//! SQLite 3.38 and later. Plans are fixed by `indexed by` and `cross join`, so that they do not hang on statistics.

mod ddl;
pub(crate) mod inbox;

use outbox_core::{MAX_RECORDS, StoreError, TypeFilter};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::config::SqliteConfig;

/// The clock. `unixepoch('subsec')` is younger (3.42) than the `sqlite3` of many systems, and a writer in another
/// language evaluates this too: as the default of `created_at`.
const NOW: &str = "(cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)";

/// Due never: blocked until an operator decides.
const NEVER: i64 = i64::MAX;

/// The conditions of a filter of dead letters. ?1 id, ?2 since, ?3 until, ?4 aggregate type, ?5 aggregate id, ?6 event type, ?7
/// text in the reason; null is any.
const FILTER: &str = "(?1 is null or id = ?1) and (?2 is null or died_at >= ?2) and (?3 is null or died_at < ?3)
                    and (?4 is null or aggregatetype = ?4) and (?5 is null or aggregateid = ?5)
                    and (?6 is null or type = ?6) and (?7 is null or instr(lower(reason), lower(?7)) > 0)";

/// What an event's record has wherever the event is.
const RECORD: &str = "id, position, aggregatetype, aggregateid, type, attempts, created_at";

/// Takes the write lock at once: a transaction that reads first and writes later fails with BUSY_SNAPSHOT as soon as
/// another has written in between, whatever the busy time-out.
pub(crate) const BEGIN: &str = "begin immediate";

/// The statements, with the names of the tables in them.
#[derive(Debug)]
pub(crate) struct Sql {
    table: String,
    lanes: u16,
    sequence: bool,
    pub(crate) draw_numbers: Option<SqlStr>,
    pub(crate) insert: SqlStr,
    pub(crate) insert_due: SqlStr,
    pub(crate) insert_text: String,
    pub(crate) overlapping: SqlStr,
    pub(crate) is_live: SqlStr,
    pub(crate) register: SqlStr,
    pub(crate) add_lane: SqlStr,
    pub(crate) owned: SqlStr,
    pub(crate) roster: SqlStr,
    pub(crate) is_registered: SqlStr,
    pub(crate) free_lanes_of_dead: SqlStr,
    pub(crate) forget_dead: SqlStr,
    pub(crate) take: SqlStr,
    pub(crate) release: SqlStr,
    pub(crate) release_all: SqlStr,
    pub(crate) leave: SqlStr,
    pub(crate) top: SqlStr,
    pub(crate) fence: SqlStr,
    pub(crate) archive: SqlStr,
    pub(crate) delete: SqlStr,
    pub(crate) wait: SqlStr,
    pub(crate) bury: SqlStr,
    pub(crate) recover: SqlStr,
    pub(crate) list_dead: SqlStr,
    pub(crate) count_dead: SqlStr,
    pub(crate) requeue: SqlStr,
    pub(crate) discard: SqlStr,
    pub(crate) list_blocked: SqlStr,
    pub(crate) unblock: SqlStr,
    /// The hold of a blocked head passes to the event behind it: relays have read past that one, and must see it before
    /// they see what is written from now on.
    pub(crate) pass_hold: SqlStr,
    pub(crate) discard_blocked: SqlStr,
    pub(crate) find: SqlStr,
    pub(crate) meta: SqlStr,
    pub(crate) set_meta: SqlStr,
}

impl Sql {
    pub(crate) fn new(config: &SqliteConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let table = &config.table;
        let t = format!("\"{table}\"");
        let lanes = format!("\"{table}_lanes\"");
        let workers = format!("\"{table}_workers\"");
        let dead = format!("\"{table}_dead\"");
        let archive = format!("\"{table}_archive\"");
        let meta = format!("\"{table}_meta\"");
        let sequences = format!("\"{table}_sequences\"");

        let insert = format!(
            "insert into {t} (id, aggregatetype, aggregateid, type, payload, headers)
             values (?1, ?2, ?3, ?4, ?5, ?6)"
        );
        Ok(Self {
            table: table.clone(),
            lanes: config.lanes,
            sequence: config.sequence,
            // ?1 [[aggregate type, aggregate id, count], …]. The write lock, which it takes, lasts until the commit.
            draw_numbers: config.sequence.then(|| {
                safe(format!(
                    "insert into {sequences} (aggregatetype, aggregateid, last)
                     select value ->> 0, value ->> 1, value ->> 2 from json_each(?1) where true
                     on conflict do update set last = last + excluded.last
                     returning aggregatetype, aggregateid, last"
                ))
            }),
            insert: safe(insert.clone()),
            insert_text: insert,
            // ?7 a time, or ?8 a delay from now
            insert_due: safe(format!(
                "insert into {t} (id, aggregatetype, aggregateid, type, payload, headers, due_at)
                 values (?1, ?2, ?3, ?4, ?5, ?6, coalesce(?7, {NOW} + ?8))"
            )),

            // Leases. One row per worker carries the lease; lane rows change with ownership only.
            overlapping: safe(format!(
                "select pipeline, types from {workers} where pipeline <> ?1 and lease_until >= {NOW}"
            )),
            is_live: safe(format!(
                "select 1 from {workers} where worker = ?1 and lease_until >= {NOW}"
            )),
            register: safe(format!(
                "insert into {workers} (worker, pipeline, name, types, lease_until)
                 values (?1, ?2, ?3, ?4, {NOW} + ?5)
                 on conflict (worker) do update set lease_until = excluded.lease_until"
            )),
            add_lane: safe(format!(
                "insert into {lanes} (pipeline, lane) values (?1, ?2) on conflict do nothing"
            )),
            owned: safe(format!(
                "select lane, epoch, crashes from {lanes} where pipeline = ?1 and owner = ?2 order by lane"
            )),
            roster: safe(format!(
                "select worker from {workers} where pipeline = ?1 and lease_until >= {NOW} order by worker"
            )),
            is_registered: safe(format!("select 1 from {workers} where worker = ?1")),
            free_lanes_of_dead: safe(format!(
                "update {lanes} set owner = null, crashes = min(crashes + 1, 65535)
                  where owner in (select worker from {workers} where lease_until < {NOW} and worker <> ?1)"
            )),
            // The clock has moved on since: who still has lanes is left for the next time.
            forget_dead: safe(format!(
                "delete from {workers} where lease_until < {NOW} and worker <> ?1
                    and not exists (select 1 from {lanes} where owner = worker)"
            )),
            // Every new owner raises the epoch, so that the fence refuses the one before.
            take: safe(format!(
                "update {lanes} set owner = ?2, epoch = epoch + 1
                  where pipeline = ?1 and lane in (
                    select lane from {lanes} where pipeline = ?1 and owner is null order by lane limit ?3)"
            )),
            release: safe(format!(
                "update {lanes} set owner = null
                  where pipeline = ?1 and owner = ?2 and lane in (select value from json_each(?3))"
            )),
            release_all: safe(format!("update {lanes} set owner = null where owner = ?1")),
            leave: safe(format!("delete from {workers} where worker = ?1")),

            // One writer at a time: positions appear in their order, so the highest one seen is all there is.
            top: safe(format!("select max(position) from {t}")),

            // Settle. The lists are JSON arrays of arrays that start with [position, id, lane].
            fence: safe(format!(
                "select l.lane from json_each(?3) h cross join {lanes} l
                     on l.pipeline = ?1 and l.lane = h.value ->> 0
                  where l.owner = ?2 and l.epoch = h.value ->> 1 order by l.lane"
            )),
            archive: safe(format!(
                "insert into {archive} (position, id, aggregatetype, aggregateid, type, payload, headers, created_at,
                        lane, attempts, destination)
                 select o.position, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.headers, o.created_at,
                        o.lane, o.attempts, r.value ->> 3
                   from {named}",
                named = named(&t)
            )),
            delete: safe(format!(
                "delete from {t} where position in (select o.position from {named})",
                named = named(&t)
            )),
            wait: safe(format!(
                "update {t} set attempts = r.attempts, last_error = r.reason,
                        due_at = case when r.delay is null then {NEVER} else {NOW} + r.delay end
                   from (select o.position as at, r.value ->> 3 as attempts, r.value ->> 4 as delay,
                                r.value ->> 5 as reason
                           from {named}) r
                  where position = r.at",
                named = named(&t)
            )),
            bury: safe(format!(
                "insert into {dead} (position, id, aggregatetype, aggregateid, type, payload, headers, created_at,
                        lane, attempts, reason)
                 select o.position, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.headers, o.created_at,
                        o.lane, r.value ->> 3, r.value ->> 4
                   from {named}",
                named = named(&t)
            )),
            recover: safe(format!(
                "update {lanes} set crashes = 0
                  where pipeline = ?1 and crashes > 0 and lane in (select value from json_each(?2))"
            )),

            // Operators.
            list_dead: safe(format!(
                "select entry, id, aggregatetype, aggregateid, type, payload, headers, attempts, reason, created_at,
                        died_at
                   from {dead} where {FILTER} and entry > ?8 order by entry limit ?9"
            )),
            count_dead: safe(format!("select count(*) from {dead} where {FILTER}")),
            // Back to its old place, so that what is behind it in its aggregate waits for it; a place that was drawn
            // again since (a file put back from a copy) is left to its new owner.
            requeue: safe(format!(
                "insert into {t} (position, id, aggregatetype, aggregateid, type, payload, headers, created_at,
                        attempts, due_at, last_error)
                 select case when exists (select 1 from {t} o where o.position = d.position) then null
                             else d.position end,
                        d.id, d.aggregatetype, d.aggregateid, d.type, d.payload, d.headers, d.created_at,
                        1, {NOW}, d.reason
                   from {dead} d where d.entry = ?1"
            )),
            discard: safe(format!("delete from {dead} where entry = ?1")),
            list_blocked: safe(format!(
                "select position, id, aggregatetype, aggregateid, type, attempts, last_error, created_at
                   from {t} indexed by \"{table}_due\"
                  where due_at is not null and due_at = {NEVER} and position > ?1 order by position limit ?2"
            )),
            unblock: safe(format!(
                "update {t} set attempts = 1, due_at = {NOW} where position = ?1 and due_at = {NEVER}"
            )),
            pass_hold: safe(format!(
                "update {t} set attempts = 1, due_at = {NOW}
                  where due_at is null and position = (
                        select o.position from {t} h join {t} o
                            on o.lane = h.lane and o.aggregatetype = h.aggregatetype
                               and o.aggregateid = h.aggregateid and o.position > h.position
                         where h.position = ?1 and h.due_at = {NEVER}
                               and (o.due_at is null or o.attempts > 0)
                         order by o.position limit 1)"
            )),
            discard_blocked: safe(format!("delete from {t} where position = ?1 and due_at = {NEVER}")),
            find: safe(format!(
                "select {RECORD}, 'live', due_at is not null and due_at = {NEVER}, due_at, last_error, null, null
                   from {t} where id = ?1
                 union all
                 select {RECORD}, 'dead', false, died_at, reason, entry, null from {dead} where id = ?1
                 union all
                 select {RECORD}, 'archive', false, settled_at, null, null, destination from {archive} where id = ?1
                 limit {MAX_RECORDS}"
            )),

            meta: safe(format!("select value from {meta} where key = ?1")),
            set_meta: safe(format!(
                "insert into {meta} (key, value) values (?1, ?2) on conflict do nothing"
            )),
        })
    }

    /// Reads `lanes` lanes in one snapshot: a plain read.
    ///
    /// Its first row is no event: it tells the clock and the file's identity, also when nothing else comes. Due rows
    /// come before fresh ones, so that the byte budget of a claim cannot starve them.
    ///
    /// ?1 types, ?2 known positions for the due rows, ?3 known positions for the fresh rows, ?4 [[lane, read], …],
    /// ?5 limit; then lane, from, to and take of each lane.
    pub(crate) fn claim(&self, lanes: usize, types: &TypeFilter) -> SqlStr {
        let table = &self.table;
        let columns = "o.position, o.lane, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.headers, \
                       o.created_at, o.attempts, o.due_at is not null";
        let of_types = match types {
            TypeFilter::Only(_) => "and o.aggregatetype in (select value from json_each(?1))",
            TypeFilter::Except(_) => "and o.aggregatetype not in (select value from json_each(?1))",
            _ => "",
        };
        let not_held = format!(
            "and not exists (select 1 from \"{table}\" w indexed by \"{table}_waiting\"
                              where w.aggregateid = o.aggregateid and w.aggregatetype = o.aggregatetype
                                and w.position < o.position and w.due_at is not null and w.attempts > 0)"
        );
        let fresh = (0..lanes)
            .map(|index| {
                let first = index * 4 + 6;
                let (lane, from, to, take) = (first, first + 1, first + 2, first + 3);
                format!(
                    "select * from (select {columns} from \"{table}\" o indexed by \"{table}_lane\"
                      where o.lane = ?{lane} and o.position > ?{from} and o.position <= ?{to} and o.due_at is null
                        and o.position not in (select value from json_each(?3)) {of_types} {not_held}
                      order by o.position limit ?{take})"
                )
            })
            .collect::<Vec<_>>()
            .join(" union all ");
        safe(format!(
            "select null, null, (select value from \"{table}_meta\" where key = 'identity'), null, null, null, null,
                    null, {NOW}, null, null
             union all
             select * from (
               with reads (lane, read) as materialized (select value ->> 0, value ->> 1 from json_each(?4))
               select {columns} from \"{table}\" o indexed by \"{table}_due\"
                where o.due_at is not null and o.due_at <= {NOW}
                  and exists (select 1 from reads r where r.lane = o.lane and r.read >= o.position)
                  and o.position not in (select value from json_each(?2)) {of_types} {not_held}
                order by o.due_at limit ?5)
             union all
             select * from ({fresh} limit ?5)"
        ))
    }

    /// Figures of the table, each counted up to ?2. Rows that do not count (of other pipelines, or scheduled) are read
    /// up to ten times as many, so that a full table costs no more than a busy one.
    pub(crate) fn backlog(&self, types: &TypeFilter) -> SqlStr {
        let table = &self.table;
        let of_types = match types {
            TypeFilter::Only(_) => "aggregatetype in (select value from json_each(?1))",
            TypeFilter::Except(_) => "aggregatetype not in (select value from json_each(?1))",
            _ => "true",
        };
        safe(format!(
            "select
               (select count(*) from (
                  select 1 from (select aggregatetype from \"{table}\" order by position limit ?2 * 10)
                   where {of_types} limit ?2)),
               (select {NOW} - min(created_at) from (
                  select * from (
                    select created_at from (
                      select created_at, due_at, aggregatetype from \"{table}\" order by position limit ?2 * 10)
                     where due_at is null and {of_types} limit 1)
                  union all
                  select * from (
                    select created_at from (
                      select created_at, aggregatetype from \"{table}\" indexed by \"{table}_due\"
                       where due_at is not null and due_at <= {NOW} order by due_at limit ?2)
                     where {of_types}))),
               (select count(*) from (
                  select 1 from (
                    select aggregatetype from \"{table}\" indexed by \"{table}_due\"
                     where due_at is not null and due_at = {NEVER} limit ?2 * 10)
                   where {of_types} limit ?2)),
               (select count(*) from (
                  select 1 from (select aggregatetype from \"{table}_dead\" order by entry limit ?2 * 10)
                   where {of_types} limit ?2))"
        ))
    }
}

/// The rows of the table that the list ?1 names by position, id and lane; `hex:` names an id that is no text.
fn named(table: &str) -> String {
    format!(
        "json_each(?1) r cross join {table} o on o.position = r.value ->> 0
          where o.lane = r.value ->> 2 and (o.id = r.value ->> 1 or 'hex:' || substr(hex(o.id), 1, 200) = r.value ->> 1)"
    )
}

/// The one place where statements are vouched for: table names are validated, everything else is bound.
/// Deletes what was delivered long ago, the oldest first. `?1` age in microseconds, `?2` how many.
pub(crate) fn purge_archive(table: &str) -> SqlStr {
    safe(format!(
        "delete from \"{table}_archive\" where entry in (
           select entry from \"{table}_archive\" where settled_at < {NOW} - ?1 order by settled_at limit ?2)"
    ))
}

pub(crate) fn safe(sql: String) -> SqlStr {
    AssertSqlSafe(std::sync::Arc::<str>::from(sql)).into_sql_str()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{ConnectOptions, Row};

    use super::*;

    /// Plans are fixed by the statements, not by statistics: no statement reads the outbox from end to end.
    #[tokio::test]
    async fn every_statement_of_the_relay_finds_its_rows_by_an_index() {
        let sql = Sql::new(&SqliteConfig::new("x")).unwrap();
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(safe(sql.schema())).execute(&mut connection).await.unwrap();
        let only = TypeFilter::Only(BTreeSet::from(["order".to_owned()]));
        let statements = [
            sql.claim(2, &TypeFilter::All),
            sql.claim(256, &only),
            sql.claim(2, &TypeFilter::Except(BTreeSet::new())),
            sql.archive.clone(),
            sql.delete.clone(),
            sql.wait.clone(),
            sql.bury.clone(),
            sql.top.clone(),
            sql.requeue.clone(),
            sql.list_blocked.clone(),
        ];
        for statement in statements {
            let explained = safe(format!("explain query plan {}", statement.as_str()));
            let mut query = sqlx::query(explained);
            for _ in 0..5 + 4 * 256 {
                query = query.bind("[]");
            }
            let plan = query.fetch_all(&mut connection).await.unwrap();
            let steps: Vec<String> = plan.iter().map(|step| step.get("detail")).collect();
            let scans =
                |step: &&String| ["SCAN o", "SCAN w", "SCAN outbox"].contains(&step.as_str());
            assert_eq!(steps.iter().find(scans), None, "{}", statement.as_str());
            assert!(steps.iter().any(|step| step.contains("SEARCH o")), "{steps:?}");
        }
    }
}
