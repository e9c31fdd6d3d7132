//! What the catalogue says of the tables, in the words in which `drift.rs` compares.

use crate::config::{Keep, Names, PostgresConfig, literal};

/// Of each column: `type [collation] [not null] [identity | generated … | default …]`.
pub(crate) fn columns(names: &Names) -> String {
    let tables = of_the_outbox(names);
    format!(
        "select c.relname::text as table, a.attname::text as name,
                format_type(a.atttypid, a.atttypmod)
                || case when l.collname is null or l.collname = 'default' then '' else ' ' || l.collname end
                || case when a.attnotnull then ' not null' else '' end
                || case when a.attidentity = 'a' then ' identity'
                        when a.attidentity <> '' then ' identity by default'
                        when a.attgenerated <> '' then ' generated ' || pg_get_expr(d.adbin, d.adrelid)
                        when d.adbin is not null then ' default ' || pg_get_expr(d.adbin, d.adrelid)
                        else '' end as definition
           from {tables}
           join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
           left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
           left join pg_collation l on l.oid = a.attcollation
          order by c.relname, a.attnum"
    )
}

/// Of each valid index: `[unique] index (columns) [where …]`.
pub(crate) fn indexes(names: &Names) -> String {
    let tables = of_the_outbox(names);
    format!(
        "select c.relname::text as table,
                case when i.indisprimary then 'primary key' when i.indisunique then 'unique index' else 'index' end
                || ' (' || (select string_agg(a.attname, ', ' order by k.n)
                              from unnest(i.indkey::int2[]) with ordinality as k(attnum, n)
                              join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum) || ')'
                || coalesce(' where ' || pg_get_expr(i.indpred, i.indrelid), '') as definition
           from {tables} join pg_index i on i.indrelid = c.oid and i.indisvalid and i.indisready"
    )
}

/// Of each table: its storage settings.
pub(crate) fn options(names: &Names) -> String {
    let tables = of_the_outbox(names);
    format!(
        "select c.relname::text as table, o.option_name as name, o.option_value as value
           from {tables} cross join pg_options_to_table(c.reloptions) o"
    )
}

/// What makes the table lose or hide events, or refuse a settlement.
pub(crate) fn hazards(config: &PostgresConfig) -> String {
    let names = &config.names();
    let tables = of_the_outbox(names);
    let rights = rights(config);
    let live = literal(&names.live);
    let table = names.plain("");
    let what = literal(&format!("table {table}"));
    format!(
        "select 'table ' || c.relname as what, 'unlogged' as found,
                'logged: a crash of the server empties an unlogged table; alter table … set logged' as expected
           from {tables} where c.relpersistence <> 'p'
         union all
         select 'table ' || c.relname, 'under row-level security',
                'without it: hidden rows would never be published; alter table … disable row level security'
           from {tables} where c.relrowsecurity
         union all
         select 'sequence of ' || {live} || '.position', 'with cache ' || s.seqcache || ' and increment ' || s.seqincrement,
                'cache 1 and increment 1: positions of a cache are drawn long before they are used; alter sequence …'
           from pg_sequence s
          where s.seqrelid = to_regclass(pg_get_serial_sequence({live}, 'position')) and (s.seqcache <> 1 or s.seqincrement <> 1)
         union all
         select {what} || ': replica identity', case c.relreplident when 'f' then 'full' else 'an index over lane' end,
                'one without the generated column lane: with it deletes fail as soon as a publication has the table; \
                 alter table … replica identity default'
           from pg_class c
          where c.oid = to_regclass({live})
            and (c.relreplident = 'f'
                 or exists (select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
                             where i.indrelid = c.oid and a.attgenerated <> ''
                               and (i.indisreplident or (c.relreplident = 'd' and i.indisprimary))))
         union all
         select {what} || ': replica identity', 'none, and publication ' || p.pubname || ' publishes deletes',
                'a replica identity, or a publication of inserts only: alter publication … set (publish = ''insert'')'
           from pg_class c join pg_publication_tables t on t.schemaname = {schema_plain} and t.tablename = {table_plain}
           join pg_publication p on p.pubname = t.pubname and (p.pubdelete or p.pubupdate)
          where c.oid = to_regclass({live})
            and (c.relreplident = 'n' or (c.relreplident = 'd' and not exists (
                   select from pg_index i where i.indrelid = c.oid and i.indisprimary)))
         union all
         select {what} || ': foreign key ' || k.conname, 'on delete cascade', 'none: it would remove pending events'
           from pg_constraint k where k.conrelid = to_regclass({live}) and k.contype = 'f' and k.confdeltype = 'c'
         union all
         select 'rights of ' || current_user || ' on ' || r.plain, 'without ' || r.privilege,
                'granted: grant ' || r.privilege || ' on ' || r.name || ' to ' || quote_ident(current_user)
           from (values {rights}) as r(name, plain, privilege)
          where to_regclass(r.name) is not null and not has_table_privilege(to_regclass(r.name), r.privilege)
         union all
         select 'database', 'in encoding SQL_ASCII',
                'in a real encoding, UTF8 say: one row with bytes that are no text would stop every claim'
          where current_setting('server_encoding') = 'SQL_ASCII'
         union all
         select 'server', 'a read replica', 'the primary' where pg_is_in_recovery()",
        schema_plain = literal(names.plain_schema()),
        table_plain = literal(&table),
    )
}

/// What a relay must be allowed to: rows of table, its plain name, right.
fn rights(config: &PostgresConfig) -> String {
    let names = config.names();
    let mut needed = vec![
        (&names.live, "", vec!["select", "update", "delete"]),
        (&names.lanes, "_lanes", vec!["select", "insert", "update"]),
        (&names.workers, "_workers", vec!["select", "insert", "update", "delete"]),
        (&names.dead, "_dead", vec!["select", "insert"]),
    ];
    if config.keep == Keep::Archive {
        needed.push((&names.archive, "_archive", vec!["insert"]));
    }
    let row = |name: &str, suffix: &str, right: &str| {
        format!("({}, {}, '{right}')", literal(name), literal(&names.plain(suffix)))
    };
    let rows = needed.iter().flat_map(|(name, suffix, rights)| {
        rights.iter().map(move |right| row(name, suffix, right))
    });
    rows.collect::<Vec<_>>().join(", ")
}

fn of_the_outbox(names: &Names) -> String {
    let list = [
        "",
        "_workers",
        "_lanes",
        "_dead",
        "_archive",
        "_inbox",
        "_meta",
        "_sequences",
        "_arrivals",
    ];
    let list = list.map(|suffix| literal(&names.plain(suffix))).join(", ");
    format!(
        "(select c.* from pg_class c join pg_namespace n on n.oid = c.relnamespace
           where n.nspname = {} and c.relname in ({list}) and c.relkind in ('r', 'p')) c",
        literal(names.plain_schema())
    )
}
