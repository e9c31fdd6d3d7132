//! Who is writing: the holders of the table's lock, and their transactions as snapshots name them.

use outbox_core::Store as _;

use crate::common::{Outbox, event, everything, run};

#[tokio::test]
async fn a_probe_names_the_top_and_the_open_writers() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let idle = store.probe(0).await.unwrap();
    assert_eq!((idle.top, idle.writers.len()), (0, 0));
    assert!(!idle.server.is_empty());

    let mut tx = outbox.pool.begin().await.unwrap();
    outbox.writer().append(&mut tx, &[event("a", "1")]).await.unwrap();
    outbox.append(&[event("b", "2")]).await;
    let busy = store.probe(0).await.unwrap();
    assert_eq!((busy.top, busy.writers.len()), (2, 1));
    let xid = busy.writers[0].transaction.unwrap();
    let claimed = store.claim(&everything(16)).await.unwrap();
    assert!(claimed.snapshot.unwrap().misses(xid));
    assert_eq!(claimed.server, busy.server);

    tx.commit().await.unwrap();
    let claimed = store.claim(&everything(16)).await.unwrap();
    assert!(!claimed.snapshot.unwrap().misses(xid));
    assert_eq!(claimed.events.len(), 2);
    assert_eq!(store.probe(2).await.unwrap().top, 2);
}

/// H001, H007: a transaction that has drawn a position is named, whatever it does with savepoints.
#[tokio::test]
async fn a_writer_is_named_by_its_outer_transaction() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let mut writer = outbox.session().await;
    run(
        &mut writer,
        "begin; savepoint a; insert into outbox (aggregatetype, type) values ('t', 'e');
         release savepoint a; savepoint b; insert into outbox (aggregatetype, type) values ('t', 'e')",
    )
    .await;
    let xid: i64 = sqlx::query_scalar("select pg_current_xact_id()::text::int8")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    let probe = store.probe(0).await.unwrap();
    assert_eq!(probe.writers.len(), 1);
    assert_eq!(probe.writers[0].transaction, Some(xid.cast_unsigned()));
    let again = store.probe(0).await.unwrap();
    assert_eq!(again.writers, probe.writers);
    run(&mut writer, "rollback").await;
    assert_eq!(store.probe(0).await.unwrap().writers, []);
}

/// A prepared transaction has no session any more, and still its rows will come.
#[tokio::test]
async fn a_prepared_transaction_is_an_open_writer() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let gid = outbox.text("select current_database()::text").await;
    let mut writer = outbox.session().await;
    let prepare = format!(
        "begin; insert into outbox (aggregatetype, type) values ('t', 'e'); prepare transaction '{gid}'"
    );
    if let Err(error) = sqlx::raw_sql(sqlx::AssertSqlSafe(prepare)).execute(&mut writer).await {
        panic!("start the server with max_prepared_transactions above 0: {error}");
    }
    drop(writer);
    let probe = store.probe(0).await.unwrap();
    assert_eq!(probe.writers.len(), 1);
    assert!(probe.writers[0].transaction.is_some());
    outbox.execute(&format!("commit prepared '{gid}'")).await;
    assert_eq!(store.probe(0).await.unwrap().writers, []);
    assert_eq!(store.claim(&everything(16)).await.unwrap().events.len(), 1);
}

/// The lock is there before the row: also while a trigger sleeps, when there may be no transaction id yet.
#[tokio::test]
async fn a_writer_that_has_not_inserted_yet_is_named() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    outbox
        .execute(
            "create function pause() returns trigger language plpgsql as
               $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
             create trigger pause before insert on outbox for each row execute function pause()",
        )
        .await;
    let mut gate = outbox.session().await;
    run(&mut gate, "begin; select pg_advisory_xact_lock(1)").await;
    let pool = outbox.pool.clone();
    let writing = tokio::spawn(async move {
        sqlx::query("insert into outbox (aggregatetype, type) values ('t', 'e')")
            .execute(&pool)
            .await
            .unwrap();
    });
    outbox.wait_for_lock_waiter().await;
    let probe = store.probe(0).await.unwrap();
    assert_eq!(probe.writers.len(), 1);
    run(&mut gate, "commit").await;
    writing.await.unwrap();
}

/// Who only locks a row writes nothing.
#[tokio::test]
async fn a_reader_and_a_row_lock_are_no_writers() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1")]).await;
    let mut reader = outbox.session().await;
    run(&mut reader, "begin; select from outbox for update").await;
    assert_eq!(outbox.store().probe(0).await.unwrap().writers, []);
}

/// H002, B007: a writer elsewhere in the cluster is nobody's concern.
#[tokio::test]
async fn a_writer_of_another_table_is_not_named() {
    let outbox = Outbox::new().await;
    outbox.execute("create table other (n int)").await;
    let mut writer = outbox.session().await;
    run(&mut writer, "begin; insert into other values (1)").await;
    assert_eq!(outbox.store().probe(0).await.unwrap().writers, []);
}
