//! The tables, and how a row finds its lane.

use super::{NOW, Sql};

impl Sql {
    /// The tables, as statements that can be repeated.
    pub(crate) fn schema(&self) -> String {
        let (table, lane) = (&self.table, self.lane_expression());
        let numbers = if self.sequence { self.numbers() } else { String::new() };
        format!(
            r#"-- The outbox: a row is a pending event. A plain insert of the five columns id, aggregatetype, aggregateid,
-- type and payload is complete. Times are microseconds since 1970. Autoincrement: a position is never drawn twice.
create table if not exists "{table}" (
  position integer primary key autoincrement,
  id text not null default (lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' ||
      substr(hex(randomblob(2)), 2) || '-' || substr('89ab', 1 + abs(random() % 4), 1) ||
      substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))
    check (length(cast(id as blob)) between 1 and 255 and instr(cast(id as blob), x'00') = 0),
  aggregatetype text not null,
  aggregateid text,
  type text not null,
  payload any,
  headers text,
  created_at integer not null default {NOW},
  lane integer not null generated always as ({lane}) stored,
  attempts integer not null default 0,
  due_at integer,
  last_error text
) strict;
create index if not exists "{table}_lane" on "{table}" (lane);
create index if not exists "{table}_waiting" on "{table}" (aggregateid, aggregatetype)
  where due_at is not null and attempts > 0;
create index if not exists "{table}_due" on "{table}" (due_at) where due_at is not null;

-- Who owns which lane, per pipeline; epoch counts the owners, crashes those that died in a row.
create table if not exists "{table}_lanes" (
  pipeline text not null,
  lane integer not null,
  owner text,
  epoch integer not null default 0,
  crashes integer not null default 0,
  primary key (pipeline, lane)
) strict, without rowid;

-- The relay's workers, each with its lease and the aggregate types it relays.
create table if not exists "{table}_workers" (
  worker text primary key not null,
  pipeline text not null,
  name text not null,
  types text not null,
  joined_at integer not null default {NOW},
  lease_until integer not null
) strict, without rowid;

-- Events that were given up.
create table if not exists "{table}_dead" (
  entry integer primary key autoincrement,
  position integer not null,
  id text not null,
  aggregatetype text not null,
  aggregateid text,
  type text not null,
  payload any,
  headers text,
  created_at integer not null,
  lane integer not null,
  attempts integer not null,
  reason text not null,
  died_at integer not null default {NOW}
) strict;
create index if not exists "{table}_dead_id" on "{table}_dead" (id);

-- Events that were delivered, where they are kept.
create table if not exists "{table}_archive" (
  entry integer primary key,
  position integer not null,
  id text not null,
  aggregatetype text not null,
  aggregateid text,
  type text not null,
  payload any,
  headers text,
  created_at integer not null,
  lane integer not null,
  attempts integer not null,
  destination text not null,
  settled_at integer not null default {NOW}
) strict;
create index if not exists "{table}_archive_id" on "{table}_archive" (id);
create index if not exists "{table}_archive_settled" on "{table}_archive" (settled_at);

-- Events that a consumer of this database has handled.
create table if not exists "{table}_inbox" (
  consumer text not null,
  event_id text not null,
  seen_at integer not null default {NOW},
  primary key (consumer, event_id)
) strict, without rowid;
create index if not exists "{table}_inbox_seen" on "{table}_inbox" (seen_at);

-- Version of these tables, number of lanes, identity of the file.
create table if not exists "{table}_meta" (
  key text primary key not null,
  value text not null
) strict, without rowid;
{numbers}"#
        )
    }

    /// The tables of numbered events.
    fn numbers(&self) -> String {
        let table = &self.table;
        format!(
            r#"
-- The last number of each aggregate.
create table if not exists "{table}_sequences" (
  aggregatetype text not null,
  aggregateid text not null,
  last integer not null,
  primary key (aggregatetype, aggregateid)
) strict, without rowid;

-- The last number of each aggregate that a consumer has accepted.
create table if not exists "{table}_arrivals" (
  consumer text not null,
  key text not null,
  last integer not null,
  primary key (consumer, key)
) strict, without rowid;
"#
        )
    }

    /// The lane of a row, from the last five characters of its key and the key's length.
    ///
    /// SQLite has no hash of its own, and a function that we register would be missing in every other writer. Keys
    /// that differ only before their last five characters share a lane. The factors are primes above any lane count.
    pub(crate) fn lane_expression(&self) -> String {
        let key = "('00000' || coalesce(aggregateid, id))";
        let character =
            |back: u8, factor: u16| format!("unicode(substr({key}, -{back}, 1)) * {factor}");
        let sum = [(1, 1), (2, 263), (3, 523), (4, 1021), (5, 2053)]
            .map(|(back, factor)| character(back, factor))
            .join(" + ");
        format!("({sum} + length({key}) * 3) % {}", self.lanes)
    }
}
