//! Claims: which rows come, what they cost, and what cannot be read.

use std::time::Duration;

use outbox_core::{
    ClaimRequest, Event, LaneCursor, LaneRead, NewEvent, Position, Retry, Store as _,
    StoreErrorKind, TypeFilter,
};
use outbox_postgres::PostgresStore;

use crate::common::{
    Outbox, delivered, event, everything, from, pipeline, run, settlements, sole_owner, sorted,
};

/// B014, H022: a waiting event holds its aggregate and no other; a scheduled one holds nobody.
#[tokio::test]
async fn only_a_waiting_event_holds_its_aggregate() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&["a", "b", "a", "b"].map(|key| event(key, "1"))).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    let mut verdicts = settlements(&worker, epoch, &events[..1]);
    verdicts.retries =
        vec![Retry::new(events[0].receipt(), 1, Some(Duration::from_secs(60)), "later")];
    store.settle(&verdicts).await.unwrap();
    let positions = async || {
        let claimed = sorted(&store.claim(&everything(16)).await.unwrap());
        claimed.iter().map(Event::position).collect::<Vec<_>>()
    };
    assert_eq!(positions().await, [2, 4]);
    outbox.execute("update outbox set due_at = clock_timestamp() where position = 1").await;
    assert_eq!(positions().await, [1, 2, 4]);
    outbox.execute("update outbox set attempts = 0, due_at = 'infinity' where position = 1").await;
    assert_eq!(positions().await, [2, 3, 4]);
}

#[tokio::test]
async fn a_due_row_comes_only_from_what_was_read() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1"), event("a", "2")]).await;
    outbox
        .execute("update outbox set due_at = clock_timestamp(), attempts = 1 where position = 2")
        .await;
    let store = outbox.store();
    let due = async |read: Position| {
        let claimed = store.claim(&from(16, 9, read)).await.unwrap();
        claimed.events.iter().map(Event::position).collect::<Vec<_>>()
    };
    assert!(due(1).await.is_empty());
    assert_eq!(due(2).await, [2]);
}

#[tokio::test]
async fn excluded_rows_neither_come_nor_count() {
    let outbox = Outbox::new().await;
    outbox.append(&(0..20).map(|n| event("a", &n.to_string())).collect::<Vec<_>>()).await;
    outbox
        .execute("update outbox set due_at = clock_timestamp(), attempts = 1 where position = 1")
        .await;
    outbox.execute("update outbox set aggregateid = null where position = 1").await;
    let lane =
        u16::try_from(outbox.number("select max(lane)::int8 from outbox where position > 1").await)
            .unwrap();
    let store = outbox.store();
    let cursor = LaneCursor::new(lane, 0, 99, 3);
    let request =
        ClaimRequest::new(pipeline(), vec![cursor], 10, 1 << 20).excluding(vec![1, 2, 3, 5]);
    let claimed = store.claim(&request).await.unwrap();
    let positions: Vec<_> = sorted(&claimed).iter().map(Event::position).collect();
    assert_eq!(positions, [4, 6, 7]);
    assert_eq!(claimed.reads, [LaneRead::UpTo(7)]);
}

#[tokio::test]
async fn a_pipeline_gets_its_types_only() {
    let outbox = Outbox::new().await;
    for (aggregate_type, key) in [("a", "1"), ("b", "1"), ("c", "1")] {
        let event = NewEvent::builder(aggregate_type, key, "x").build().unwrap();
        outbox.append(&[event]).await;
    }
    outbox
        .execute(
            "update outbox set due_at = clock_timestamp(), attempts = 1 where aggregatetype = 'c'",
        )
        .await;
    let store = outbox.store();
    let types = |types: &[&str]| types.iter().map(ToString::to_string).collect();
    for (filter, expected) in [
        (TypeFilter::All, "abc"),
        (TypeFilter::Only(types(&["a", "c"])), "ac"),
        (TypeFilter::Except(types(&["a"])), "bc"),
        (TypeFilter::Only(types(&[])), ""),
        (TypeFilter::Except(types(&[])), "abc"),
    ] {
        for exclude in [vec![], vec![99]] {
            let mut request = everything(16).excluding(exclude);
            request.pipeline = outbox_core::Pipeline::with_types("p", filter.clone()).unwrap();
            let claimed = sorted(&store.claim(&request).await.unwrap());
            let came: String = claimed.iter().map(Event::aggregate_type).collect();
            assert_eq!(came, expected, "{filter:?}");
        }
    }
}

