//! Every statement, in the order in which an event meets it.
//!
//! The texts are built once per store, from quoted names. `{live}`, `{lanes}` and so on stand for the tables.

mod archive;
pub(crate) mod catalog;
pub(crate) mod ddl;

use std::sync::Arc;

use outbox_core::{InboxTable, MAX_RECORDS, TypeFilter};

pub(crate) use self::archive::ArchiveStatements;
use crate::config::{Keep, Names, PayloadType, PostgresConfig};

/// The columns of an event that move with it to the dead letters and to the archive.
const MOVED: &str =
    "position, id, aggregatetype, aggregateid, type, payload, headers, created_at, lane";

/// A worker's lease is live between now and a day from now: one further ahead was written by a broken clock.
const LIVE: &str =
    "lease_until > clock_timestamp() and lease_until < clock_timestamp() + interval '1 day'";

/// Appends any number of events in the caller's transaction, in the order of the arrays.
///
/// Parameters, arrays of one length: ids `uuid[]`, aggregate types `text[]`, aggregate ids `text[]`, event types
/// `text[]`, payloads `text[]` (`bytea[]` for a bytea column), headers `text[]`, delays in microseconds `bigint[]`, due
/// times in microseconds since 1970 `bigint[]`. One text for every batch size is one plan; `order by n` makes the
/// positions rise in the order of the arrays; a delay counts from the moment of writing, not from `begin`.
pub(crate) fn append(config: &PostgresConfig) -> String {
    let live = config.names().live;
    let array = if config.payload == PayloadType::Bytea { "bytea[]" } else { "text[]" };
    let payload = config.payload.as_sql();
    let conflict = if config.unique_id { "on conflict (id) do nothing" } else { "" };
    format!(
        "insert into {live} (id, aggregatetype, aggregateid, type, payload, headers, due_at)
         select id, aggregatetype, aggregateid, type, payload::{payload}, headers::json,
                case when delay is not null then clock_timestamp() + delay * interval '1 microsecond'
                     when due is not null then timestamptz 'epoch' + due * interval '1 microsecond' end
           from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::{array}, $6::text[], $7::int8[], $8::int8[])
                with ordinality as e(id, aggregatetype, aggregateid, type, payload, headers, delay, due, n)
          order by n {conflict}"
    )
}

/// Draws numbers for the events of aggregates, under a lock on each that lasts as long as the transaction, and returns the last
/// of each. `$1` aggregate types, `$2` aggregate ids, sorted, so that writers lock in one order; `$3` how many.
pub(crate) fn draw_numbers(Names { sequences, .. }: &Names) -> String {
    format!(
        "insert into {sequences} as s (aggregatetype, aggregateid, last)
         select t, i, c from unnest($1::text[], $2::text[], $3::int8[]) with ordinality as e(t, i, c, n) order by n
         on conflict (aggregatetype, aggregateid) do update set last = s.last + excluded.last
         returning aggregatetype, aggregateid, last"
    )
}

/// The statements of a relay's store.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) lock_joins: Arc<str>,
    pub(crate) live_pipelines: Arc<str>,
    pub(crate) create_lanes: Arc<str>,
    pub(crate) enrol: Arc<str>,
    pub(crate) beat: Arc<str>,
    pub(crate) leases: Arc<str>,
    pub(crate) bury: Arc<str>,
    pub(crate) take: Arc<str>,
    pub(crate) release: Arc<str>,
    pub(crate) leave: Arc<str>,
    claims: [Arc<str>; 6],
    pub(crate) settle_delivered: Arc<str>,
    pub(crate) settle: Arc<str>,
    pub(crate) probe: Arc<str>,
    backlogs: [Arc<str>; 3],
}

