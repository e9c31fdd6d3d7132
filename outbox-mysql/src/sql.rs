//! Every statement, in the order in which an event meets it.
//!
//! `?` parameters are named in each statement's text in their order. Lists travel as JSON, because MySQL has no arrays: the text
//! stays the same for every length, and so does the plan. `straight_join` and `force index` fix the plans: left to
//! itself the optimizer reads a whole lane for a settlement, and the whole table for a claim.

pub(crate) mod archive;
pub(crate) mod catalog;
pub(crate) mod ddl;

use std::sync::Arc;

use outbox_core::{InboxTable, MAX_RECORDS, TypeFilter};

use crate::config::{Keep, MySqlConfig, Names, literal};
use ddl::NEVER;

/// The columns of an event that move with it to the dead letters and to the archive.
const MOVED: &str =
    "position, id, aggregatetype, aggregateid, type, payload, headers, created_at, lane";

/// A worker's lease is live between now and a day from now: one further ahead was written by a broken clock.
const LIVE: &str =
    "lease_until > utc_timestamp(6) and lease_until < utc_timestamp(6) + interval 1 day";

/// Microseconds since 1970, of a time in UTC.
fn micros(time: &str) -> String {
    format!("timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', {time})")
}

/// Appends `rows` events in the caller's transaction, in their order.
///
/// Of each row: id, aggregate type, aggregate id, event type, payload, headers, delay in microseconds, due time in
/// microseconds since 1970. Positions rise in the order of the rows in every `innodb_autoinc_lock_mode`: their number
/// is known, so they are drawn at once.
pub(crate) fn append(config: &MySqlConfig, rows: usize) -> String {
    const ROW: &str = "(?, ?, ?, ?, ?, ?, coalesce(utc_timestamp(6) + interval ? microsecond, \
                       timestamp'1970-01-01 00:00:00' + interval ? microsecond))";
    format!(
        "insert into {} (id, aggregatetype, aggregateid, type, payload, headers, due_at) values {}",
        config.names().live,
        vec![ROW; rows].join(", ")
    )
}

/// Draws numbers for the events of `aggregates` aggregates, under a lock on each that lasts as long as the transaction. Of each
/// aggregate, in the order of the key: type, id, how many.
pub(crate) fn draw_numbers(Names { sequences, .. }: &Names, aggregates: usize) -> String {
    format!(
        "insert into {sequences} (aggregatetype, aggregateid, last) values {}
         on duplicate key update last = last + values(last)",
        vec!["(?, ?, ?)"; aggregates].join(", ")
    )
}

/// The last numbers that this transaction has drawn: it sees what it has written, whatever its isolation. Texts come as bytes,
/// which no session converts. Of each aggregate: type, id.
pub(crate) fn drawn_numbers(Names { sequences, .. }: &Names, aggregates: usize) -> String {
    let aggregate = format!("({AS_TEXT}, {AS_TEXT})");
    format!(
        "select cast(aggregatetype as binary), cast(aggregateid as binary), last from {sequences}
          where (aggregatetype, aggregateid) in ({})",
        vec![aggregate; aggregates].join(", ")
    )
}

/// Bytes as a text that is looked up in an index.
const AS_TEXT: &str = "convert(? using utf8mb4)";

/// The largest packet that the server takes, in bytes.
pub(crate) const MAX_ALLOWED_PACKET: &str = "select cast(@@max_allowed_packet as signed)";

/// The statements of a relay's store.
#[derive(Debug)]
pub(crate) struct Statements {
    names: Names,
    pub(crate) lock_joins: Arc<str>,
    pub(crate) live_pipelines: Arc<str>,
    pub(crate) create_lanes: Arc<str>,
    pub(crate) enrol: Arc<str>,
    pub(crate) beat: Arc<str>,
    pub(crate) owned: Arc<str>,
    pub(crate) roster: Arc<str>,
    pub(crate) expired: Arc<str>,
    pub(crate) loosen: Arc<str>,
    pub(crate) strike_off: Arc<str>,
    pub(crate) free: Arc<str>,
    pub(crate) take: Arc<str>,
    pub(crate) release: Arc<str>,
    pub(crate) leave: Arc<str>,
    pub(crate) fetch: Arc<str>,
    pub(crate) settle_delivered: Arc<str>,
    pub(crate) held: Arc<str>,
    pub(crate) fence: Arc<str>,
    pub(crate) archive: Arc<str>,
    pub(crate) gone: Arc<str>,
    pub(crate) later: Arc<str>,
    pub(crate) bury: Arc<str>,
    pub(crate) calm: Arc<str>,
    pub(crate) top: Arc<str>,
    pub(crate) lock_table: Arc<str>,
    pub(crate) writers: Arc<str>,
    backlogs: [Arc<str>; 3],
}

