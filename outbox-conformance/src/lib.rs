//! The contracts of `outbox-core` as tests, for adapters of your own.
//!
//! Write a harness that makes a fresh, empty table (or destination) and name it in one macro line: every rule of the
//! contract becomes a test of its own.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use outbox_conformance::{DeadLetter, StoreHarness, WriterTransaction};
//! # use outbox_core::{Store, async_trait};
//! struct MyHarness { /* … */ }
//!
//! #[async_trait]
//! impl StoreHarness for MyHarness {
//! #   fn store(&self) -> Arc<dyn Store> { todo!() }
//! #   async fn begin(&self) -> Box<dyn WriterTransaction> { todo!() }
//! #   async fn dead(&self) -> Vec<DeadLetter> { todo!() }
//!     // …
//! }
//!
//! async fn my_harness() -> MyHarness {
//!     # todo!()
//!     // Make a fresh table; panic when the server is missing.
//! }
//!
//! outbox_conformance::store_conformance!(my_harness);
//! ```
//!
//! - [`store_conformance!`] takes a [`StoreHarness`],
//! - [`administration_conformance!`] an [`AdministrationHarness`],
//! - [`inbox_conformance!`] an [`InboxHarness`],
//! - [`publisher_conformance!`] a [`PublisherHarness`].
//!
//! What an adapter cannot do it declares (a store in its `capabilities`, a publisher's harness in its [`Faults`]); the
//! rules that fall away by it print so. A missing server is no such thing: the harness panics then, and the tests fail.
//!
//! The rules are plain functions, to be called one by one where that is handier: see [`store`], [`inbox`], [`publisher`].
//! [`messages`] helps with tests of a publisher beside the rules.

pub mod inbox;
pub mod messages;
pub mod publisher;
pub mod store;
mod support;

pub use inbox::{InboxHarness, InboxTransaction};
pub use publisher::{Faults, PublisherHarness, Received};
pub use store::{AdministrationHarness, DeadLetter, PayloadKind, StoreHarness, WriterTransaction};
#[doc(hidden)]
pub use support::run;

/// One test per named rule; the macros below list them.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr, $topic:ident, $($rule:ident),+ $(,)?) => {
        $(
            #[test]
            fn $rule() {
                $crate::run(stringify!($rule), async {
                    $crate::$topic::$rule(&($harness)().await).await;
                });
            }
        )+
    };
}

/// Every rule of the contract of [`Store`](outbox_core::Store) and [`Writer`](outbox_core::Writer) as a test.
///
/// Takes the name of an async function that returns a [`StoreHarness`] on a fresh, empty table. Two invocations need a module
/// each.
#[macro_export]
macro_rules! store_conformance {
    ($harness:expr) => {
        $crate::conformance_tests! {
            $harness, store,
            a_late_commit_is_seen,
            a_position_given_by_hand_is_read_like_any_other,
            what_is_rolled_back_was_never_there,
            a_savepoint_takes_back_its_part_only,
            a_claim_is_a_read,
            positions_rise_in_the_order_of_the_slice,
            an_empty_append_does_nothing,
            only_what_is_behind_a_waiting_event_is_held,
            a_retry_holds_its_aggregate_and_no_other,
            an_aggregate_is_its_type_and_its_id,
            an_unordered_event_holds_nobody,
            a_scheduled_event_holds_nobody,
            a_blocked_head_holds_until_it_is_requeued,
            due_events_come_from_what_was_read_and_not_excluded,
            a_due_event_waits_behind_an_earlier_waiting_one,
            a_retry_comes_when_the_stores_clock_says_so,
            a_scheduled_event_comes_when_the_stores_clock_says_so,
            events_of_a_lane_rise,
            an_aggregate_has_one_lane,
            a_lane_gives_no_more_than_take,
            a_claim_gives_no_more_than_limit,
            a_claim_stops_at_its_bytes,
            the_first_row_always_comes,
            what_is_excluded_neither_comes_nor_counts,
            reads_are_truthful,
            a_claim_starts_behind_its_cursor,
            a_claim_ends_at_its_bound,
            the_type_filter_is_kept,
            join_is_idempotent,
            a_stale_epoch_delivers_nothing,
            a_stale_epoch_retries_nothing,
            a_stale_epoch_buries_nothing,
            a_stale_epoch_recovers_nothing,
            two_workers_never_win_one_lane,
            a_living_owner_keeps_its_lanes,
            a_lease_that_ran_out_is_taken_with_a_higher_epoch,
            a_clean_release_counts_no_crash,
            a_worker_that_leaves_frees_its_lanes,
            a_buried_worker_owns_nothing,
            a_heartbeat_counts_the_living,
            overlapping_filters_are_refused,
            a_lease_that_ran_out_is_not_extended_into_an_overlap,
            pipelines_do_not_see_each_others_leases,
            a_settle_is_all_or_nothing_per_lane,
            one_settle_writes_many_lanes,
            settling_twice_changes_nothing_more,
            a_settle_compares_lane_position_and_id,
            a_dead_letter_moves_whole,
            a_dead_event_lets_its_aggregate_go_on,
            a_requeued_event_keeps_its_id_and_holds_its_aggregate,
            one_bad_row_does_not_stop_the_others,
            one_refused_row_is_no_outage,
            the_longest_reason_fits,
            backlog_counts_stop_at_the_cap,
            every_byte_of_a_payload_survives,
            every_byte_of_a_key_survives,
            every_byte_of_the_headers_survives,
            names_of_the_longest_kind_survive,
            numbers_rise_by_one_in_each_aggregate,
            numbers_follow_the_order_of_commits,
            writers_of_the_same_aggregates_do_not_lock_each_other_out,
            a_rollback_takes_its_numbers_back,
            aggregates_are_numbered_bytewise,
            unordered_and_scheduled_events_have_no_number,
            a_probe_names_an_open_writer_until_it_ends,
            a_probe_finds_the_top,
            a_snapshot_misses_the_open_transaction,
            cancelled_calls_lose_nothing,
            the_store_works_after_an_error,
            the_store_works_after_its_connections_broke,
        }
    };
}

/// Every rule of the contract of [`Administration`](outbox_core::Administration) as a test.
///
/// Takes the name of an async function that returns an [`AdministrationHarness`] on a fresh, empty table. Two invocations need
/// a module each.
#[macro_export]
macro_rules! administration_conformance {
    ($harness:expr) => {
        $crate::conformance_tests! {
            $harness, store,
            a_second_migration_changes_nothing,
            a_dead_letter_tells_what_it_was,
            a_filter_means_what_meets_every_condition,
            pages_show_each_dead_letter_once,
            a_requeued_dead_letter_keeps_its_id_and_holds_its_aggregate,
            dead_letters_of_an_aggregate_are_requeued_in_order,
            requeue_all_takes_the_first_page_of_what_is_meant,
            a_discarded_dead_letter_is_gone_and_no_other,
            discard_all_takes_a_page_of_what_is_meant,
            an_entry_is_never_used_again,
            what_is_not_there_is_an_answer,
            blocked_heads_are_those_that_wait_for_an_operator,
            an_unblocked_head_comes_before_its_aggregate,
            the_hold_of_a_discarded_head_passes_on,
            a_pending_event_is_found_as_pending,
            a_scheduled_event_is_found_as_scheduled,
            an_event_that_failed_is_found_as_retrying,
            a_blocked_head_is_found_as_blocked,
            an_event_that_was_given_up_is_found_as_dead,
            a_delivered_event_is_found_in_the_archive,
        }
    };
}