impl Statements {
    pub(crate) fn new(config: &PostgresConfig) -> Self {
        let names = config.names();
        let keep = config.keep;
        let claims = [Types::All, Types::Only, Types::Except]
            .map(|types| [false, true].map(|exclude| claim(config, types, exclude).into()));
        let [[a, b], [c, d], [e, f]] = claims;
        Self {
            lock_joins: lock_joins(&names).into(),
            live_pipelines: live_pipelines(&names).into(),
            create_lanes: create_lanes(&names).into(),
            enrol: enrol(&names).into(),
            beat: beat(&names).into(),
            leases: leases(&names).into(),
            bury: bury(&names).into(),
            take: take(&names).into(),
            release: release(&names).into(),
            leave: leave(&names).into(),
            claims: [a, b, c, d, e, f],
            settle_delivered: settle_delivered(&names, keep).into(),
            settle: settle(&names, keep).into(),
            probe: probe(&names).into(),
            backlogs: [Types::All, Types::Only, Types::Except]
                .map(|types| backlog(&names, types).into()),
        }
    }

    pub(crate) fn claim(&self, types: &TypeFilter, exclude: bool) -> &Arc<str> {
        &self.claims[Types::of(types) as usize * 2 + usize::from(exclude)]
    }

    pub(crate) fn backlog(&self, types: &TypeFilter) -> &Arc<str> {
        &self.backlogs[Types::of(types) as usize]
    }
}

/// The shape of a type filter: a text of its own for each, so that a pipeline over all types compares nothing.
#[derive(Clone, Copy)]
enum Types {
    All = 0,
    Only = 1,
    Except = 2,
}

impl Types {
    fn of(filter: &TypeFilter) -> Self {
        match filter {
            TypeFilter::All => Self::All,
            TypeFilter::Only(_) => Self::Only,
            TypeFilter::Except(_) => Self::Except,
        }
    }

    /// A condition on a table; `parameter` is a `text[]`.
    fn condition(self, table: &str, parameter: u8) -> String {
        match self {
            Self::All => String::new(),
            Self::Only => format!("and {table}.aggregatetype = any(${parameter}::text[])"),
            Self::Except => format!("and {table}.aggregatetype <> all(${parameter}::text[])"),
        }
    }
}

// Joining. One transaction: of two pipelines with overlapping types that join at once, the second sees the first.

/// Lets one join at a time look at the table's workers.
fn lock_joins(Names { workers, .. }: &Names) -> String {
    format!(
        "select pg_advisory_xact_lock(hashtextextended({}, 0))",
        crate::config::literal(workers)
    )
}

/// The other pipelines that have live workers, and their types. `$1` pipeline.
///
/// Locked first, looked at then: a heartbeat that is under way is waited for, and one that comes later waits and finds
/// this join. Only so can two pipelines not each have found the other dead.
fn live_pipelines(Names { workers, .. }: &Names) -> String {
    format!(
        "with others as materialized (
           select pipeline, types_rule, types, lease_until from {workers} where pipeline <> $1 order by worker for share)
         select distinct pipeline, types_rule, types from others where {LIVE}"
    )
}

/// The pipeline's lanes. `$1` pipeline, `$2` lanes.
fn create_lanes(Names { lanes, .. }: &Names) -> String {
    format!(
        "insert into {lanes} (pipeline, lane) select $1, generate_series(0, $2::int4 - 1) on conflict do nothing"
    )
}

/// Enters a worker, or extends its lease. `$1` worker, `$2` pipeline, `$3` name, `$4` rule, `$5` types, `$6` lease in ms.
fn enrol(Names { workers, .. }: &Names) -> String {
    format!(
        "insert into {workers} as w (worker, pipeline, name, types_rule, types, lease_until)
         values ($1, $2, $3, $4, $5, clock_timestamp() + $6 * interval '1 millisecond')
         on conflict (worker) do update set lease_until = excluded.lease_until"
    )
}

// Leases. Lock order everywhere: workers, lanes by number, events.