impl Statements {
    pub(crate) fn new(config: &MySqlConfig) -> Self {
        let names = config.names();
        let n = &names;
        let backlog = |types| Arc::from(backlog(n, config.lanes, types));
        Self {
            lock_joins: lock_joins(n).into(),
            live_pipelines: live_pipelines(n).into(),
            create_lanes: create_lanes(n, config.lanes).into(),
            enrol: enrol(n).into(),
            beat: beat(n).into(),
            owned: owned(n).into(),
            roster: roster(n).into(),
            expired: expired(n).into(),
            loosen: loosen(n).into(),
            strike_off: strike_off(n).into(),
            free: free(n).into(),
            take: take(n).into(),
            release: release(n).into(),
            leave: leave(n).into(),
            fetch: fetch(n).into(),
            settle_delivered: settle_delivered(n).into(),
            held: held(n).into(),
            fence: fence(n).into(),
            archive: archive(n).into(),
            gone: gone(n).into(),
            later: later(n).into(),
            bury: bury(n).into(),
            calm: calm(n).into(),
            top: top(n).into(),
            lock_table: lock_table(n).into(),
            writers: writers(n).into(),
            backlogs: [backlog(Types::All), backlog(Types::Only), backlog(Types::Except)],
            names,
        }
    }

    pub(crate) fn list(&self, shape: Shape<'_>) -> String {
        list(&self.names, shape)
    }

    pub(crate) fn backlog(&self, types: &TypeFilter) -> &Arc<str> {
        match types {
            TypeFilter::All => &self.backlogs[0],
            TypeFilter::Only(_) => &self.backlogs[1],
            TypeFilter::Except(_) => &self.backlogs[2],
        }
    }

    pub(crate) fn keeps(config: &MySqlConfig) -> bool {
        config.keep == Keep::Archive
    }
}

// Joining. One transaction: of two pipelines with overlapping types that join at once, the second sees the first.

/// Lets one join at a time look at the table's workers.
fn lock_joins(Names { meta, .. }: &Names) -> String {
    format!("select value from {meta} where name = 'lanes' for update")
}

/// The other pipelines that have live workers, and their types. Pipeline.
fn live_pipelines(Names { workers, .. }: &Names) -> String {
    format!(
        "select distinct pipeline, types_rule, types from {workers} where pipeline <> ? and {LIVE}"
    )
}

/// The pipeline's lanes. Pipeline, once for each lane.
fn create_lanes(Names { lanes, .. }: &Names, count: u16) -> String {
    let rows: Vec<String> = (0..count).map(|lane| format!("(?, {lane})")).collect();
    format!("insert ignore into {lanes} (pipeline, lane) values {}", rows.join(", "))
}

/// Enters a worker, or extends its lease. Worker, pipeline, name, rule, types, lease and again lease in microseconds.
fn enrol(Names { workers, .. }: &Names) -> String {
    format!(
        "insert into {workers} (worker, pipeline, name, types_rule, types, lease_until)
         values (?, ?, ?, ?, ?, utc_timestamp(6) + interval ? microsecond)
         on duplicate key update lease_until = utc_timestamp(6) + interval ? microsecond"
    )
}

// Leases. Lock order everywhere: workers, lanes by number, events.

/// Extends a lease that has not run out; commits by itself, so that nobody's lock on a lane can cost it. Lease in microseconds, worker.
fn beat(Names { workers, .. }: &Names) -> String {
    format!(
        "update {workers} set lease_until = utc_timestamp(6) + interval ? microsecond where worker = ? and {LIVE}"
    )
}

/// What the worker owns. Pipeline, worker.
///
/// `lock in share mode` (`for share` is unknown to MariaDB): behind a burial this waits and sees the lanes gone.
fn owned(Names { lanes, .. }: &Names) -> String {
    format!(
        "select lane, epoch, cast(crashes as signed) as crashes from {lanes} force index (primary)
          where pipeline = ? and owner = ? order by lane lock in share mode"
    )
}

