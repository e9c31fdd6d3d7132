//! What the catalogue says of the tables.

use crate::config::{MySqlConfig, Names, literal};

/// Of each column: table, name, and `type [collation] [not null] [default …] [auto_increment] [generated …]`.
pub(crate) fn columns(names: &Names) -> String {
    format!(
        "select table_name, lower(column_name),
                concat(column_type,
                       if(collation_name is null, '', concat(' ', collation_name)),
                       if(is_nullable = 'NO', ' not null', ''),
                       if(column_default is null or column_default = 'NULL', '', concat(' default ', column_default)),
                       if(extra like '%auto_increment%', ' auto_increment', ''),
                       if(coalesce(generation_expression, '') = '', '', concat(' generated ', generation_expression)))
           from information_schema.columns
          where {} order by table_name, ordinal_position",
        of_the_outbox(names)
    )
}

/// Of each index: table, and `[unique] index (columns)`.
pub(crate) fn indexes(names: &Names) -> String {
    format!(
        "select table_name,
                concat(case when index_name = 'PRIMARY' then 'primary key' when max(non_unique) = 0 then 'unique index'
                            else concat('index ', index_name) end,
                       ' (', group_concat(lower(column_name) order by seq_in_index separator ', '), ')')
           from information_schema.statistics
          where {} group by table_name, index_name",
        of_the_outbox(names)
    )
}

/// What makes the table lose or hide events, or refuse a settlement: what, how it is, how it should be.
pub(crate) fn hazards(config: &MySqlConfig) -> String {
    let names = config.names();
    let database = literal(names.database());
    let live = literal(&names.plain(""));
    format!(
        "select concat('table ', table_name), concat('of engine ', coalesce(engine, 'none')),
                'of engine InnoDB: rows of others survive a rollback; alter table … engine = innodb'
           from information_schema.tables
          where {tables} and coalesce(engine, '') <> 'InnoDB'
         union all
         select concat('table ', table_name, ': foreign key ', constraint_name), 'on delete cascade',
                'none: it would remove pending events'
           from information_schema.referential_constraints
          where constraint_schema = {database} and table_name = {live} and delete_rule = 'CASCADE'
         union all
         select 'setting max_allowed_packet of the server', cast(@@max_allowed_packet as char),
                'at least 1048576 bytes'
           from dual where @@max_allowed_packet < {packet}
         union all
         select 'server', 'read-only', 'the primary' from dual where @@global.read_only = 1",
        tables = of_the_outbox(&names),
        packet = crate::writer::SMALLEST_PACKET,
    )
}

/// Rows that belong to no lane, which nobody would ever claim; looked for in the index, where they come first.
pub(crate) fn rows_without_lane(names: &Names) -> String {
    format!(
        "select exists (select 1 from {} force index (outbox_lane) where lane is null)",
        names.live
    )
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
    format!("table_schema = {} and table_name in ({list})", literal(names.database()))
}