/// Extends a lease that has not run out; commits by itself, so that nobody's lock on a lane can cost it. `$1` worker,
/// `$2` lease in ms.
///
/// Locked first, looked at then, as in [`live_pipelines`].
fn beat(Names { workers, .. }: &Names) -> String {
    format!(
        "with me as materialized (select worker, lease_until from {workers} where worker = $1 for update)
         update {workers} w set lease_until = clock_timestamp() + $2 * interval '1 millisecond'
           from (select worker from me where {LIVE}) me where w.worker = me.worker"
    )
}

/// What the worker owns, and who else lives. `$1` worker, `$2` pipeline.
///
/// `for share`: behind a burial this waits and sees the lanes gone, where its snapshot still has them.
fn leases(Names { lanes, workers, .. }: &Names) -> String {
    format!(
        "with mine as materialized (
           select lane, epoch, crashes from {lanes} where pipeline = $2 and owner = $1 order by lane for share),
         alive as (select worker, joined_at from {workers} where pipeline = $2 and {LIVE})
         select coalesce((select array_agg(lane order by lane) from mine), '{{}}') as lanes,
                coalesce((select array_agg(epoch order by lane) from mine), '{{}}') as epochs,
                coalesce((select array_agg(crashes order by lane) from mine), '{{}}') as crashes,
                (select count(*) from alive) as workers,
                (select count(*) from alive a, {workers} me
                  where me.worker = $1 and (a.joined_at, a.worker) < (me.joined_at, me.worker)) as rank"
    )
}

/// Frees the lanes of the pipeline's expired workers and strikes these off. `$1` me, `$2` pipeline.
///
/// `skip locked`: a worker that is just now extending its lease is not dead. The epoch rises here, under the lock that
/// a settlement holds, so that none of the dead owner's can follow.
fn bury(Names { lanes, workers, .. }: &Names) -> String {
    format!(
        "with dead as materialized (
           select worker from {workers} where pipeline = $2 and not ({LIVE}) and worker <> $1
            order by worker for update skip locked),
         loose as materialized (
           select lane from {lanes} where pipeline = $2 and owner in (select worker from dead)
            order by lane for no key update),
         freed as (
           update {lanes} l set owner = null, epoch = l.epoch + 1, crashes = least(l.crashes + 1, 32767)
             from loose where l.pipeline = $2 and l.lane = loose.lane)
         delete from {workers} where worker in (select worker from dead)"
    )
}

/// Takes free lanes. `$1` me, `$2` pipeline, `$3` how many. A foreign-key violation says that I have been buried.
fn take(Names { lanes, .. }: &Names) -> String {
    format!(
        "with free as materialized (
           select lane from {lanes} where pipeline = $2 and owner is null
            order by lane limit $3 for no key update skip locked)
         update {lanes} l set owner = $1, epoch = l.epoch + 1 from free where l.pipeline = $2 and l.lane = free.lane"
    )
}

/// Gives lanes back. `$1` me, `$2` pipeline, `$3` lanes.
fn release(Names { lanes, .. }: &Names) -> String {
    format!(
        "with mine as materialized (
           select lane from {lanes} where pipeline = $2 and owner = $1 and lane = any($3::int2[])
            order by lane for no key update)
         update {lanes} l set owner = null from mine where l.pipeline = $2 and l.lane = mine.lane"
    )
}

/// Signs off; what is still owned becomes free by the foreign key, without a crash. `$1` me.
fn leave(Names { workers, .. }: &Names) -> String {
    format!("delete from {workers} where worker = $1")
}