/// The live workers of a pipeline in an order on which all agree. Pipeline.
fn roster(Names { workers, .. }: &Names) -> String {
    format!("select worker from {workers} where pipeline = ? and {LIVE} order by joined_at, worker")
}

/// Expired workers of a pipeline, locked. Pipeline, me.
///
/// `skip locked`: a worker that is just now extending its lease is not dead.
fn expired(Names { workers, .. }: &Names) -> String {
    format!(
        "select worker from {workers} where pipeline = ? and not ({LIVE}) and worker <> ?
          order by worker for update skip locked"
    )
}

/// Frees the lanes of a worker. The epoch rises here, under the lock that a settlement holds, so that none of the dead
/// owner's can follow. Pipeline, worker.
fn loosen(Names { lanes, .. }: &Names) -> String {
    format!(
        "update {lanes} force index (primary)
            set owner = null, epoch = epoch + 1, crashes = least(crashes + 1, 32767)
          where pipeline = ? and owner = ? order by lane"
    )
}

/// Strikes a worker off. Worker.
fn strike_off(Names { workers, .. }: &Names) -> String {
    format!("delete from {workers} where worker = ?")
}

/// Free lanes, locked. Pipeline, how many.
fn free(Names { lanes, .. }: &Names) -> String {
    format!(
        "select lane from {lanes} force index (primary) where pipeline = ? and owner is null
          order by lane limit ? for update skip locked"
    )
}

/// Takes a free lane. Me, pipeline, lane. A foreign-key violation says that I have been buried.
fn take(Names { lanes, .. }: &Names) -> String {
    format!(
        "update {lanes} set owner = ?, epoch = epoch + 1 where pipeline = ? and lane = ? and owner is null"
    )
}

/// Gives a lane back. Pipeline, lane, me.
fn release(Names { lanes, .. }: &Names) -> String {
    format!("update {lanes} set owner = null where pipeline = ? and lane = ? and owner = ?")
}

/// Signs off; what is still owned becomes free by the foreign key, without a crash. Me.
fn leave(Names { workers, .. }: &Names) -> String {
    format!("delete from {workers} where worker = ?")
}

/// What a claim's first statement looks like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) lanes: usize,
    pub(crate) types: &'a TypeFilter,
    /// Some row waits for a retry: aggregates must be looked at.
    pub(crate) held: bool,
    /// Some row is due.
    pub(crate) due: bool,
}

/// The claim's first statement: which positions there are. A plain read, and but for rows that wait it looks at nothing
/// but the index: so a reader that must begin at the start each time (a late commit may be anywhere) does not read all
/// rows that it knows again. All in one statement, because with several, a later one could see an event whose
/// predecessor the earlier one could not see yet.
///
/// Rows: kind 0 is the server (clock in microseconds, name, flags: 1 something waits, 2 something is due, 4 read-only);
/// kind 1 are the fresh positions of the request's lane `n`; kind 2 are due positions.
///
/// Parameters: the lanes, twice; with `due` twice (the lanes, the types, (lane, read) for each lane, limit) and once
/// limit; then of each lane: lane, from, to, the types, limit.
fn list(Names { live, .. }: &Names, shape: Shape<'_>) -> String {
    let lanes = placeholders(shape.lanes);
    let of_types = of_types(shape.types);
    let free = if shape.held {
        format!(
            "and not exists (
                select 1 from {live} w force index (outbox_lane)
                 where w.lane = o.lane and w.holds = crc32(concat(o.aggregatetype, o.aggregateid))
                   and w.aggregatetype = o.aggregatetype and w.aggregateid = o.aggregateid
                   and w.position < o.position)"
        )
    } else {
        String::new()
    };
    let mut sql = format!(
        "select 0 as kind, {now} as n, convert({SERVER} using utf8mb4) as list,
                exists (select 1 from {live} o force index (outbox_lane)
                         where o.lane in ({lanes}) and o.holds is not null)
                + 2 * exists (select 1 from {live} o force index (outbox_lane)
                               where o.lane in ({lanes}) and o.holds is null and o.due_at <= utc_timestamp(6))
                + 4 * (@@global.read_only = 1) as flags",
        now = micros("utc_timestamp(6)"),
    );
    if shape.due {
        let reads = "when ? then ? ".repeat(shape.lanes);
        let due = |holds: &str| {
            format!(
                "(select o.position, o.due_at from {live} o force index (outbox_lane)
                   where o.lane in ({lanes}) and o.holds {holds} and o.due_at <= utc_timestamp(6) {of_types}
                     and o.position <= case o.lane {reads} end {free}
                   order by o.due_at limit ?)"
            )
        };
        sql.push_str(&format!(
            " union all
             select 2, 0, convert(group_concat(p.position) using utf8mb4), 0
               from ({} union all {} order by due_at limit ?) p",
            due("is null"),
            due("is not null"),
        ));
    }
    for n in 0..shape.lanes {
        sql.push_str(&format!(
            " union all
             select 1, {n}, convert(group_concat(p.position) using utf8mb4), 0
               from (select o.position from {live} o force index (outbox_lane)
                      where o.lane = ? and o.holds is null and o.due_at is null
                        and o.position > ? and o.position <= ? {of_types} {free}
                      order by o.position limit ?) p"
        ));
    }
    sql
}