/// H034: a claim is bounded in bytes, and the first row always comes.
#[tokio::test]
async fn a_claim_stops_at_its_byte_budget() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let large = format!("\"{}\"", "x".repeat(100_000));
    outbox.append(&(0..50).map(|_| event("a", &large)).collect::<Vec<_>>()).await;
    let mut request = everything(16);
    request.bytes = 350_000;
    for _ in 0..3 {
        let claimed = store.claim(&request).await.unwrap();
        assert_eq!(claimed.events.len(), 3);
        let lane = claimed.events[0].lane();
        assert_eq!(claimed.reads[usize::from(lane)], LaneRead::UpTo(3));
    }
    request.bytes = 1;
    assert_eq!(store.claim(&request).await.unwrap().events.len(), 1);
    let open = "select count(*) from pg_stat_activity where datname = current_database()
                 and application_name = '' and state <> 'idle' and pid <> pg_backend_pid()";
    for _ in 0..200 {
        if outbox.number(open).await == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a claim that stopped early still runs");
}

/// H034: rows of uneven size do not cost a login each time the budget is used up.
#[tokio::test]
async fn a_claim_that_its_bytes_cut_keeps_the_connection() {
    let outbox = Outbox::with(|config| config.with_pool_size(2)).await;
    let store = outbox.store();
    let sized = |n: usize| event(&n.to_string(), &format!("\"{}\"", "x".repeat(n * 997 % 8192)));
    outbox.append(&(0..400).map(sized).collect::<Vec<_>>()).await;
    let mut request = everything(16);
    request.bytes = 64 << 10;
    let began =
        "select string_agg(backend_start::text, ' ' order by backend_start) from pg_stat_activity
                  where datname = current_database() and application_name = 'outbox'";
    // The first claims learn how large the rows are.
    for _ in 0..8 {
        store.claim(&request).await.unwrap();
    }
    let before = outbox.text(began).await;
    for _ in 0..40 {
        let claimed = store.claim(&request).await.unwrap();
        assert!(claimed.events.len() > 8, "{} of about 15 rows", claimed.events.len());
    }
    assert_eq!(outbox.text(began).await, before, "sessions of the store");
}

/// B044: due rows cannot take the whole budget.
#[tokio::test]
async fn due_rows_leave_half_of_the_bytes_to_fresh_ones() {
    let outbox = Outbox::new().await;
    let large = format!("\"{}\"", "x".repeat(10_000));
    let events: Vec<_> = (0..40).map(|n| event(&n.to_string(), &large)).collect();
    outbox.append(&events).await;
    outbox
        .execute("update outbox set due_at = clock_timestamp(), attempts = 1 where position <= 20")
        .await;
    let mut request = everything(16);
    request.bytes = 110_000;
    let claimed = outbox.store().claim(&request).await.unwrap();
    let due = claimed.events.iter().filter(|event| event.is_waiting()).count();
    assert_eq!((due, claimed.events.len() - due), (5, 5));
}

/// A row that cannot be read becomes an event with a fault; its neighbours come as ever.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_one_faulty_event() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1"), event(&"k".repeat(255), "2"), event("c", "3")]).await;
    outbox
        .execute(
            "update outbox set created_at = 'infinity' where position = 1;
             update outbox set aggregateid = repeat('k', 3000) where position = 2",
        )
        .await;
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    let faults: Vec<_> = claimed.iter().map(|event| event.fault().is_some()).collect();
    assert_eq!(faults, [true, true, false]);
    assert!(claimed[0].fault().unwrap().contains("created_at"));
    assert!(claimed[1].fault().unwrap().contains("aggregateid"));
}

/// Positions, loaded in bulk.
async fn load(outbox: &Outbox, rows: u32) {
    outbox
        .execute(&format!(
            "insert into outbox (aggregatetype, aggregateid, type, payload)
             select 'order', 'k' || n % 500, 'Created', json_build_object('n', n) from generate_series(1, {rows}) n"
        ))
        .await;
}

/// Buffers of the outbox table, the dead letters and their indexes that `work` touched, and the few of the look-outs for them.
///
/// A session hands its figures in at the end of a statement, once a second: the second time after the work they are
/// complete. The store has one connection, whose plans must survive the measurement; the other sessions are ended.
pub(crate) async fn buffers_of(
    outbox: &Outbox,
    store: &PostgresStore,
    work: impl AsyncFnOnce(),
) -> i64 {
    let before = handed_in(outbox, store).await;
    work().await;
    handed_in(outbox, store).await - before
}

async fn handed_in(outbox: &Outbox, store: &PostgresStore) -> i64 {
    let mut others = outbox.session().await;
    let end = "select pg_terminate_backend(pid, 10000) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid()
                  and application_name <> 'outbox' and state = 'idle'";
    run(&mut others, end).await;
    let touched = "select coalesce(sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit), 0)::int8
                     from pg_statio_user_tables where relname in ('outbox', 'outbox_dead')";
    let (mut last, mut times) = (outbox.number(touched).await, 0);
    while times < 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.probe(Position::MAX - 1).await.unwrap();
        let now = outbox.number(touched).await;
        times += i32::from(now != last);
        last = now;
    }
    last
}