/// The claim: one row about the server, the due rows, the fresh rows. A plain read.
///
/// `$1` lanes, `$2` from, `$3` to, `$4` read, `$5` take (parallel arrays), `$6` limit, then the filter's types and the
/// excluded positions, if there are any.
///
/// - Fresh rows are bounded by row comparisons, which only the index (lane, position) can serve: with `lane = …
///   order by position` the planner may walk the primary key through everybody's backlog.
/// - While nothing waits in a lane, `gate` saves the look at each row's predecessors.
/// - Due rows come from the small partial index; `offset 0` keeps the planner from starting at the lanes instead.
/// - The exclusion is a hashed sub-select: an array would be compared one by one.
fn claim(config: &PostgresConfig, types: Types, exclude: bool) -> String {
    let Names { live, .. } = config.names();
    let payload = config.payload.as_sql();
    let columns = "o.lane, o.position, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.headers, \
                   o.created_at, o.attempts, o.due_at is not null as waiting";
    let of_types = types.condition("o", 7);
    let excluded = match (exclude, types) {
        (false, _) => "",
        (true, Types::All) => "and o.position not in (select unnest($7::int8[]))",
        (true, _) => "and o.position not in (select unnest($8::int8[]))",
    };
    let predecessor_waits = format!(
        "exists (select from {live} w
                  where w.lane = o.lane and w.aggregatetype = o.aggregatetype and w.aggregateid = o.aggregateid
                    and w.position < o.position and w.due_at is not null and w.attempts > 0)"
    );
    format!(
        "(select null::int2, 0::int8, null::uuid, null::text, null::text,
                 {SERVER} || ' ' || pg_current_snapshot()::text, null::{payload}, null::json,
                 clock_timestamp(), 0::int4, false)
         union all
         (select {columns}
            from (select * from {live} o
                   where o.due_at is not null and o.due_at <= statement_timestamp() {of_types} {excluded}
                   order by o.due_at offset 0) o
            join unnest($1::int2[], $4::int8[]) as l(lane, read) on l.lane = o.lane and o.position <= l.read
           where not {predecessor_waits}
           order by o.due_at limit $6)
         union all
         (select e.*
            from unnest($1::int2[], $2::int8[], $3::int8[], $5::int4[]) as l(lane, start, stop, take)
           cross join lateral (
                 select exists (select from {live} w
                                 where w.lane = l.lane and w.due_at is not null and w.attempts > 0) as waiting) gate
           cross join lateral (
                 select {columns} from {live} o
                  where (o.lane, o.position) > (l.lane, l.start) and (o.lane, o.position) <= (l.lane, l.stop)
                    and o.due_at is null {of_types} {excluded}
                    and (not gate.waiting or not {predecessor_waits})
                  order by o.lane, o.position limit l.take) e
           limit $6)"
    )
}

/// Which server answers: a replica, or the start of the server and its timeline. What was read from another one is void.
const SERVER: &str = "case when pg_is_in_recovery() then 'replica'
                      else (extract(epoch from pg_postmaster_start_time()) * 1000000)::int8::text
                           || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) end";

/// What [`SERVER`] says of a read replica.
pub(crate) const REPLICA: &str = "replica";

/// The lanes that this worker still owns under the epochs it names, locked until the settlement is written.
///
/// `$1` pipeline, `$2` worker, `$3` lanes, `$4` epochs. `for no key update` waits for a take-over and makes one wait;
/// `for key share` would do neither.
fn fence(Names { lanes, .. }: &Names) -> String {
    format!(
        "fence as materialized (
           select l.lane from {lanes} l join unnest($3::int2[], $4::int8[]) as h(lane, epoch)
                  on h.lane = l.lane and h.epoch = l.epoch
            where l.pipeline = $1 and l.owner = $2
            order by l.lane for no key update of l)"
    )
}

/// The delivered rows go. `$5` lanes, `$6` positions, `$7` ids, and for the archive `$destinations`.
///
/// Lane *and* position: joined by position alone, a plan cached on the empty table reads the whole lane index a row.
fn gone(names: &Names, keep: Keep, destinations: u8) -> String {
    let Names { live, archive, .. } = names;
    let delete = |extra: &str, returning: &str| {
        let parameter =
            if extra.is_empty() { String::new() } else { format!(", ${destinations}::text[]") };
        format!(
            "gone as (
               delete from {live} o using fence f,
                      unnest($5::int2[], $6::int8[], $7::uuid[]{parameter}) as d(lane, position, id{extra})
                where d.lane = f.lane and o.lane = d.lane and o.position = d.position and o.id = d.id
               returning {returning})"
        )
    };
    match keep {
        Keep::Delete => delete("", "1"),
        Keep::Archive => {
            let moved = prefixed(MOVED);
            let delete = delete(", destination", &format!("{moved}, o.attempts, d.destination"));
            format!(
                "{delete},
                 kept as (insert into {archive} ({MOVED}, attempts, destination) select * from gone)"
            )
        }
    }
}