/// Which server answers.
const SERVER: &str = "/*!80000 @@server_uuid */ /*M!101100 @@server_uid */";

fn placeholders(count: usize) -> String {
    vec!["?"; count].join(", ")
}

fn of_types(types: &TypeFilter) -> String {
    match types {
        TypeFilter::Only(types) if types.is_empty() => "and false".to_owned(),
        TypeFilter::Only(types) => {
            format!("and o.aggregatetype in ({})", placeholders(types.len()))
        }
        TypeFilter::Except(types) if !types.is_empty() => {
            format!("and o.aggregatetype not in ({})", placeholders(types.len()))
        }
        _ => String::new(),
    }
}

/// Room in a packet for what a row has beside payload and headers, in bytes.
const ROW_REST: u32 = 64 * 1024;

/// The claim's second statement: the rows that are not known yet. Positions as a JSON array.
///
/// A row that the server could not send (its limit was lowered) comes without what is too large.
fn fetch(Names { live, .. }: &Names) -> String {
    let large = format!(
        "coalesce(length(o.payload), 0) + coalesce(length(o.headers), 0) > @@max_allowed_packet - {ROW_REST}"
    );
    format!(
        "select o.lane, o.position, o.id, o.aggregatetype, o.aggregateid, o.type,
                if({large}, null, o.payload), if({large}, null, o.headers), {created_at}, o.attempts,
                o.due_at is not null, {large}
           from json_table(?, '$[*]' columns (position bigint path '$')) p
           straight_join {live} o force index (primary) on o.position = p.position
          where o.due_at is null or o.due_at <= utc_timestamp(6)",
        created_at = micros("o.created_at"),
    )
}

/// A list of events as a table: `[position, lane, id, …]`.
fn named(more: &str) -> String {
    format!(
        "json_table(?, '$[*]' columns (position bigint path '$[0]', lane smallint unsigned path '$[1]',
                                       id varchar(255) character set utf8mb4 path '$[2]'{more}))"
    )
}

/// Lane, position and id must fit. The ids' bytes are compared: JSON has a collation of its own.
fn event_of(live: &str) -> String {
    format!("{live} o force index (primary) on o.position = d.position")
}

const SAME: &str = "o.lane = d.lane and cast(o.id as binary) = cast(d.id as binary)";

/// The settlement of delivered events alone: nearly every one. Events with their epoch, sorted by lane; pipeline, worker.
///
/// The lane rows are read by a statement that writes, and so locked until it is written, in `read committed` too: a
/// take-over waits for it, or makes it wait and then find the epoch changed.
fn settle_delivered(Names { live, lanes, .. }: &Names) -> String {
    format!(
        "delete o from {} d
           straight_join {lanes} f force index (primary)
              on f.pipeline = ? and f.lane = d.lane and f.epoch = d.epoch and f.owner = ?
           straight_join {} where {SAME}",
        named(", epoch bigint path '$[3]'"),
        event_of(live)
    )
}

