//! Which batch a delivery report belongs to.

use std::sync::{Mutex, MutexGuard};

use outbox_core::{Batch, Failure, FailureClass};

/// The open calls of one producer.
///
/// A message carries slot and index in the one word that librdkafka hands back with its report, so that accounting costs
/// no allocation per message. Each producer has slots of its own: a late report cannot hit another producer's call. A slot
/// is used again when all its messages were reported.
#[derive(Debug)]
pub(crate) struct Slots(Mutex<Table>);

#[derive(Debug)]
struct Table {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// How often the publisher had abandoned its messages when these slots were made.
    era: u64,
    /// No call is opened any more.
    ended: bool,
}

#[derive(Debug)]
struct Slot {
    batch: Batch,
    /// Messages that were neither reported nor held back.
    outstanding: usize,
    /// A message failed that another try may deliver.
    failed: bool,
}

/// The place of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(u32);

impl SlotId {
    /// The word that finds the message at `index` again.
    pub(crate) fn opaque(self, index: usize) -> usize {
        (self.0 as usize) << 32 | index
    }
}

fn parts(opaque: usize) -> (SlotId, usize) {
    (SlotId((opaque >> 32) as u32), opaque & 0xffff_ffff)
}

impl Slots {
    pub(crate) fn new(era: u64) -> Self {
        Self(Mutex::new(Table { slots: Vec::new(), free: Vec::new(), era, ended: false }))
    }

    /// A place for a call of which this many messages are to be handed over; `None` when the slots have ended, or are of
    /// another era than the call.
    pub(crate) fn open(&self, batch: &Batch, messages: usize, era: u64) -> Option<SlotId> {
        let mut table = self.table();
        if table.ended || table.era != era {
            return None;
        }
        let slot = Some(Slot { batch: batch.clone(), outstanding: messages, failed: false });
        Some(SlotId(if let Some(free) = table.free.pop() {
            table.slots[free as usize] = slot;
            free
        } else {
            table.slots.push(slot);
            u32::try_from(table.slots.len() - 1).expect("fewer than 2^32 calls are open")
        }))
    }

    /// `messages` of a call were not handed to the producer: no report will come for them.
    pub(crate) fn hold_back(&self, slot: SlotId, messages: usize) {
        self.table().settle(slot, messages);
    }

    /// Takes back a call of which nothing was handed over; `false` when it has got its verdicts already.
    pub(crate) fn withdraw(&self, slot: SlotId, batch: &Batch) -> bool {
        let mut table = self.table();
        let open = !table.ended;
        table.settle(slot, batch.len());
        open
    }

    /// The broker has the message.
    pub(crate) fn confirm(&self, opaque: usize) {
        let (slot, index) = parts(opaque);
        let mut table = self.table();
        if let Some(slot) = table.slot(slot) {
            slot.batch.confirm(index);
        }
        table.settle(slot, 1);
    }

    /// The message failed.
    pub(crate) fn refuse(&self, opaque: usize, failure: Failure) {
        let (slot, index) = parts(opaque);
        let mut table = self.table();
        if let Some(slot) = table.slot(slot) {
            slot.failed |= failure.class != FailureClass::Permanent;
            slot.batch.refuse(index, failure);
        }
        table.settle(slot, 1);
    }

    /// Whether a message of this call failed that another try may deliver.
    pub(crate) fn has_failed(&self, slot: SlotId) -> bool {
        self.table().slot(slot).is_some_and(|slot| slot.failed)
    }

    pub(crate) fn era(&self) -> u64 {
        self.table().era
    }

    /// Moves slots that no call has used to another era; `false` when one has, or when they have ended.
    pub(crate) fn renew(&self, era: u64) -> bool {
        let mut table = self.table();
        let unused = table.slots.is_empty() && !table.ended;
        if unused {
            table.era = era;
        }
        unused
    }

    /// Ends all calls: no report will come any more, and no call is opened. What is open gets the verdict `failure`, or none.
    pub(crate) fn end(&self, failure: Option<&Failure>) {
        let slots = {
            let mut table = self.table();
            table.ended = true;
            table.free.clear();
            std::mem::take(&mut table.slots)
        };
        for slot in slots.into_iter().flatten() {
            if let Some(failure) = failure {
                slot.batch.refuse_open(failure);
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no panic while the slots are locked")
    }
}

impl Table {
    fn slot(&mut self, SlotId(id): SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    fn settle(&mut self, SlotId(id): SlotId, messages: usize) {
        let Some(slot) = self.slot(SlotId(id)) else { return };
        slot.outstanding -= messages;
        if slot.outstanding == 0 {
            self.slots[id as usize] = None;
            self.free.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::Verdict;

    use super::*;
    use crate::wire::tests::message;

    fn batch(len: usize) -> Batch {
        Batch::new((0..len).map(|_| message("t")).collect())
    }

    fn gone() -> Failure {
        Failure::new(FailureClass::Unavailable, "gone")
    }

    #[test]
    fn a_report_finds_its_message() {
        let slots = Slots::new(0);
        let (first, second) = (batch(2), batch(3));
        let a = slots.open(&first, first.len(), 0).unwrap();
        let b = slots.open(&second, second.len(), 0).unwrap();
        slots.confirm(b.opaque(2));
        slots.refuse(a.opaque(1), gone());
        assert_eq!(second.verdict(2), Some(Verdict::Confirmed));
        assert_eq!(first.verdict(1), Some(Verdict::Failed(gone())));
        assert_eq!((first.open(), second.open()), (1, 2));
    }

    #[test]
    fn a_slot_is_used_again_only_after_all_its_reports() {
        let slots = Slots::new(0);
        let a = slots.open(&batch(3), 3, 0).unwrap();
        slots.confirm(a.opaque(0));
        slots.hold_back(a, 1);
        let b = slots.open(&batch(1), 1, 0).unwrap();
        assert_ne!(a, b);
        slots.confirm(a.opaque(1));
        assert_eq!(slots.open(&batch(1), 1, 0), Some(a));
    }

    #[test]
    fn the_end_refuses_what_is_open_and_later_calls() {
        let slots = Slots::new(0);
        let open = batch(2);
        let a = slots.open(&open, open.len(), 0).unwrap();
        slots.confirm(a.opaque(0));
        slots.end(Some(&gone()));
        assert_eq!(open.verdict(0), Some(Verdict::Confirmed));
        assert_eq!(open.verdict(1), Some(Verdict::Failed(gone())));
        assert_eq!(slots.open(&batch(1), 1, 0), None);
        slots.confirm(a.opaque(1));
        assert_eq!(open.verdict(1), Some(Verdict::Failed(gone())));
    }

    #[test]
    fn only_unused_slots_move_to_another_era() {
        let slots = Slots::new(0);
        assert!(slots.renew(1));
        assert_eq!(slots.open(&batch(1), 1, 0), None, "a call from before");
        slots.open(&batch(1), 1, 1).unwrap();
        assert!(!slots.renew(2));
    }
}