/// The settlement of delivered events alone: nearly every one. Parameters as in [`fence`] and [`gone`], `$8` destinations.
fn settle_delivered(names: &Names, keep: Keep) -> String {
    let (fence, gone) = (fence(names), gone(names, keep, 8));
    format!(
        "with {fence}, {gone}
         select coalesce((select array_agg(lane) from fence), '{{}}') as held, (select count(*) from gone) as done"
    )
}

/// The whole settlement. After the parameters of [`fence`] and [`gone`]: retries `$8` lanes, `$9` positions, `$10` ids,
/// `$11` attempts, `$12` delays in microseconds or null for never, `$13` reasons; dead `$14` lanes, `$15` positions,
/// `$16` ids, `$17` attempts, `$18` reasons; `$19` recovered lanes; `$20` destinations.
fn settle(names: &Names, keep: Keep) -> String {
    let (fence, gone) = (fence(names), gone(names, keep, 20));
    let Names { live, lanes, dead, .. } = names;
    let moved = prefixed(MOVED);
    format!(
        "with {fence}, {gone},
         later as (
           update {live} o
              set attempts = r.attempts, last_error = r.reason,
                  due_at = coalesce(clock_timestamp() + r.delay * interval '1 microsecond', 'infinity')
             from fence f, unnest($8::int2[], $9::int8[], $10::uuid[], $11::int4[], $12::int8[], $13::text[])
                  as r(lane, position, id, attempts, delay, reason)
            where r.lane = f.lane and o.lane = r.lane and o.position = r.position and o.id = r.id
           returning 1),
         taken as (
           delete from {live} o
            using fence f, unnest($14::int2[], $15::int8[], $16::uuid[], $17::int4[], $18::text[])
                  as x(lane, position, id, attempts, reason)
            where x.lane = f.lane and o.lane = x.lane and o.position = x.position and o.id = x.id
           returning {moved}, x.attempts, x.reason),
         buried as (
           insert into {dead} ({MOVED}, attempts, reason) select * from taken returning 1),
         calmed as (
           update {lanes} l set crashes = 0 from fence f
            where l.pipeline = $1 and l.lane = f.lane and f.lane = any($19::int2[]) and l.crashes <> 0)
         select coalesce((select array_agg(lane) from fence), '{{}}') as held,
                (select count(*) from gone) + (select count(*) from later) + (select count(*) from buried) as done"
    )
}

fn prefixed(columns: &str) -> String {
    columns.split(", ").map(|column| format!("o.{column}")).collect::<Vec<_>>().join(", ")
}

/// How far the table goes, and who is writing to it. `$1` after.
///
/// The statement's snapshot, and with it the highest position, is older than its look at the locks. INSERT takes the
/// table's lock before it draws a position and keeps it until it is visible: whoever drew one below the highest is either
/// among the holders or visible to every statement that starts later. A subtransaction has an id of its own; snapshots name
/// the oldest, the transaction's. `order by … limit 1`, because a plan for `max(position)` that is cached while the table is
/// empty reads the whole index (lane, position).
fn probe(Names { live, .. }: &Names) -> String {
    let relation = crate::config::literal(live);
    format!(
        "select {SERVER} as server,
                coalesce((select position from {live} where position > $1 order by position desc limit 1), $1) as top,
                pg_snapshot_xmax(pg_current_snapshot())::text::int8 as next,
                coalesce(array_agg(w.writer), '{{}}') as writers,
                coalesce(array_agg(w.xid), '{{}}') as xids
           from (select t.virtualtransaction as writer,
                        (select x.transactionid::text::int8 from pg_locks x
                          where x.locktype = 'transactionid' and x.mode = 'ExclusiveLock' and x.granted
                            and x.virtualtransaction = t.virtualtransaction
                          order by age(x.transactionid) desc limit 1) as xid
                   from (select distinct virtualtransaction from pg_locks
                          where locktype = 'relation' and relation = {relation}::regclass
                            and database = (select oid from pg_database where datname = current_database())
                            and mode = 'RowExclusiveLock' and granted
                            and pid is distinct from pg_backend_pid()) t) w"
    )
}