/// Which of these lanes the worker owns. `[lane, epoch]` sorted by lane; pipeline, worker.
fn held(Names { lanes, .. }: &Names) -> String {
    format!(
        "select f.lane
           from json_table(?, '$[*]' columns (lane smallint unsigned path '$[0]', epoch bigint path '$[1]')) d
           straight_join {lanes} f force index (primary)
              on f.pipeline = ? and f.lane = d.lane and f.epoch = d.epoch and f.owner = ?"
    )
}

/// The same, locked until the settlement is written. Parameters as in [`held`]. MySQL must be told not to lock the list.
fn fence(names: &Names) -> String {
    format!("{} for update /*!80000 of f */", held(names))
}

/// Delivered events go to the archive. Events with their destination.
fn archive(Names { live, archive, .. }: &Names) -> String {
    format!(
        "insert into {archive} ({MOVED}, attempts, destination)
         select {}, o.attempts, d.destination from {} d straight_join {} where {SAME}",
        prefixed(MOVED),
        named(", destination text character set utf8mb4 path '$[3]'"),
        event_of(live)
    )
}

/// Events go. Events.
fn gone(Names { live, .. }: &Names) -> String {
    format!("delete o from {} d straight_join {} where {SAME}", named(""), event_of(live))
}

/// Events wait. Events with attempts, delay in microseconds or null for never, reason.
fn later(Names { live, .. }: &Names) -> String {
    format!(
        "update {} d straight_join {}
            set o.attempts = d.attempts, o.last_error = d.reason,
                o.due_at = if(d.delay is null, {NEVER}, utc_timestamp(6) + interval d.delay microsecond)
          where {SAME}",
        named(
            ", attempts int unsigned path '$[3]', delay bigint path '$[4]', reason text character set utf8mb4 path '$[5]'"
        ),
        event_of(live)
    )
}

/// Events become dead letters. Events with attempts and reason.
fn bury(Names { live, dead, .. }: &Names) -> String {
    format!(
        "insert into {dead} ({MOVED}, attempts, reason)
         select {}, d.attempts, d.reason from {} d straight_join {} where {SAME}",
        prefixed(MOVED),
        named(", attempts int unsigned path '$[3]', reason text character set utf8mb4 path '$[4]'"),
        event_of(live)
    )
}

/// Lanes whose crash count goes back to 0. Lanes, pipeline.
fn calm(Names { lanes, .. }: &Names) -> String {
    format!(
        "update json_table(?, '$[*]' columns (lane smallint unsigned path '$')) d
           straight_join {lanes} f force index (primary) on f.pipeline = ? and f.lane = d.lane
            set f.crashes = 0"
    )
}

fn prefixed(columns: &str) -> String {
    columns.split(", ").map(|column| format!("o.{column}")).collect::<Vec<_>>().join(", ")
}

/// How far the table goes. After, twice.
fn top(Names { live, .. }: &Names) -> String {
    format!(
        "select cast(coalesce((select position from {live} where position > ? order by position desc limit 1), ?)
                     as signed) as top,
                convert({SERVER} using utf8mb4) as server"
    )
}

/// Takes a writer's lock on the table, and nothing else.
fn lock_table(Names { live, .. }: &Names) -> String {
    format!("select position from {live} where false for update")
}

/// Who writes to the table: their transactions, and whether one is this session's.
///
/// INSERT takes the table's metadata lock before it draws a position, in a trigger too, and keeps it until its rows are
/// visible. A thread's name is no name of a transaction, so that its count of events is added.
fn writers(names: &Names) -> String {
    format!(
        "select concat(m.owner_thread_id, '/', coalesce(t.event_id, 0)) as writer,
                coalesce(h.processlist_id = connection_id(), false) as own
           from performance_schema.metadata_locks m
           left join performance_schema.events_transactions_current t
                  on t.thread_id = m.owner_thread_id and t.state = 'ACTIVE'
           left join performance_schema.threads h on h.thread_id = m.owner_thread_id
          where m.object_type = 'TABLE' and m.lock_status = 'GRANTED'
            and lower(m.object_schema) = lower({}) and lower(m.object_name) = lower({})
            and m.lock_type not in ('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')",
        literal(names.database()),
        literal(&names.plain(""))
    )
}

/// Locks that the server had no room to tell of.
pub(crate) const LOST_LOCKS: &str =
    "show global status like 'Performance_schema_metadata_lock_lost'";

