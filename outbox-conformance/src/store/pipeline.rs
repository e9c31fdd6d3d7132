//! Several pipelines on one table.

use outbox_core::{Pipeline, StoreErrorKind, TypeFilter, Worker};

use super::StoreHarness;
use super::lease::{NO_LEASES, SHORT_LEASE};
use super::owner::{LEASE, Owner, commit, event_of, ids_of, pipeline};
use crate::support::{eventually, falls_away};

/// A pipeline that shares an aggregate type with another one that has workers is refused, until they are gone.
pub async fn overlapping_filters_are_refused(harness: &dyn StoreHarness) {
    if !harness.store().capabilities().leases {
        return falls_away("overlapping_filters_are_refused", NO_LEASES);
    }
    let store = harness.second_store().await;
    let all = Owner::new(harness).await;
    let orders = Worker::new(named("orders", only("order")), "conformance");
    let error = store.join(&orders).await.expect_err("`kit` relays all types");
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
    for name in ["kit", "orders"] {
        assert!(error.to_string().contains(name), "the error names both pipelines: {error}");
    }
    let colleague = Worker::new(pipeline(), "conformance");
    store.join(&colleague).await.expect("a second worker of a pipeline is no overlap");
    for worker in [&colleague, &all.worker] {
        store.leave(worker).await.expect("leave works");
    }
    store.join(&orders).await.expect("nobody works on the other pipeline any more");
    store.heartbeat(&orders, LEASE).await.expect("heartbeat works");
    let rest = Worker::new(named("rest", TypeFilter::Except(types("order"))), "conformance");
    store.join(&rest).await.expect("disjoint filters are fine");
}

/// A worker whose lease ran out comes back only when no overlapping pipeline has begun to work meanwhile: frozen for
/// longer than its lease, it would otherwise relay the same events beside the other for ever. H024
pub async fn a_lease_that_ran_out_is_not_extended_into_an_overlap(harness: &dyn StoreHarness) {
    if !harness.store().capabilities().leases {
        return falls_away("a_lease_that_ran_out_is_not_extended_into_an_overlap", NO_LEASES);
    }
    let mut all = Owner::new(harness).await;
    let lanes = all.lanes.clone();
    all.beat(SHORT_LEASE).await;
    let store = harness.second_store().await;
    let orders = Worker::new(named("orders", only("order")), "conformance");
    eventually("the lease runs out", || async { store.join(&orders).await.ok() }).await;
    store.heartbeat(&orders, LEASE).await.expect("heartbeat works");

    let late = all.store.heartbeat(&all.worker, LEASE).await;
    let error = late.expect_err("`orders` relays some of its types by now");
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
    store.join(&orders).await.expect("the lease was not extended");

    store.leave(&orders).await.expect("leave works");
    all.beat(LEASE).await;
    assert_eq!(all.lanes, lanes, "nobody has buried it, so it has lost nothing");
}

/// Pipelines with disjoint filters each own every lane, and claim and settle beside each other.
pub async fn pipelines_do_not_see_each_others_leases(harness: &dyn StoreHarness) {
    if !harness.store().capabilities().leases {
        return falls_away("pipelines_do_not_see_each_others_leases", NO_LEASES);
    }
    let orders = Owner::on(harness.store(), named("orders", only("order"))).await;
    let rest = named("rest", TypeFilter::Except(types("order")));
    let mut rest = Owner::on(harness.second_store().await, rest).await;
    let lanes = |owner: &Owner| super::owner::all(&owner.lanes);
    assert!(!orders.lanes.is_empty());
    assert_eq!(lanes(&orders), lanes(&rest));
    assert_eq!(rest.beat(LEASE).await.workers, 1, "workers of another pipeline do not count");

    let (order, invoice) = (event_of("order", "a"), event_of("invoice", "a"));
    commit(harness, &[order.clone(), invoice.clone()]).await;
    assert_eq!(orders.ids().await, ids_of(&[order]));
    assert_eq!(rest.ids().await, ids_of(std::slice::from_ref(&invoice)));
    orders.deliver(&orders.events().await[0]).await;
    orders.store.leave(&orders.worker).await.expect("leave works");
    assert_eq!(rest.ids().await, ids_of(&[invoice]));
    rest.deliver(&rest.events().await[0]).await;
}

fn named(name: &str, types: TypeFilter) -> Pipeline {
    Pipeline::with_types(name, types).expect("a plain name")
}

fn only(name: &str) -> TypeFilter {
    TypeFilter::Only(types(name))
}

fn types(name: &str) -> std::collections::BTreeSet<String> {
    [name.to_owned()].into()
}