/// Figures of one pipeline. `$1` cap, then the filter's types.
///
/// Rows that do not count (of other pipelines, or scheduled) are read up to ten times the cap, so that a full table costs
/// no more than a busy one.
fn backlog(names: &Names, types: Types) -> String {
    let Names { live, dead, archive, inbox, .. } = names;
    let of_types = types.condition("o", 2);
    let size = |table: &str| {
        let table = crate::config::literal(table);
        format!(
            "coalesce((select sum(pg_total_relation_size(t.relid))::int8
                         from pg_partition_tree(to_regclass({table})) t), 0)"
        )
    };
    let (size_live, size_dead) = (plain_size(live), plain_size(dead));
    let (size_archive, size_inbox) = (size(archive), plain_size(inbox));
    format!(
        "select (select count(*) from (
                   select from (select aggregatetype from {live} order by position limit $1 * 10) o
                    where true {of_types} limit $1) p) as pending,
                (select (extract(epoch from clock_timestamp() - o.created_at) * 1000000)::int8
                   from (select * from {live} order by position limit $1 * 10) o
                  where (o.due_at is null or o.due_at <= statement_timestamp()) {of_types}
                  order by o.position limit 1) as oldest,
                (select count(*) from (
                   select from (select aggregatetype from {live} where {BLOCKED} limit $1 * 10) o
                    where true {of_types} limit $1) b) as blocked,
                (select count(*) from (
                   select from (select aggregatetype from {dead} order by entry limit $1 * 10) o
                    where true {of_types} limit $1) d) as dead,
                {size_live} as live_bytes, {size_dead} as dead_bytes,
                {size_archive} as archive_bytes, {size_inbox} as inbox_bytes"
    )
}

fn plain_size(table: &str) -> String {
    format!("coalesce(pg_total_relation_size(to_regclass({})), 0)", crate::config::literal(table))
}

/// The statements of operators.
#[derive(Debug)]
pub(crate) struct AdminStatements {
    pub(crate) list: Arc<str>,
    pub(crate) count: Arc<str>,
    pub(crate) requeue: Arc<str>,
    pub(crate) discard: Arc<str>,
    pub(crate) list_blocked: Arc<str>,
    pub(crate) unblock: Arc<str>,
    pub(crate) discard_blocked: Arc<str>,
    pub(crate) find: Arc<str>,
}

impl AdminStatements {
    pub(crate) fn new(config: &PostgresConfig) -> Self {
        let names = config.names();
        Self {
            list: list_dead(&names).into(),
            count: count_dead(&names).into(),
            requeue: requeue(&names).into(),
            discard: discard(&names).into(),
            list_blocked: list_blocked(&names).into(),
            unblock: unblock(&names).into(),
            discard_blocked: discard_blocked(&names).into(),
            find: find(&names).into(),
        }
    }
}

/// The conditions of a filter. `$1` id, `$2` since and `$3` until in microseconds since 1970, `$4` aggregate type, `$5`
/// aggregate id, `$6` event type, `$7` text in the reason; null is any.
const FILTER: &str = "($1::uuid is null or id = $1)
            and ($2::int8 is null or died_at >= timestamptz 'epoch' + $2 * interval '1 microsecond')
            and ($3::int8 is null or died_at < timestamptz 'epoch' + $3 * interval '1 microsecond')
            and ($4::text is null or aggregatetype = $4) and ($5::text is null or aggregateid = $5)
            and ($6::text is null or type = $6)
            and ($7::text is null or strpos(lower(reason), lower($7)) > 0)";