/// The shape of a type filter in a statement for people's figures: the types travel as one JSON array.
#[derive(Clone, Copy)]
enum Types {
    All,
    Only,
    Except,
}

impl Types {
    fn condition(self) -> &'static str {
        match self {
            Self::All => "? is not null",
            Self::Only => "json_contains(?, json_quote(o.aggregatetype))",
            Self::Except => "not json_contains(?, json_quote(o.aggregatetype))",
        }
    }
}

/// Figures of one pipeline: types and cap, types, types and cap, types and cap.
fn backlog(names: &Names, lanes: u16, types: Types) -> String {
    let Names { live, dead, .. } = names;
    let of_types = types.condition();
    let lanes: Vec<String> = (0..lanes).map(|lane| lane.to_string()).collect();
    let lanes = lanes.join(", ");
    let size = |suffix: &str| {
        format!(
            "(select cast(coalesce(sum(data_length + index_length), 0) as signed) from information_schema.tables
               where table_schema = {} and table_name = {})",
            literal(names.database()),
            literal(&names.plain(suffix))
        )
    };
    format!(
        "select (select count(*) from (select 1 from {live} o where {of_types} limit ?) p) as pending,
                (select timestampdiff(microsecond, o.created_at, utc_timestamp(6)) from {live} o force index (primary)
                  where (o.due_at is null or o.due_at <= utc_timestamp(6)) and {of_types}
                  order by o.position limit 1) as oldest,
                (select count(*) from (select 1 from {live} o force index (outbox_lane)
                                        where o.lane in ({lanes}) and o.holds is not null and o.due_at = {NEVER}
                                          and {of_types} limit ?) b) as blocked,
                (select count(*) from (select 1 from {dead} o where {of_types} limit ?) d) as dead,
                {} as live_bytes, {} as dead_bytes, {} as archive_bytes, {} as inbox_bytes",
        size(""),
        size("_dead"),
        size("_archive"),
        size("_inbox"),
    )
}

/// The statements of operators.
#[derive(Debug)]
pub(crate) struct AdminStatements {
    pub(crate) list: Arc<str>,
    pub(crate) count: Arc<str>,
    pub(crate) lock: Arc<str>,
    pub(crate) requeue: Arc<str>,
    pub(crate) discard: Arc<str>,
    pub(crate) list_blocked: Arc<str>,
    pub(crate) unblock: Arc<str>,
    pub(crate) lock_blocked: Arc<str>,
    pub(crate) discard_blocked: Arc<str>,
    pub(crate) next: Arc<str>,
    pub(crate) hold: Arc<str>,
    pub(crate) find: Arc<str>,
}

impl AdminStatements {
    pub(crate) fn new(config: &MySqlConfig) -> Self {
        let names = config.names();
        let n = &names;
        Self {
            list: list_dead(n).into(),
            count: count_dead(n).into(),
            lock: lock_dead(n).into(),
            requeue: requeue(n).into(),
            discard: discard(n).into(),
            list_blocked: list_blocked(n).into(),
            unblock: unblock(n).into(),
            lock_blocked: lock_blocked(n).into(),
            discard_blocked: discard_blocked(n).into(),
            next: next(n).into(),
            hold: hold(n).into(),
            find: find(n).into(),
        }
    }
}

/// The conditions of a filter, each twice and null for any: since and until in microseconds since 1970, id, aggregate type,
/// aggregate id, event type, text in the reason.
const FILTER: &str =
    "(? is null or died_at >= timestamp'1970-01-01 00:00:00' + interval ? microsecond)
            and (? is null or died_at < timestamp'1970-01-01 00:00:00' + interval ? microsecond)
            and (? is null or id = ?)
            and (? is null or aggregatetype = ?) and (? is null or aggregateid = ?) and (? is null or type = ?)
            and (? is null or instr(lower(reason), lower(?)) > 0)";

/// The parameters of [`FILTER`], after, limit.
fn list_dead(Names { dead, .. }: &Names) -> String {
    format!(
        "select entry, id, aggregatetype, aggregateid, type, payload, headers, attempts, reason, {}, {}
           from {dead}
          where {FILTER} and entry > ?
          order by entry limit ?",
        micros("created_at"),
        micros("died_at"),
    )
}

/// The parameters of [`FILTER`].
fn count_dead(Names { dead, .. }: &Names) -> String {
    format!("select count(*) from {dead} where {FILTER}")
}

