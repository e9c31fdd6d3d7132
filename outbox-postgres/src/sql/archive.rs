//! Statements of the archive's upkeep.

use std::sync::Arc;

use crate::config::{Names, literal};

#[derive(Debug)]
pub(crate) struct ArchiveStatements {
    pub(crate) lock: Arc<str>,
    pub(crate) plan: Arc<str>,
    pub(crate) delete: Arc<str>,
}

impl ArchiveStatements {
    pub(crate) fn new(names: &Names) -> Self {
        Self { lock: lock(names).into(), plan: plan(names).into(), delete: delete(names).into() }
    }
}

/// One upkeep of an archive at a time, until the transaction ends.
fn lock(Names { archive, .. }: &Names) -> String {
    let key = literal(&format!("upkeep {archive}"));
    format!("select pg_try_advisory_xact_lock(hashtextextended({key}, 0))")
}

/// The first partition to make or to drop. `$1` period, `$2` how many ahead, `$3` how long rows are kept, in microseconds, `$4`
/// partitions that are left as they are.
///
/// A period that has begun may have rows in the default partition, and its partition could not be made beside them.
fn plan(names: &Names) -> String {
    let Names { archive, archive_rest, .. } = names;
    let (parent, schema) = (literal(archive), literal(names.plain_schema()));
    let prefix = literal(&names.plain("_archive_"));
    format!(
        "with part as materialized (
           select format('%I.%I', n.nspname, c.relname) as quoted, c.relname::text as name,
                  (regexp_match(bound, 'FROM \\(''([^'']*)''\\)'))[1]::timestamptz as since,
                  (regexp_match(bound, 'TO \\(''([^'']*)''\\)'))[1]::timestamptz as until
             from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_namespace n on n.oid = c.relnamespace,
                  pg_get_expr(c.relpartbound, c.oid) as bound
            where i.inhparent = to_regclass({parent}) and bound <> 'DEFAULT'),
         period as (
           select since at time zone 'utc' as since, (since + one) at time zone 'utc' as until,
                  {prefix} || to_char(since, 'YYMMDD') as name
             from (select ('1 ' || $1::text)::interval) as step (one),
                  generate_series(0, $2::int8) as n,
                  lateral (select date_trunc($1::text, now() at time zone 'utc') + n * one) as begins (since))
         select makes, name, sql from (
           select true as makes, name, since as at,
                  format('create table %I.%I partition of %s for values from (%L) to (%L)', {schema}, name, {parent}, since, until) as sql
             from period p
            where not exists (select from part where coalesce(part.since, '-infinity') < p.until
                                                 and coalesce(part.until, 'infinity') > p.since)
              and (p.since > now() or not exists (select from {archive_rest}))
           union all
           select false, name, until, format('drop table %s', quoted) from part
            where until <= now() - $3::int8 * interval '1 microsecond') as step
          where name <> all ($4::text[]) order by at limit 1"
    )
}

/// Deletes what is old in some pages of the default partition. `$1` first page, `$2` the page after the last, `$3` how long
/// rows are kept, in microseconds.
fn delete(Names { archive_rest, .. }: &Names) -> String {
    format!(
        "with gone as (
           delete from {archive_rest}
            where ctid >= format('(%s,0)', $1::int8)::tid and ctid < format('(%s,0)', $2::int8)::tid
              and settled_at < now() - $3::int8 * interval '1 microsecond'
           returning 1)
         select (select count(*) from gone) as gone,
                pg_relation_size({rest}::regclass) / current_setting('block_size')::int8 as pages",
        rest = literal(archive_rest),
    )
}