/// The parameters of [`FILTER`], `$8` after, `$9` limit.
fn list_dead(Names { dead, .. }: &Names) -> String {
    format!(
        "select entry, id, aggregatetype, aggregateid, type, payload, headers, attempts, reason, created_at, died_at
           from {dead}
          where entry > $8 and {FILTER}
          order by entry limit $9"
    )
}

/// The parameters of [`FILTER`].
fn count_dead(Names { dead, .. }: &Names) -> String {
    format!("select count(*) from {dead} where {FILTER}")
}

/// A dead letter goes back, due at once. `$1` entry. Of two operators one waits for the other and then finds nothing.
///
/// It keeps its position, and so holds what was written after it; unless somebody else has that position, or will have
/// (`truncate … restart identity` makes positions repeat), when the application's own insert would fail.
fn requeue(Names { live, dead, .. }: &Names) -> String {
    let sequence =
        format!("pg_get_serial_sequence({}, 'position')::regclass", crate::config::literal(live));
    let columns = "id, aggregatetype, aggregateid, type, payload, headers, created_at";
    format!(
        "with taken as (delete from {dead} where entry = $1 returning *)
         insert into {live} (position, {columns}, attempts, due_at, last_error) overriding system value
         select case when t.position > coalesce(pg_sequence_last_value({sequence}), 0)
                       or exists (select from {live} o where o.position = t.position)
                     then nextval({sequence}) else t.position end,
                {columns}, 1, clock_timestamp(), reason
           from taken t"
    )
}

/// A dead letter goes for good. `$1` entry.
fn discard(Names { dead, .. }: &Names) -> String {
    format!("delete from {dead} where entry = $1")
}

/// What says that a row is the blocked head of its aggregate.
const BLOCKED: &str = "due_at = 'infinity' and attempts > 0";

/// `$1` after, `$2` limit.
fn list_blocked(Names { live, .. }: &Names) -> String {
    format!(
        "select position, id, aggregatetype, aggregateid, type, attempts, last_error, created_at from {live}
          where {BLOCKED} and position > $1 order by position limit $2"
    )
}

/// A blocked head is due at once, with all its tries before it. `$1` position.
fn unblock(Names { live, .. }: &Names) -> String {
    format!(
        "update {live} set attempts = 1, due_at = clock_timestamp() where position = $1 and {BLOCKED}"
    )
}

/// A blocked head goes for good. `$1` position.
///
/// Its hold passes to the event behind it: relays have read past that one, and must see it before they see what is
/// written from now on.
fn discard_blocked(Names { live, .. }: &Names) -> String {
    format!(
        "with gone as (
           delete from {live} where position = $1 and {BLOCKED} returning lane, aggregatetype, aggregateid, position),
         next as (
           select o.position from {live} o, gone g
            where o.lane = g.lane and o.aggregatetype = g.aggregatetype and o.aggregateid = g.aggregateid
              and o.position > g.position and (o.due_at is null or o.attempts > 0)
            order by o.position limit 1),
         held as (
           update {live} o set attempts = 1, due_at = clock_timestamp() from next
            where o.position = next.position and o.due_at is null)
         select from gone"
    )
}

/// Where an event is. `$1` id. A row that is due never is due in the year 9999, so that it differs from one that is not due.
fn find(Names { live, dead, archive, .. }: &Names) -> String {
    let event = "id, position, aggregatetype, aggregateid, type, attempts, created_at";
    format!(
        "select {event}, 'live' as place, coalesce({BLOCKED}, false) as never,
                case due_at when 'infinity' then timestamptz '9999-12-31 23:59:59.999999+00' else due_at end as at,
                last_error as reason,
                null::int8 as entry, null::text as destination
           from {live} where id = $1
         union all
         select {event}, 'dead', false, died_at, reason, entry, null from {dead} where id = $1
         union all
         select {event}, 'archive', false, settled_at, null, null, destination from {archive} where id = $1
         limit {MAX_RECORDS}"
    )
}