/// H075, L2, L3: plans that were made while the table was empty stay bounded when it is full.
#[tokio::test]
async fn a_plan_from_the_empty_table_stays_bounded() {
    let outbox = Outbox::with(|config| config.with_pool_size(2)).await;
    outbox.execute("alter table outbox set (autovacuum_enabled = off); analyze outbox").await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    let request = batch(16, 0, 992);
    for _ in 0..10 {
        store.claim(&request).await.unwrap();
        store.claim(&batch(16, 0, 992).excluding(vec![1])).await.unwrap();
        store.settle(&delivered(&worker, epoch, &[])).await.unwrap();
        store.probe(0).await.unwrap();
    }
    load(&outbox, 200_000).await;

    let claimed = store.claim(&request).await.unwrap();
    assert_eq!(claimed.events.len(), 992);
    let claims = buffers_of(&outbox, &store, async || {
        for _ in 0..10 {
            store.claim(&batch(16, 0, 992)).await.unwrap();
            store.claim(&batch(16, 0, 992).excluding((1..900).collect())).await.unwrap();
        }
    })
    .await;
    assert!(claims / 20 < 800, "{} buffers a claim", claims / 20);

    let settles = buffers_of(&outbox, &store, async || {
        store.settle(&delivered(&worker, epoch, &claimed.events)).await.unwrap();
        store.probe(199_000).await.unwrap();
    })
    .await;
    println!("{} buffers a claim, {settles} a settle and a probe", claims / 20);
    assert!(settles < 992 * 7, "{settles} buffers a settle");
}

/// B048, H074: dead rows under somebody's old snapshot cost nothing to a claim that starts above them.
#[tokio::test]
async fn dead_rows_below_the_cursor_cost_nothing() {
    let outbox = Outbox::with(|config| config.with_pool_size(2)).await;
    outbox.execute("alter table outbox set (autovacuum_enabled = off)").await;
    let store = outbox.store();
    load(&outbox, 20_000).await;
    let clean = buffers_of(&outbox, &store, async || {
        for _ in 0..10 {
            store.claim(&batch(16, 0, 992)).await.unwrap();
        }
    })
    .await;
    let top = outbox.number("select max(position) from outbox").await + 200_000;
    outbox.execute("truncate outbox").await;
    let _held = dead_rows(&outbox, 200_000).await;
    load(&outbox, 20_000).await;
    let dirty = buffers_of(&outbox, &store, async || {
        for _ in 0..10 {
            let claimed = store.claim(&batch(16, top, 992)).await.unwrap();
            assert_eq!(claimed.events.len(), 992);
        }
    })
    .await;
    println!("{clean} buffers on a clean table, {dirty} with 200,000 dead rows");
    assert!(dirty * 2 <= clean * 3, "{dirty} buffers, {clean} on a clean table");
}

/// B048: a claim that must go through dead rows costs what its range holds, so that one which took too long can be followed by
/// one that does not.
#[tokio::test]
async fn a_bounded_claim_costs_what_its_range_holds() {
    let outbox = Outbox::with(|config| config.with_pool_size(2)).await;
    outbox.execute("alter table outbox set (autovacuum_enabled = off)").await;
    let store = outbox.store();
    let _held = dead_rows(&outbox, 200_000).await;
    let claims = async |bounds: &[(Position, Position)]| {
        buffers_of(&outbox, &store, async || {
            for (from, to) in bounds {
                let mut request = batch(16, *from, 992);
                request.lanes.iter_mut().for_each(|cursor| cursor.to = *to);
                let claimed = store.claim(&request).await.unwrap();
                assert_eq!(claimed.events.len(), 0);
                assert!(claimed.reads.iter().all(|read| *read == LaneRead::ToEnd));
            }
        })
        .await
    };
    let whole = claims(&[(0, Position::MAX)]).await;
    let parts: Vec<_> = (0..20).map(|n| (n * 10_000, (n + 1) * 10_000)).collect();
    let (part, all) = (claims(&parts[7..8]).await, claims(&parts).await);
    println!("{whole} buffers for 200,000 dead rows, {part} for a twentieth, {all} for twenty");
    assert!(part * 10 <= whole, "{part} buffers for a twentieth of {whole}");
    assert!(all * 2 <= whole * 3, "{all} buffers in twenty parts, {whole} in one go");
}

/// Rows that are dead, and a snapshot that keeps them.
pub(crate) async fn dead_rows(outbox: &Outbox, rows: u32) -> sqlx::PgConnection {
    load(outbox, rows).await;
    let mut reader = outbox.session().await;
    run(&mut reader, "begin isolation level repeatable read; select count(*) from outbox").await;
    outbox.execute("delete from outbox").await;
    reader
}

fn batch(lanes: u16, from: Position, limit: u32) -> ClaimRequest {
    let take = limit / u32::from(lanes);
    let cursors = (0..lanes).map(|lane| LaneCursor::new(lane, from, from, take));
    ClaimRequest::new(pipeline(), cursors.collect(), limit, 64 << 20)
}

#[tokio::test]
async fn a_missing_table_says_what_to_do() {
    let outbox = Outbox::bare("OUTBOX_TEST_POSTGRES_URL", |config| config).await;
    let error = outbox.store().claim(&everything(16)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("migrate"), "{error}");
}