/// A dead letter, locked: of two operators one waits for the other and then finds nothing. Entry.
fn lock_dead(Names { dead, .. }: &Names) -> String {
    format!("select entry from {dead} where entry = ? for update")
}

/// A dead letter goes back, due at once. Entry.
///
/// It keeps its position, and so holds what was written after it; unless somebody else has that position by now
/// (`truncate` makes positions repeat).
fn requeue(Names { live, dead, .. }: &Names) -> String {
    let columns = "id, aggregatetype, aggregateid, type, payload, headers, created_at";
    format!(
        "insert into {live} (position, {columns}, attempts, due_at, last_error)
         select if(exists (select 1 from {live} o where o.position = d.position), null, d.position),
                {columns}, 1, utc_timestamp(6), reason
           from {dead} d where entry = ?"
    )
}

/// A dead letter goes for good. Entry.
fn discard(Names { dead, .. }: &Names) -> String {
    format!("delete from {dead} where entry = ?")
}

/// What says that a row is the blocked head of its aggregate.
fn blocked() -> String {
    format!("due_at = {NEVER} and attempts > 0")
}

/// After, limit.
fn list_blocked(Names { live, .. }: &Names) -> String {
    format!(
        "select position, id, aggregatetype, aggregateid, type, attempts, last_error, {} from {live}
          where {} and position > ? order by position limit ?",
        micros("created_at"),
        blocked()
    )
}

/// A blocked head is due at once, with all its tries before it. Position.
fn unblock(Names { live, .. }: &Names) -> String {
    format!(
        "update {live} set attempts = 1, due_at = utc_timestamp(6) where position = ? and {}",
        blocked()
    )
}

/// A blocked head, locked. Position.
fn lock_blocked(Names { live, .. }: &Names) -> String {
    format!("select position from {live} where position = ? and {} for update", blocked())
}

/// A blocked head goes for good. Position.
fn discard_blocked(Names { live, .. }: &Names) -> String {
    format!("delete from {live} where position = ?")
}

/// The next event of the aggregate of a head, and whether it waits for nothing. Position, twice.
fn next(Names { live, .. }: &Names) -> String {
    let next = |holds: &str| {
        format!(
            "(select o.position, o.due_at is null as fresh
                from {live} g straight_join {live} o force index (outbox_lane)
                  on o.lane = g.lane and {holds}
                 and o.aggregatetype = g.aggregatetype and o.aggregateid = g.aggregateid and o.position > g.position
               where g.position = ? order by o.position limit 1)"
        )
    };
    format!(
        "select position, fresh from ({} union all {}) n order by position limit 1",
        next("o.holds is null and o.due_at is null"),
        next("o.holds = g.holds"),
    )
}

/// The hold of a discarded head passes to the event behind it: relays have read past that one, and must see it before
/// they see what is written from now on. Position.
fn hold(Names { live, .. }: &Names) -> String {
    format!(
        "update {live} set attempts = 1, due_at = utc_timestamp(6) where position = ? and due_at is null"
    )
}

/// Where an event is. Id, three times.
fn find(Names { live, dead, archive, .. }: &Names) -> String {
    let created_at = micros("created_at");
    let event = format!("id, position, aggregatetype, aggregateid, type, attempts, {created_at}");
    format!(
        "select {event}, 'live', coalesce({blocked}, false), {due_at}, last_error, null, null from {live} where id = ?
         union all
         select {event}, 'dead', false, {died_at}, reason, entry, null from {dead} where id = ?
         union all
         select {event}, 'archive', false, {settled_at}, null, null, destination from {archive} where id = ?
         limit {MAX_RECORDS}",
        blocked = blocked(),
        due_at = micros("due_at"),
        died_at = micros("died_at"),
        // The one time of type `timestamp`; the sessions' zone is UTC.
        settled_at = micros("settled_at"),
    )
}

/// A consumer marks an event as seen. Event id, and consumer where it has a column. Of two transactions one waits for the
/// other. No `ignore`: beside the duplicate it would hide all that makes the server refuse a row.
pub(crate) fn first_seen(inbox: &InboxTable) -> String {
    let [columns, values] = inbox.mark("?", "?", "utc_timestamp(6)");
    format!("insert into {} ({columns}) values ({values})", inbox.table)
}