/// A consumer marks an event as seen. `$1` event id, `$2` consumer where it has a column. Of two transactions one waits
/// for the other.
pub(crate) fn first_seen(inbox: &InboxTable) -> String {
    let [columns, values] = inbox.mark("$1", "$2", "clock_timestamp()");
    let table = &inbox.table;
    format!("insert into {table} ({columns}) values ({values}) on conflict do nothing")
}

/// Accepts the event behind the last one, under a lock, and returns what was the last one until now. `$1` consumer, `$2` key,
/// `$3` number.
pub(crate) fn arrive(Names { arrivals, .. }: &Names) -> String {
    format!(
        "with mine as materialized (select last from {arrivals} where consumer = $1 and key = $2 for update)
         update {arrivals} a set last = case when mine.last + 1 = $3 then $3 else mine.last end
           from mine where a.consumer = $1 and a.key = $2 returning mine.last"
    )
}

/// Accepts everything up to a number. `$1` consumer, `$2` key, `$3` number.
pub(crate) fn accept(Names { arrivals, .. }: &Names) -> String {
    format!(
        "insert into {arrivals} as a (consumer, key, last) values ($1, $2, $3)
         on conflict (consumer, key) do update set last = greatest(a.last, excluded.last)"
    )
}

/// Removes old marks, the oldest first, unless another purge has the lock. `$1` age in microseconds, `$2` how many, `$3`
/// where the batch before has ended, in microseconds since 1970: what it left dead in the index is not read again.
///
/// By `ctid`, because no statistics can turn that into a read of the whole table; the time is compared once more, because a
/// partitioned table has a `ctid` in each part.
pub(crate) fn purge(inbox: &InboxTable, seen_at: &str) -> String {
    let table = &inbox.table;
    let key = crate::config::literal(&format!("purge {table}"));
    let old = format!("{seen_at} < statement_timestamp() - $1 * interval '1 microsecond'");
    format!(
        "with mine as materialized (select pg_try_advisory_xact_lock(hashtextextended({key}, 0)) as held),
         old as materialized (
           select ctid from {table}
            where (select held from mine) and {old}
              and {seen_at} >= timestamptz 'epoch' + $3 * interval '1 microsecond'
            order by {seen_at} limit $2),
         gone as (delete from {table} where ctid = any (array(select ctid from old)) and {old} returning {seen_at} as at)
         select (select held from mine) as held, (select count(*) from old) as found, (select count(*) from gone) as marks,
                (select (extract(epoch from max(at)) * 1000000)::int8 from gone) as until"
    )
}

/// What stands against a table as an inbox. `$1` table, `$2` columns of its key, `text[]`.
pub(crate) const INBOX_FAULTS: &str = "
    select 'its column ' || a.attname || ' is of type ' || format_type(a.atttypid, a.atttypmod)
           || case when coalesce(l.collisdeterministic, true) then '' else ' with a collation that takes different texts as equal' end
           || ': make it text'
      from pg_attribute a left join pg_collation l on l.oid = a.attcollation
     where a.attrelid = to_regclass($1) and a.attname = any($2) and not a.attisdropped
       and (a.atttypid not in ('text'::regtype, 'varchar'::regtype) or not l.collisdeterministic)
    union all
    select 'it has no unique key of exactly these columns: ' || array_to_string($2, ', ')
      from pg_class c
     where c.oid = to_regclass($1) and not exists (
           select from pg_index i
            where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null
              and i.indnkeyatts = cardinality($2)
              and $2 <@ (select array_agg(a.attname::text)
                           from unnest(i.indkey::int2[]) with ordinality k (attnum, n)
                           join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                          where k.n <= i.indnkeyatts))";
