//! What a store knows about writers whose transactions are open.

use std::collections::BTreeSet;

use outbox_core::{OpenWriter, Store, Watermark};

use super::StoreHarness;
use super::owner::{Owner, commit, event, spread};
use crate::support::{eventually, falls_away};

/// A writer is named from its first append to its commit or rollback. H001, B001, B004
pub async fn a_probe_names_an_open_writer_until_it_ends(harness: &dyn StoreHarness) {
    let rule = "a_probe_names_an_open_writer_until_it_ends";
    if harness.store().capabilities().watermark != Watermark::Writers {
        return falls_away(rule, NOT_NAMED);
    }
    let store = harness.store();
    for commits in [true, false] {
        let before = names(&writers(&*store).await);
        let mut first = harness.begin().await;
        first.append(&[event("a")]).await.expect("append works");
        let one = &names(&writers(&*store).await) - &before;
        assert_eq!(one.len(), 1, "the open writer is named");
        let mut second = harness.begin().await;
        second.append(&[event("b")]).await.expect("append works");
        let two = &names(&writers(&*store).await) - &before;
        assert!(two.len() == 2 && two.is_superset(&one), "each by a name that it keeps");
        if commits {
            first.commit().await;
        } else {
            first.rollback().await;
        }
        eventually("a writer that has ended is forgotten", || async {
            names(&writers(&*store).await).is_disjoint(&one).then_some(())
        })
        .await;
        assert!(names(&writers(&*store).await).is_superset(&(&two - &one)), "the other is open");
        second.rollback().await;
    }
}

/// The top is the highest committed position above `after`, or `after` itself.
pub async fn a_probe_finds_the_top(harness: &dyn StoreHarness) {
    let store = harness.store();
    let top = async |after| store.probe(after).await.expect("probe works").top;
    assert_eq!(top(7).await, 7, "nothing lies above");
    if store.capabilities().watermark == Watermark::None {
        return falls_away("a_probe_finds_the_top", "the store does not look ahead");
    }
    let owner = Owner::new(harness).await;
    commit(harness, &spread(20)).await;
    let last = owner.events().await.pop().expect("20 events");
    assert_eq!(top(0).await, last.position());
    assert_eq!(top(last.position() - 1).await, last.position());
    assert_eq!(top(last.position() + 5).await, last.position() + 5);
}

/// The snapshot of a claim misses the transaction of an open writer, and no longer once its rows came.
pub async fn a_snapshot_misses_the_open_transaction(harness: &dyn StoreHarness) {
    let rule = "a_snapshot_misses_the_open_transaction";
    if harness.store().capabilities().watermark != Watermark::Writers {
        return falls_away(rule, NOT_NAMED);
    }
    let owner = Owner::new(harness).await;
    let before = names(&writers(&*owner.store).await);
    let mut transaction = harness.begin().await;
    transaction.append(&[event("a")]).await.expect("append works");
    let open = writers(&*owner.store).await;
    let mine = open.into_iter().find(|writer| !before.contains(&writer.name));
    let Some(id) = mine.expect("the open writer is named").transaction else {
        return falls_away(rule, "the store gives no transaction ids");
    };
    let claimed = owner.claim(&owner.everything()).await;
    let snapshot = claimed.snapshot.expect("who names transactions gives snapshots");
    assert!(claimed.events.is_empty() && snapshot.misses(id), "{snapshot:?} misses {id}");
    transaction.commit().await;
    let claimed = owner.claim(&owner.everything()).await;
    let snapshot = claimed.snapshot.expect("who names transactions gives snapshots");
    assert!(claimed.events.len() == 1 && !snapshot.misses(id), "{snapshot:?} has seen {id}");
}

const NOT_NAMED: &str = "the store does not name open writers";

async fn writers(store: &dyn Store) -> Vec<OpenWriter> {
    store.probe(0).await.expect("probe works").writers
}

fn names(writers: &[OpenWriter]) -> BTreeSet<String> {
    writers.iter().map(|writer| writer.name.clone()).collect()
}