/// Accepts everything up to a number, under a lock that lasts as long as the transaction. Consumer, key, number.
pub(crate) fn accept(Names { arrivals, .. }: &Names) -> String {
    format!(
        "insert into {arrivals} (consumer, `key`, last) values (?, ?, ?)
         on duplicate key update last = greatest(last, values(last))"
    )
}

/// The last number that was accepted. A snapshot of `repeatable read` could be older than the lock, so the row is read
/// under the lock. Consumer, key.
pub(crate) fn accepted(Names { arrivals, .. }: &Names) -> String {
    format!(
        "select last from {arrivals} where consumer = {AS_TEXT} and `key` = {AS_TEXT} for update"
    )
}

/// How many old marks there are to remove, read without a lock. Age in microseconds, how many at most.
pub(crate) fn purgeable(inbox: &InboxTable, seen_at: &str) -> String {
    format!(
        "select count(*) from (select 1 from {} where {} order by {seen_at} limit ?) old",
        inbox.table,
        old(seen_at)
    )
}

/// Removes old marks, the oldest first. Age in microseconds, how many: no more than there are. Else the server would go on to
/// the first mark that is not old, and wait for it when it is that of a consumer in the middle of its effect.
pub(crate) fn purge(inbox: &InboxTable, seen_at: &str) -> String {
    format!("delete from {} where {} order by {seen_at} limit ?", inbox.table, old(seen_at))
}

fn old(seen_at: &str) -> String {
    format!("{seen_at} < utc_timestamp(6) - interval ? microsecond")
}

/// For the transaction that begins next: a purge locks what it deletes, and no gaps, in which a consumer may insert.
pub(crate) const READ_COMMITTED: &str = "set transaction isolation level read committed";

/// Lets one purge at a time work on a table, if it gets the lock at once. The lock is the session's.
pub(crate) fn lock_purge(inbox: &InboxTable) -> String {
    format!("select get_lock({}, 0)", purge_lock(inbox))
}

/// Gives the lock back.
pub(crate) fn unlock_purge(inbox: &InboxTable) -> String {
    format!("do release_lock({})", purge_lock(inbox))
}

/// Names have 64 characters at most, and letters of either case are the same.
fn purge_lock(inbox: &InboxTable) -> String {
    format!("concat('purge ', sha2({}, 224))", literal(&inbox.table))
}

/// What stands against a table as an inbox.
pub(crate) fn inbox_faults(config: &MySqlConfig, table: &InboxTable) -> String {
    let (here, key) = inbox_catalog(config, table);
    let (count, list) = (table.key().len(), literal(&table.key().join(", ")));
    format!(
        "select concat('its column ', column_name, ' is of type ', column_type, ' ', coalesce(collation_name, ''),
                ': make it varchar(255) character set utf8mb4 collate utf8mb4_0900_bin, on MariaDB utf8mb4_nopad_bin')
           from information_schema.columns
          where {here} and column_name in ({key}) and data_type <> 'varbinary'
            and not (data_type = 'varchar' and collation_name in ('utf8mb4_0900_bin', 'utf8mb4_nopad_bin'))
         union all
         select concat('it is of engine ', engine, ', whose marks are not rolled back: make it InnoDB')
           from information_schema.tables where {here} and engine <> 'InnoDB'
         union all
         select concat('it has no unique key of exactly these columns: ', {list})
           from information_schema.tables
          where {here} and not exists (
                select 1 from information_schema.statistics
                 where {here} and non_unique = 0
                 group by index_name
                having count(*) = {count} and sum(column_name in ({key}) and sub_part is null) = {count})"
    )
}

/// How many characters each column of an inbox's key takes at least.
pub(crate) fn inbox_length(config: &MySqlConfig, table: &InboxTable) -> String {
    let (here, key) = inbox_catalog(config, table);
    format!(
        "select cast(min(character_maximum_length) as signed) from information_schema.columns
          where {here} and column_name in ({key})"
    )
}

fn inbox_catalog(config: &MySqlConfig, table: &InboxTable) -> (String, String) {
    let key: Vec<String> = table.key().into_iter().map(literal).collect();
    let (database, name) = (literal(config.names().database()), literal(&table.table));
    (format!("table_schema = {database} and table_name = {name}"), key.join(", "))
}
